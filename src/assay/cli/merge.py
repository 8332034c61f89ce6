"""`assay merge`: the stores of several labs or nodes in one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import Json
from assay.cli.show import print_json, print_table

if TYPE_CHECKING:
    from assay.study.merge import Contribution


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(merge)


def merge(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Run stores; they are only read.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="STORE", help="Where all of it goes: a new store, or an existing one."
        ),
    ],
    json: Json = False,
) -> None:
    """Unite run stores of several labs or nodes in one, everything checked first.

    After any interruption, run the same command again: it continues. The report is not copied:
    `assay report STORE` writes it.

    Example: assay merge berlin/assay-runs oslo/assay-runs --out both
    """
    from assay.cli.progress import watch
    from assay.study.merge import merge as unite

    with watch() as listener:
        merged = unite(stores, out, listener)
    if json:
        print_json(
            {
                "out": str(merged.out),
                "runs": merged.runs,
                "studies": merged.studies,
                "came": [*map(_row, merged.contributions)],
            }
        )
        return
    rows = [[str(value) for value in _row(came).values()] for came in merged.contributions]
    print_table(["from", "runs", "studies", "models"], rows, right=(1, 2, 3))
    print(
        f"{out} now holds {merged.runs} runs and {merged.studies} studies; `assay report {out}`"
        " writes its report"
    )


def _row(came: "Contribution") -> dict[str, str | int]:
    return {
        "from": str(came.store),
        "runs": came.runs,
        "studies": came.studies,
        "models": came.models,
    }
