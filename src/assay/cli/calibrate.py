"""`assay calibrate`: from validation pairs to thresholds that can be trusted."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import (
    DataOption,
    Device,
    DeviceOption,
    ImportsOption,
    JsonOption,
    ProtocolOption,
    SettingsOption,
    SkipBrokenOption,
    choose_protocol,
    data_or_name,
)
from assay.cli.show import note, print_json, print_table
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.index.calibration import Calibration, Gallery, Limits, Threshold
    from assay.index.calibration.open_set import OpenSet

UNREACHED = "no threshold reaches it: the model confuses such classes too often"


def calibrate(
    what: Annotated[
        str,
        typer.Argument(metavar="INDEX|MODEL", help="An index, a model folder, or a trunk by name."),
    ],
    data: DataOption,
    precision: Annotated[
        float, typer.Option(min=0, max=1, help="Wanted share of accepted matches that are right.")
    ] = 0.95,
    rate: Annotated[
        float | None,
        typer.Option(
            "--false-match-rate",
            min=0,
            max=1,
            help="Wanted share of pairs of two classes that are accepted.",
        ),
    ] = None,
    same: Annotated[
        float | None,
        typer.Option(
            help="Images of the query's class in the gallery; by default as the index's labels, or"
            " the data, say."
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Images in the gallery; by default those of the index, or of the data."),
    ] = None,
    open_set: Annotated[
        bool,
        typer.Option("--open-set", help="Also evaluate identification where classes are unknown."),
    ] = False,
    protocol: ProtocolOption = "quick",
    settings: SettingsOption = None,
    imports: ImportsOption = None,
    device: DeviceOption = Device.auto,
    skip_broken: SkipBrokenOption = False,
    json: JsonOption = False,
) -> None:
    """Find the score from which matches can be trusted, on classes that were not trained on.

    `calibration.json` is written into the index or the model folder; `assay search` then shows
    confidences and takes --min-precision. Of DATA, only the trainval half is used: the fold that
    the model held out, or all of other data.

    Example: assay calibrate birds.index --data folder:birds --precision 0.95
    """
    from assay.cli.progress import follow
    from assay.index.calibration import AskedGallery
    from assay.index.calibration.open_set import evaluate_open_set
    from assay.index.calibration.validation import ModelToCalibrate, calibrate_model, validation_of

    chosen = choose_protocol(protocol, settings, imports)
    for option, value in (("--precision", precision), ("--false-match-rate", rate)):
        if value is not None and not 0 < value < 1:
            raise BadInput(f"{option} {value:g}: give a number between 0 and 1")
    with follow() as progress:
        model = ModelToCalibrate.of(what, device.value)
        given = data_or_name(data, skip_broken, progress)
        validation = validation_of(model, given, protocol=chosen, progress=progress)
        said = AskedGallery(images, same) if images is not None or same is not None else None
        found = calibrate_model(model, validation, said, progress)
        unknown: OpenSet | None = None
        if open_set:
            own = validation.without_copies()
            unknown = evaluate_open_set(own.z, own.y, model.similarity, progress=progress)
    gallery = _gallery(what if model.is_index else None, found, same, images)
    answers = _answers(found, gallery, precision, rate)
    for text in validation.notes:
        note(text)
    if model.folder is None:
        note(f"{what} is a pretrained trunk without a folder: no {_file()} was written")
    if json:
        print_json(_document(what, found, gallery, answers, unknown))
        return
    _print(what, found, gallery, answers, unknown)
    if model.folder is not None:
        print(f"calibration: {model.folder / _file()}")


def _file() -> str:
    from assay.index.calibration import CALIBRATION

    return CALIBRATION


def _gallery(
    index: str | None, found: "Calibration", same: float | None, images: int | None
) -> "Gallery":
    """Return the gallery that was asked for: the index's own, but for what options say."""
    from assay.index.calibration import Gallery
    from assay.index.index import Index

    own = found.gallery
    if index is not None:
        with Index.open(index) as opened:
            if opened.gallery is None:
                note(
                    f"{index} has no class for most of its images, so it is not known how many show"
                    " what a query shows: the numbers are for a gallery like the data, and searches"
                    " have no confidence; give --same N"
                )
            own = opened.gallery or own
    return Gallery(own.images if images is None else images, own.same if same is None else same)


