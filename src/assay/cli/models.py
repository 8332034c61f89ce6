"""`assay train`, `embed` and `baselines`: one model trained, used, or taken as it is."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import (
    LARGEST_SEED,
    DataOption,
    Device,
    DeviceOption,
    ForceOption,
    ImportsOption,
    JsonOption,
    PretrainedOnOption,
    ProtocolOption,
    SettingsOption,
    SkipBrokenOption,
    WeightsFileOption,
    WeightsOption,
    check_free,
    choose_protocol,
    data_or_name,
    read_data,
    split_names,
)
from assay.cli.show import note, print_json, print_table
from assay.errors import BadInput
from assay.progress import say_nothing

if TYPE_CHECKING:
    from assay.evaluation import TrunkBaseline
    from assay.records.run import Checkpoint
    from assay.study import Finished

SCORES = {"precision_at_1": "P@1 (R@1)", "r_precision": "RP", "map_at_r": "MAP@R"}


# --- train ----------------------------------------------------------------------------------------


def train(
    data: DataOption,
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The model folder to make.")],
    method: Annotated[
        str | None,
        typer.Option(
            help="A name of `assay list methods`; with --final, by default the bench's answer."
        ),
    ] = None,
    final: Annotated[
        Path | None,
        typer.Option(
            "--final",
            metavar="STORE",
            help="Train on all classes, the test half too, as a finished study of this store says.",
        ),
    ] = None,
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
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Another seed gives another model."),
    ] = 0,
    imports: ImportsOption = None,
    device: DeviceOption = Device.auto,
    skip_broken: SkipBrokenOption = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Train one model by METHOD on the trainval half of DATA; the test half is not touched.

    With --final it is trained on all classes by the parameters that a finished study chose: a model
    for new classes, which has no test score of its own.

    Example: assay train --data folder:birds --method triplet --out birds-model
    """
    from assay.cli.progress import follow
    from assay.study import check_out, design_bench, train_one

    if final is not None:
        given = {
            "--param": parameters,
            "--set": settings,
            "--weights": weights,
            "--pretrained-on": pretrained_on,
            "--protocol": protocol != "quick",
            "--fold": fold,
            "--seed": seed,
        }
        _refuse(final, [name for name, value in given.items() if value])
        check_out(out, force)
        _train_final(
            final,
            data,
            method,
            out,
            imports or (),
            device,
            json,
            skip_broken=skip_broken,
            force=force,
        )
        return
    if method is None:
        raise BadInput(
            "--method: name one of `assay list methods`, or give the store of a finished bench with"
            " --final"
        )
    check_out(out, force)
    chosen = choose_protocol(protocol, settings, imports, weights, pretrained_on)
    with follow() as progress:
        found = data_or_name(data, skip_broken, progress, say_nothing)
        (design,) = design_bench(found, [method], chosen, device, imports or (), progress)
        for text in (*design.conditions.left_out, *design.conditions.of_relations):
            note(text)
        epochs = design.protocol.epochs

        def report(epoch: int, loss: float, checkpoint: "Checkpoint | None") -> None:
            if checkpoint is not None:
                score = checkpoint.validation["map_at_r"]
                print(
                    f"epoch {epoch} of {epochs}: loss {loss:.4f}, validation MAP@R {score:.4f}",
                    file=sys.stderr,
                    flush=True,
                )

        card = train_one(
            design,
            parameters or (),
            out,
            fold=fold,
            seed=seed,
            replace_model=force,
            say=note,
            progress=progress,
            on_epoch=report,
        )
    if json:
        print_json({"model": str(out), **card.to_json()})
        return
    if card.status == "diverged" and design.method.loss is None:
        note(f"{method}: its head gives embeddings that are not finite, so the model is of no use")
    elif card.status == "diverged":
        print("training diverged; the best checkpoint before that was kept", file=sys.stderr)
    if card.epoch == 0 and design.method.loss is not None and card.status != "diverged":
        note(
            "no validation was better than before training: the model has its initial weights;"
            " train longer (--set epochs=..., patience=...), or with another learning rate (--set"
            " optimiser.lr=...)"
        )
    scores = ", ".join(f"{name} {card.validation[name]:.4f}" for name in SCORES)
    print(f"validation, fold {fold}, epoch {card.epoch}: {scores}")
    print(f"model: {out}")


def _refuse(final: Path, given: list[str]) -> None:
    """Raise `BadInput` for options that a finished study has settled."""
    if given:
        raise BadInput(
            f"{' and '.join(given)}: with --final the study of {final} gives protocol, parameters"
            " and seed, and no fold is held out; leave out what is given beside it"
        )


