"""`assay data`: look at a data set before anything is trained on it, and prepare it."""

import csv
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.command import Command
from assay.cli.options import (
    ForceOption,
    ImportsOption,
    ProtocolOption,
    SettingsOption,
    SkipBrokenOption,
    check_free,
    choose_protocol,
    read_data,
)
from assay.cli.show import print_json, size
from assay.cli.survey import print_splitting, print_survey
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.data import Dataset
    from assay.data.seal import SealedTest
    from assay.data.splits import TrainVal
    from assay.protocols import FirstStep, ImageForm, Protocol, ResolvedProtocol

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="A name or kind:path, see `assay list datasets`.")
]

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


data_commands = typer.Typer(
    no_args_is_help=True,
    help="Look at a data set and prepare it: show, prepare, splits.",
    rich_markup_mode="rich",
)


@data_commands.command(cls=Command)
def show(
    data: DataArgument,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    sheet: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw a contact sheet: images of some classes."),
    ] = None,
    imports: ImportsOption = None,
    skip_broken: SkipBrokenOption = False,
    force: ForceOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs; every list is complete.")
    ] = False,
) -> None:
    """Show classes, sizes, splits and problems: broken files, copies, leaks into the test half.

    Example: assay data show folder:birds --sheet birds.png
    """
    from assay.cli.progress import follow
    from assay.data import inspect, load_without_broken
    from assay.data.contact_sheet import check_sheet, write_sheet
    from assay.data.splits import describe_splits
    from assay.data.survey import survey

    if sheet is not None:
        check_sheet(sheet)
        check_free("--sheet", sheet, force)
    chosen = choose_protocol(protocol, settings, imports)
    with follow() as progress:
        dataset = (load_without_broken if skip_broken else inspect)(data, progress)
    if sheet is not None:
        write_sheet(sheet, dataset)
    surveyed, splitting = survey(dataset), describe_splits(dataset, chosen)
    if json:
        print_json({**vars(surveyed), **vars(splitting), "sheet": sheet and str(sheet)})
    else:
        print_survey(surveyed)
        print_splitting(splitting)
        if sheet is not None:
            print(f"\ncontact sheet: {sheet}")
    if splitting.no_splits is not None:
        raise BadInput(splitting.no_splits)


@data_commands.command(cls=Command)
def prepare(
    data: DataArgument,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    jpeg: Annotated[
        bool,
        typer.Option("--jpeg", help="Keep images as JPEG: a fifth of the disk, more work to read."),
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Refuse to use more disk than this, such as 10GB."),
    ] = None,
    imports: ImportsOption = None,
    skip_broken: SkipBrokenOption = False,
) -> None:
    """Scale all images once and pack them into the cache, as the first bench would do.

    After any interruption, run the same command again: it continues.

    Example: assay data prepare folder:birds --limit 10GB
    """
    from assay.data import splits
    from assay.data.packs import expected_bytes
    from assay.protocols import resolve
    from assay.trunks import trunk_facts

    most = None if limit is None else _bytes(limit)
    dataset, chosen = _read(data, protocol, settings, imports, skip_broken)
    trainval, test = splits.of(dataset, chosen)
    resolved = resolve(chosen, dataset.modality, trunk_facts)
    if resolved.frozen == "trunk":
        print(
            f"nothing to prepare: {chosen.name} keeps the trunk {resolved.trunk} frozen, "
            "and its features of the images are computed once, at the first bench"
        )
        return
    if jpeg and dataset.modality == "features":
        raise BadInput(
            f"{dataset.name} holds vectors, which cannot be kept as JPEG; leave out --jpeg"
        )
    form: ImageForm = "jpeg" if jpeg else resolved.form
    step = resolved.first_step
    needed = expected_bytes(trainval, step, form) + test.packed_bytes(step, form)
    _announce(dataset, resolved, form, needed, most)
    _pack(trainval, test, step, form)


