"""`assay baselines`: what trunks are worth before any metric learning."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import Data, Imports, Json, ProtocolName, Settings, WeightsFile
from assay.cli.show import print_json, print_table
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.evaluation import Baseline

SHOWN = {"precision_at_1": "P@1 (R@1)", "r_precision": "RP", "map_at_r": "MAP@R"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(baselines)


def baselines(
    data: Data = "glyphs",
    trunks: Annotated[
        str,
        typer.Option(help="Comma-separated names; all that Assay knows by name where left out."),
    ] = "",
    dim: Annotated[
        int, typer.Option(min=1, help="Dimensions after the PCA, which is fitted on trainval.")
    ] = 512,
    test: Annotated[
        bool,
        typer.Option(
            "--test", help="Search the test half, as the paper does, not the validation folds."
        ),
    ] = False,
    protocol: ProtocolName = "quick",
    settings: Settings = None,
    weights: WeightsFile = None,
    imports: Imports = None,
    json: Json = False,
) -> None:
    """Random and pretrained trunks on DATA, features reduced by a PCA: Table 1 of the reality
    check, for any data.

    A method has to beat the pretrained trunk that it starts from; how far the trunk alone gets says
    what is left to learn.

    Example: assay baselines --data cub:/data/cub --trunks resnet50,lite0 --test
    """
    from assay.cli.progress import follow
    from assay.data import load
    from assay.evaluation import baselines as compute
    from assay.methods import import_parts
    from assay.protocols import customise, protocols
    from assay.trunks import with_weights

    import_parts(imports or ())
    chosen = customise(protocols[protocol], [*(settings or ()), f"dim={dim}"])
    names = [name.strip() for name in trunks.split(",") if name.strip()]
    if weights is not None:
        if len(names) != 1:
            raise BadInput(f"--weights {weights}: say whose they are with --trunks, one name")
        chosen = with_weights(customise(chosen, [f"trunk={names[0]}"]), weights)
    with follow() as progress:
        dataset = load(data, progress)
        found = list(compute(dataset, chosen, names, list(SHOWN), test=test, progress=progress))
    if json:
        print_json(
            {
                "data": data,
                "test": test,
                "dim": dim,
                "trunks": [_plain(baseline) for baseline in found],
            }
        )
        return
    part = "test half" if test else "validation folds, mean"
    print_table(
        ["trunk", "pretrained on", "features", "dims", *SHOWN.values()],
        [_row(baseline) for baseline in found],
        title=f"{dataset.name}: {part}, percent; PCA fitted on trainval",
        right=range(2, 4 + len(SHOWN)),
    )
    if test:
        print(
            "note: this look at the test half belongs to no study and is not recorded",
            file=sys.stderr,
        )
    for baseline in found:
        if baseline.problem:
            print(f"{baseline.trunk}: {baseline.problem}")


def _row(baseline: "Baseline") -> list[str]:
    untrained = (
        "-"
        if baseline.problem
        else "features as given"
        if baseline.trunk == "identity"
        else "nothing (random weights)"
    )
    start = baseline.pretrained_on or untrained
    if baseline.scores is None:
        return [baseline.trunk, start, *("-" for _ in range(2 + len(SHOWN)))]
    scores = [f"{100 * baseline.mean(metric):.1f}" for metric in SHOWN]
    return [baseline.trunk, start, str(baseline.features), str(baseline.dim), *scores]


def _plain(baseline: "Baseline") -> dict[str, object]:
    scores = (
        None if baseline.scores is None else {metric: baseline.mean(metric) for metric in SHOWN}
    )
    return {**vars(baseline), "scores": scores}