def _train_final(
    final: Path,
    data: str,
    method: str | None,
    out: Path,
    imports: Sequence[str],
    device: str,
    json: bool,
    *,
    skip_broken: bool,
    force: bool,
) -> None:
    from assay.cli.progress import follow
    from assay.methods import import_parts
    from assay.records.store import Store
    from assay.study import finished_studies, newest_of, train_final

    import_parts(imports)
    store = Store(final)
    with follow() as progress:
        dataset = read_data(data, skip_broken, progress)
        finished = finished_studies(store, dataset)
        study = newest_of(finished, method or _method_of_answer(finished))
        epochs = study.epochs

        def report(epoch: int, loss: float, checkpoint: "Checkpoint | None") -> None:
            print(f"epoch {epoch} of {epochs}: loss {loss:.4f}", file=sys.stderr, flush=True)

        card = train_final(
            study,
            out,
            device=device,
            imports=imports,
            replace_model=force,
            say=note,
            progress=progress,
            on_epoch=report,
        )
    if json:
        print_json({"model": str(out), **card.to_json()})
        return
    assert card.final is not None
    chosen = ", ".join(f"{name}={value}" for name, value in card.parameters.items()) or "none"
    print(
        f"{card.method} on all {len(card.classes)} classes, {epochs} epochs; parameters: {chosen}"
    )
    print(card.final.note)
    print(f"model: {out}")


def _method_of_answer(finished: Sequence["Finished"]) -> str:
    """Return the method that the bench's answer names, and say why."""
    from assay.tables import comparisons, method_to_train

    keys = {one.record.key for one in finished}
    found = [
        one
        for one in comparisons(finished[0].store)
        if not keys.isdisjoint(record.key for record in one.records)
    ]
    if len(found) != 1:
        raise BadInput(
            f"{finished[0].store.root} has {len(found)} tables on these data, so there is no one"
            f" answer; name the method with --method: {', '.join(_names(finished))}"
        )
    method, why, settled = method_to_train(found[0])
    note(f"training {method}, as the bench answers: {why}")
    if not settled:
        note(f"the bench has not settled on {method}; name another method with --method")
    return method


def _names(finished: Sequence["Finished"]) -> list[str]:
    return sorted({one.record.method for one in finished})


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
    skip_broken: SkipBrokenOption = False,
    force: ForceOption = False,
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
    check_free("--out", out, force, Path(images.rpartition(":")[2]))
    with follow() as progress:
        found = compute(
            model,
            images,
            device=device,
            weights_file=weights,
            skip_broken=skip_broken,
            progress=progress,
        )
    found.save(out)
    for text in found.notes:
        note(text)
    count, dim = found.z.shape
    classes = "" if found.classes is None else f" of {len(found.classes)} classes"
    print(f"{count} vector{'s' * (count != 1)}{classes}, {dim} dimensions: {out}")
    if found.similarity != "cosine":
        print(
            f"compare them by their {found.similarity} distance: assay evaluate {out}"
            f" --similarity {found.similarity}"
        )
    if found.can_be_benched:
        print(f"next: assay bench --data features:{out}")


# --- baselines ------------------------------------------------------------------------------------


def baselines(
    data: DataOption = "glyphs",
    trunks: Annotated[
        str,
        typer.Option(help="Comma-separated names; by default all of `assay list trunks`."),
    ] = "",
    dim: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_536,
            help="Dimensions after the PCA, which is fitted on trainval.",
        ),
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
    skip_broken: SkipBrokenOption = False,
    json: JsonOption = False,
) -> None:
    """Score random and pretrained trunks on DATA, their features reduced by a PCA.

    This is Table 1 of the reality check, for any data.

    A method has to beat the pretrained trunk that it starts from; how far the trunk alone gets says
    what is left to learn.

    Example: assay baselines --data cub:/data/cub --trunks resnet50,lite0 --test
    """
    from assay.cli.progress import follow
    from assay.evaluation import baselines as compute

    chosen = choose_protocol(protocol, settings, imports)
    if trunks and not split_names(trunks):
        raise BadInput(f"--trunks {trunks}: name a trunk of `assay list trunks`, or leave it out")
    with follow() as progress:
        dataset = read_data(data, skip_broken, progress)
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
    for text in dict.fromkeys(text for one in found for text in one.notes):
        note(text)
    if json:
        trunks_found = [
            {
                **{name: value for name, value in vars(one).items() if name != "notes"},
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
