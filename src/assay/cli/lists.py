"""`assay list`: what there is to choose from."""

import textwrap
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.show import print_json, print_table
from assay.registry import first_paragraph

if TYPE_CHECKING:
    from assay.protocols import Protocol

Rows = list[dict[str, Any]]

WIDTH, NARROWEST = 100, 24
"""Columns of a terminal in which lists stay readable, and those that folded text gets at least,
whatever stands beside it.
"""

PROTOCOL_COLUMNS = "name", "about", "trials", "reproductions", "runs"
"""What a line of `assay list protocols` says: trials and reproductions of one search, and all runs
of a searched method.
"""


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    losses = "losses"
    miners = "miners"
    samplers = "samplers"
    trunks = "trunks"
    datasets = "datasets"
    protocols = "protocols"
    metrics = "metrics"


def add_to(app: typer.Typer) -> None:
    """Register the command."""

    @app.command(name="list")
    def list_(
        kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.methods,
        imports: Annotated[
            list[str] | None,
            typer.Option("--import", metavar="FILE|MODULE", help="Import your own parts first."),
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    ) -> None:
        """List methods, losses, miners, samplers, trunks, data sets, protocols or metrics.

        Example: assay list protocols
        """
        from assay.methods import import_parts

        import_parts(imports or ())
        if json:
            print_json(_rows(kind))
        elif kind == Kind.methods:
            _print_methods([_short(row) for row in _rows(kind)])
        elif kind == Kind.protocols:
            rows = _rows(kind)
            _print_rows([{column: row[column] for column in PROTOCOL_COLUMNS} for row in rows])
            _print_waiting(rows)
        else:
            _print_rows(_rows(kind))


def _print_rows(rows: Rows) -> None:
    folded = _folded(rows)
    print_table(list(folded[0]), [list(row.values()) for row in folded])


def _print_waiting(protocols: Rows) -> None:
    """Print for which methods settings of a protocol wait."""
    waiting: dict[tuple[str, ...], list[str]] = {}
    for row in protocols:
        if row["waits_for"]:
            waiting.setdefault(tuple(row["waits_for"]), []).append(row["name"])
    for methods, names in waiting.items():
        text = (
            f"{', '.join(names)}: settings for {', '.join(methods)} wait for these methods, which"
            " Assay does not have yet"
        )
        print(f"\n{textwrap.fill(text, WIDTH)}")


def _rows(kind: Kind) -> Rows:
    own = {"methods": _methods, "datasets": _datasets, "protocols": _protocols, "metrics": _metrics}
    return own.get(kind, lambda: _parts(kind))()


def _folded(rows: Rows) -> list[dict[str, str]]:
    """The cells as text, `about` in as many lines as keep the table within the terminal."""
    texts = [{column: str(value) for column, value in row.items()} for row in rows]
    room = WIDTH - sum(3 + _width(column, texts) for column in texts[0] if column != "about")
    if "about" in texts[0]:
        texts = [
            {**text, "about": textwrap.fill(text["about"], max(room, NARROWEST))} for text in texts
        ]
    return texts


def _width(column: str, rows: Rows) -> int:
    return max(len(column), *(len(row[column]) for row in rows))


def _methods() -> Rows:
    from assay.methods import describe, methods_by_year

    return [describe(method) for method in methods_by_year()]


def _short(method: dict[str, Any]) -> dict[str, str]:
    return {
        "name": method["name"],
        "year": str(method["paper"]["year"]) if method["paper"] else "",
        "batch": method["batch"] or "",
        "miner": method["miner"]["name"] if method["miner"] else "",
        "searched": ", ".join(method["space"]) or "nothing",
        "about": method["about"],
    }


def _print_methods(rows: Rows) -> None:
    """Two lines or three for each, as no terminal is wide enough for one: what it is made of, and
    what it is about.
    """
    *columns, last = [column for column in rows[0] if column != "about"]
    widths = [_width(column, rows) for column in columns]
    indent = sum(widths) + 2 * len(widths)

    def lines(row: dict[str, str]) -> list[str]:
        first, *more = textwrap.wrap(row[last], max(WIDTH - indent, NARROWEST))
        cells = [row[column].ljust(width) for column, width in zip(columns, widths, strict=True)]
        return ["  ".join([*cells, first]), *(" " * indent + line for line in more)]

    print(*lines({column: column for column in rows[0]}), "-" * WIDTH, sep="\n")
    for row in rows:
        print(
            *lines(row),
            *textwrap.wrap(row["about"], WIDTH, initial_indent="    ", subsequent_indent="    "),
            sep="\n",
        )


def _datasets() -> Rows:
    from assay.data import datasets

    def usage(name: str) -> str:
        return f"{name}PATH" if name.endswith(":") else name

    return [
        {"name": usage(name), "about": first_paragraph(loader.__doc__)}
        for name, loader in datasets.items()
    ]


def _protocols() -> Rows:
    from assay.methods import methods
    from assay.protocols import protocols

    return [
        {
            "name": name,
            "about": protocol.about,
            "searches": protocol.searches,
            "trials": protocol.trials,
            "reproductions": protocol.reproductions,
            "runs": _runs(protocol),
            "trunk": protocol.trunk,
            "dim": protocol.dim,
            "folds": protocol.folds,
            "fingerprint": protocol.fingerprint,
            "departures": list(protocol.departures),
            "waits_for": [method for method in protocol.exceptions if method not in methods],
        }
        for name, protocol in protocols.items()
    ]


def _runs(protocol: "Protocol") -> int:
    """Runs of one method that has something to search."""
    return protocol.searches * (
        protocol.trials * protocol.folds_of_a_trial + protocol.reproductions * protocol.folds
    )


def _metrics() -> Rows:
    """Return a row per metric; `numbers` are those that the bare name of a family stands for."""
    from assay.metric_names import NAMES
    from assay.metrics import metrics

    ordered = {name: metrics[name] for name in (*NAMES, *metrics)}
    return [
        {
            "name": name,
            "from": metric.source,
            "numbers": ", ".join(
                metric.label(value).removeprefix(metric.stem) for value in metric.values
            ),
            "about": metric.about,
        }
        for name, metric in ordered.items()
    ]


def _parts(kind: Kind) -> Rows:
    """Registries whose parts say in their docstring what they are."""
    from assay.methods import losses, miners
    from assay.samplers import samplers
    from assay.trunks import trunks

    registries: dict[str, Any] = {
        "losses": losses,
        "miners": miners,
        "samplers": samplers,
        "trunks": trunks,
    }
    return [
        {"name": name, "about": first_paragraph(part.__doc__)}
        for name, part in sorted(registries[kind].items())
    ]
