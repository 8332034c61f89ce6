"""`assay train`, `embed` and `baselines`: one model trained, used, or taken as it is."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import (
    DataOption,
    Device,
    DeviceOption,
    ImportsOption,
    JsonOption,
    PretrainedOnOption,
    ProtocolOption,
    SettingsOption,
    WeightsFileOption,
    WeightsOption,
    choose_protocol,
    split_names,
)
from assay.cli.show import note, print_json, print_table
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.evaluation import TrunkBaseline
    from assay.records.run import Checkpoint

SCORES = {"precision_at_1": "P@1 (R@1)", "r_precision": "RP", "map_at_r": "MAP@R"}


# --- train ----------------------------------------------------------------------------------------


def train(
    data: DataOption,
    method: Annotated[str, typer.Option(help="A name of `assay list methods`.")],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The model folder to make.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param", metavar="NAME=VALUE", help="A parameter of the method, else its default."
        ),
    ] = None,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    weights: WeightsOption = None,
    pretrained_on: PretrainedOnOption = None,
    fold: Annotated[
        int, typer.Option(help="The fold of trainval that is held out and chooses the checkpoint.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives another model.")] = 0,
    imports: ImportsOption = None,
    device: DeviceOption = Device.auto,
    json: JsonOption = False,
) -> None:
    """Train one model by METHOD on the trainval half of DATA; the test half is not touched.

    Example: assay train --data folder:birds --method multi_similarity --set trunk=lite0 --out
    birds-model
    """
    from assay.cli.progress import follow
    from assay.study import design_bench, train_one

    chosen = choose_protocol(protocol, settings, imports, weights, pretrained_on)
    with follow() as progress:
        (design,) = design_bench(data, [method], chosen, device, imports or (), progress)
        epochs = design.protocol.epochs

        def report(epoch: int, loss: float, checkpoint: "Checkpoint | None") -> None:
            if checkpoint is not None:
                found = checkpoint.validation["map_at_r"]
                print(
                    f"epoch {epoch} of {epochs}: loss {loss:.4f}, validation MAP@R {found:.4f}",
                    file=sys.stderr,
                    flush=True,
                )

        card = train_one(
            design, parameters or (), out, fold=fold, seed=seed, progress=progress, on_epoch=report
        )
    if json:
        print_json({"model": str(out), **card.to_json()})
        return
    if card.status == "diverged":
        print("training diverged; the best checkpoint before that was kept", file=sys.stderr)
    scores = ", ".join(f"{name} {card.validation[name]:.4f}" for name in SCORES)
    print(f"validation, fold {fold}, epoch {card.epoch}: {scores}")
    print(f"model: {out}")


# --- embed ----------------------------------------------------------------------------------------


def embed(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model folder, or a pretrained trunk: lite0, any name of timm's.",
        ),
    ],
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="A folder of class folders, a folder or file of images, or kind:path.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="F.npz", help="Where the vectors go.")],
    weights: WeightsFileOption = None,
    imports: ImportsOption = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Write embeddings of IMAGES by MODEL to an .npz.

    It holds z, ids, and where there are classes, y and classes. It keeps official splits and roles,
    so that `assay bench --data features:F.npz` splits the vectors as it would split the images.

    Example: assay embed lite0 birds --out birds.npz
    """
    from assay.cli.progress import follow
    from assay.evaluation import embed as compute
    from assay.methods import import_parts

    import_parts(imports or ())
    if out.suffix != ".npz" or not out.parent.is_dir() or out.is_dir():
        raise BadInput(f"--out {out}: give a file that ends in .npz, in a folder that exists")
    with follow() as progress:
        found = compute(model, images, device=device, weights_file=weights, progress=progress)
    found.save(out)
    count, dim = found.z.shape
    classes = "" if found.classes is None else f" of {len(found.classes)} classes"
    print(f"{count} vector{'s' * (count != 1)}{classes}, {dim} dimensions: {out}")
    if found.similarity != "cosine":
        print(
            f"compare them by their {found.similarity} distance: assay evaluate {out}"
            f" --similarity {found.similarity}"
        )
    if found.classes is not None:
        print(f"next: assay bench --data features:{out}")


# --- baselines ------------------------------------------------------------------------------------


def baselines(
    data: DataOption = "glyphs",
    trunks: Annotated[
        str,
        typer.Option(help="Comma-separated names; by default all of `assay list trunks`."),
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
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    weights: WeightsFileOption = None,
    imports: ImportsOption = None,
    json: JsonOption = False,
) -> None:
    """Score random and pretrained trunks on DATA, their features reduced by a PCA.

    This is Table 1 of the reality check, for any data.

    A method has to beat the pretrained trunk that it starts from; how far the trunk alone gets says
    what is left to learn.

    Example: assay baselines --data cub:/data/cub --trunks resnet50,lite0 --test
    """
    from assay.cli.progress import follow
    from assay.data import load
    from assay.evaluation import baselines as compute

    chosen = choose_protocol(protocol, settings, imports)
    with follow() as progress:
        dataset = load(data, progress)
        found = compute(
            dataset,
            split_names(trunks),
            chosen,
            dim=dim,
            weights=weights,
            metrics=list(SCORES),
            test=test,
            progress=progress,
        )
    if json:
        trunks_found = [
            {
                **vars(one),
                "scores": None if one.scores is None else {name: one.mean(name) for name in SCORES},
            }
            for one in found
        ]
        print_json({"data": data, "test": test, "dim": dim, "trunks": trunks_found})
        return
    part = "test half" if test else "validation folds, mean"
    print_table(
        ["trunk", "pretrained on", "features", "dims", *SCORES.values()],
        [_row(baseline) for baseline in found],
        title=f"{dataset.name}: {part}, percent; PCA fitted on trainval",
        right=range(2, 4 + len(SCORES)),
    )
    if test:
        note("this look at the test half belongs to no study and is not recorded")
    for baseline in found:
        if baseline.problem:
            print(f"{baseline.trunk}: {baseline.problem}")


def _row(baseline: "TrunkBaseline") -> list[str]:
    if baseline.scores is None:
        return [baseline.trunk, *("-" for _ in range(3 + len(SCORES)))]
    untrained = "features as given" if baseline.trunk == "identity" else "nothing (random weights)"
    scores = [f"{100 * baseline.mean(metric):.1f}" for metric in SCORES]
    start = baseline.pretrained_on or untrained
    return [baseline.trunk, start, str(baseline.features), str(baseline.dim), *scores]