@data_commands.command(cls=Command)
def splits(
    data: DataArgument,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    imports: ImportsOption = None,
    skip_broken: SkipBrokenOption = False,
) -> None:
    """Print the part of each sample as CSV: its fold or test, and marks of query and gallery.

    Example: assay data splits folder:birds > splits.csv
    """
    from assay.data.splits import listing

    dataset, chosen = _read(data, protocol, settings, imports, skip_broken)
    columns = listing(dataset, chosen)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def _read(
    data: str,
    protocol: str,
    settings: list[str] | None,
    imports: list[str] | None,
    skip_broken: bool,
) -> "tuple[Dataset, Protocol]":
    """Read the data set, with progress on stderr; return it with the protocol that splits it."""
    from assay.cli.progress import follow

    chosen = choose_protocol(protocol, settings, imports)
    with follow() as progress:
        return read_data(data, skip_broken, progress), chosen


# --- prepare --------------------------------------------------------------------------------------


def _announce(
    dataset: "Dataset",
    protocol: "ResolvedProtocol",
    form: "ImageForm",
    needed: int,
    most: int | None,
) -> None:
    """Print what will be written and where; raise `BadInput` above the limit."""
    if most is not None and needed > most:
        raise _above(most, needed, dataset, protocol, form)
    folder = _packs()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    kept = {"pixels": "", "jpeg": "about "}[form]
    stored = _stored(protocol.first_step, form)
    print(f"{dataset.name} under {protocol.name}: {len(dataset):,} {stored}")
    print(
        f"{kept}{size(needed)} in {folder}, where {size(shutil.disk_usage(there).free)} are free",
        flush=True,
    )


def _above(
    most: int, needed: int, dataset: "Dataset", protocol: "ResolvedProtocol", form: "ImageForm"
) -> BadInput:
    remedies = ["raise the limit"]
    if dataset.modality != "features":
        side, now = (
            ("size", protocol.size) if protocol.stored is None else ("stored", protocol.stored)
        )
        remedies.insert(0, f"scale the images to a smaller side with --set {side}=... (now {now})")
    if dataset.modality != "features" and form == "pixels":
        remedies.insert(0, "keep them as JPEG with --jpeg (about a fifth)")
    return BadInput(
        f"{dataset.name} needs {size(needed)}, above --limit {size(most)}; {', or '.join(remedies)}"
    )


def _stored(step: "FirstStep", form: "ImageForm") -> str:
    if not step.side:
        return "vectors"
    kinds = {
        "square": "central square scaled to {0} x {0}",
        "short": "short side scaled to {0}",
        "stretch": "stretched to {0} x {0}",
    }
    return (
        f"images, {kinds[step.kind].format(step.side)} pixels, kept as"
        f" {'JPEG' if form == 'jpeg' else 'pixels'}"
    )


def _packs() -> Path:
    from assay.files import cache_folder

    return cache_folder() / "packs"


def _pack(trainval: "TrainVal", test: "SealedTest", step: "FirstStep", form: "ImageForm") -> None:
    """Pack both halves, each with a bar of its own."""
    from assay.cli.progress import follow
    from assay.data.packs import place_pack

    def there() -> set[Path]:
        return set(_packs().glob("*")) if _packs().is_dir() else set()

    before = there()
    with follow() as progress:
        place_pack(trainval, step, form, lambda what, *at: progress(f"trainval: {what}", *at))
        test.pack(step, form, lambda what, *at: progress(f"test: {what}", *at))
    print(
        "packed both halves"
        if there() - before
        else "nothing left to do: both halves are packed already"
    )


def _bytes(text: str) -> int:
    """Return a size as people write it, in bytes.

    >>> _bytes("10GB"), _bytes("1.5 mb")
    (10000000000, 1500000)
    """
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([kmgt]?b?)", text.strip(), re.IGNORECASE
    )
    if match is None:
        raise BadInput(f"--limit {text}: write a size such as 500MB or 10GB")
    unit = match[2].upper()
    return int(float(match[1]) * UNITS[unit if not unit or unit.endswith("B") else f"{unit}B"])