def _answers(
    found: "Calibration", gallery: "Gallery", precision: float, rate: float | None
) -> dict[str, dict[str, "Threshold | str"]]:
    """Return both thresholds for each wish, or why there is none."""
    from assay.index.calibration import Choice, TooFew

    answers: dict[str, dict[str, Threshold | str]] = {}
    choices: tuple[Choice, Choice] = ("cautious", "estimate")
    for name, wanted in (("precision", precision), ("false-match rate", rate)):
        for choice in choices if wanted is not None else ():
            find = (
                found.threshold_for_precision
                if name == "precision"
                else found.threshold_for_false_matches
            )
            try:
                answer = find(wanted, gallery, choice) or UNREACHED  # type: ignore[arg-type]
            except TooFew as error:
                answer = str(error)
            answers.setdefault(f"{name} {wanted:g}", {})[choice] = answer
    return answers


def _document(
    what: str,
    found: "Calibration",
    gallery: "Gallery",
    answers: dict[str, dict[str, "Threshold | str"]],
    unknown: "OpenSet | None",
) -> dict[str, Any]:
    """Return the result for programs; the curve is in the file."""
    about = {name: value for name, value in found.to_json().items() if name != "curve"}
    return {
        "what": what,
        "calibration": about,
        "gallery": {"images": gallery.images, "same": gallery.same},
        "thresholds": {
            name: {
                choice: {"refused": answer} if isinstance(answer, str) else answer.to_json()
                for choice, answer in both.items()
            }
            for name, both in answers.items()
        },
        "open_set": None if unknown is None else unknown.to_json(),
    }


def _print(
    what: str,
    found: "Calibration",
    gallery: "Gallery",
    answers: dict[str, dict[str, "Threshold | str"]],
    unknown: "OpenSet | None",
) -> None:
    columns = [
        "wanted",
        "choice",
        "threshold",
        "interval",
        "precision",
        "interval",
        "true matches found",
        "classes",
    ]
    rows = [
        [name, choice, *_cells(answer)]
        for name, both in answers.items()
        for choice, answer in both.items()
        if not isinstance(answer, str)
    ]
    if rows:
        title = (
            f"{what} on {found.of.data}: scores by {found.of.similarity}, 95% limits over classes"
        )
        print_table(columns, rows, title=title, right=range(2, len(columns)))
    for name, both in answers.items():
        for choice, answer in both.items():
            if isinstance(answer, str):
                print(f"{name}, {choice}: {answer}")
    print(
        f"from {found.classes} classes, {found.images:,} images ({found.copies:,} copies left out),"
        f" {found.same_pairs:,} pairs of one class and {found.other_pairs:,} of two, of"
        f" {found.of.split}"
    )
    print(
        f"for a gallery of {gallery.images:,.0f} images, {gallery.same:.3g} of the query's class;"
        " the numbers cover new classes like those of the data, each counted equally, not other"
        " kinds of images"
    )
    if unknown is not None:
        _print_unknown(unknown)


def _cells(answer: "Threshold") -> list[str]:
    high = "none" if answer.high is None else f"{answer.high:.4f}"
    precision = answer.precision
    return [
        f"{answer.score:.4f}",
        f"[{answer.low:.4f}, {high}]",
        "-" if precision is None else f"{precision.value:.3f}",
        "-" if precision is None else f"[{precision.low:.3f}, {precision.high:.3f}]",
        _limits(answer.found),
        str(answer.classes),
    ]


def _limits(limits: "Limits") -> str:
    return f"{limits.value:.3f} [{limits.low:.3f}, {limits.high:.3f}]"


def _print_unknown(unknown: "OpenSet") -> None:
    rows = [["GAP", _limits(unknown.gap)]]
    rows += [
        [
            f"found and named at {rate:g} false alarms",
            "-" if limits is None else _limits(limits),
        ]
        for rate, limits in zip(unknown.rates, unknown.detected, strict=True)
    ]
    title = (
        f"identification with unknowns: {unknown.known} classes enrolled, {unknown.unknown}"
        f" unknown, {unknown.splits} splits"
    )
    print_table(["score", "value, 95% limits"], rows, title=title, right=(1,))
