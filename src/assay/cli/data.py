"""`assay data`: look at a data set before anything is trained on it."""

import csv
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from assay.cli.show import print_json, print_table

Data = Annotated[str, typer.Argument(metavar="DATA", help="A name or kind:path, see `assay list datasets`.")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="A name of `assay list protocols`.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the protocol, such as folds.")
]
Imports = Annotated[list[str] | None, typer.Option("--import", metavar="FILE|MODULE", help="Import your own data sets first.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    data = typer.Typer(no_args_is_help=True, help="Look at a data set: show, splits.", rich_markup_mode="rich")
    data.command()(show)
    data.command()(splits)
    app.add_typer(data, name="data")


def show(
    data: Data,
    protocol: ProtocolName = "quick",
    settings: Settings = None,
    imports: Imports = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Classes, samples, fingerprint of trainval and the splits that would be made.

    Example: assay data show folder:birds
    """
    facts = _facts(data, protocol, settings or (), imports or ())
    if json:
        print_json(facts)
        return
    for name in ("name", "look", "classes", "samples", "samples_per_class", "classes_with_one_sample", "trainval"):
        print(f"{name.replace('_', ' '):24} {facts[name]}")
    for note in facts["notes"]:
        print(f"{'note':24} {note}")
    print()
    columns = ["part", "classes", "samples", "first class", "last class"]
    print_table(columns, [[str(value) for value in part.values()] for part in facts["parts"]], right=(1, 2))


def splits(data: Data, protocol: ProtocolName = "quick", settings: Settings = None, imports: Imports = None) -> None:
    """The exact list of samples per fold and test, as CSV.

    Example: assay data splits folder:birds > splits.csv
    """
    from assay.data.splits import parts

    dataset, chosen = _load(data, protocol, settings or (), imports or ())
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["sample", "class", "part"])
    for id_, label, part in zip(dataset.ids, dataset.labels.tolist(), parts(dataset, chosen), strict=True):
        writer.writerow([id_, dataset.class_names[label], part])


def _load(data: str, protocol: str, settings: Sequence[str], imports: Sequence[str]) -> Any:
    """The data set and the protocol that would split it."""
    from assay.data import load
    from assay.methods import import_parts
    from assay.protocol import customise
    from assay.protocols import protocols

    import_parts(imports)
    return load(data), customise(protocols[protocol], settings)


def _facts(data: str, protocol: str, settings: Sequence[str], imports: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    from assay.data import splits as halves

    dataset, chosen = _load(data, protocol, settings, imports)
    trainval, _ = halves.of(dataset, chosen)
    per_class = np.bincount(dataset.labels, minlength=len(dataset.class_names))
    middle = int(np.median(per_class))
    trained_on = len(trainval.y)
    parts = [
        _part(f"fold {number}", trainval.y[fold.validation], dataset.class_names)
        for number, fold in enumerate(halves.folds(trainval, chosen.folds))
    ]
    parts.append(_part("test", dataset.labels[dataset.labels >= len(trainval.class_names)], dataset.class_names))
    return {
        "name": dataset.name,
        "look": dataset.look,
        "classes": len(dataset.class_names),
        "samples": len(dataset.labels),
        "samples_per_class": f"{per_class.min()} to {per_class.max()}, median {middle}",
        "classes_with_one_sample": int((per_class == 1).sum()),
        "trainval": f"{trainval.fingerprint} ({len(trainval.class_names)} classes, {trained_on} samples)",
        "notes": list(dataset.notes),
        "parts": parts,
    }


def _part(name: str, labels: Any, class_names: tuple[str, ...]) -> dict[str, Any]:
    import numpy as np

    present = np.unique(labels)
    return {
        "part": name,
        "classes": len(present),
        "samples": len(labels),
        "first": class_names[present[0]],
        "last": class_names[present[-1]],
    }
