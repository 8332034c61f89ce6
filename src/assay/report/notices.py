"""Notices that a careful reader needs beside the scores."""

from collections import Counter

from assay.protocols import as_text
from assay.protocols.protocol import LISTED
from assay.records.study import StudyRecord
from assay.stats import alpha_of_look
from assay.tables import Across, Comparison, Sweep
from assay.tables.studies import generation_of
from assay.tables.sweep import point_of
from assay.tables.table import number_of


def notices_of(comparison: Comparison) -> list[str]:
    """Return the notices of a comparison, the general ones first."""
    notices = [*comparison.problems]
    if comparison.pretrained_on is not None:
        notices.append(
            f"The trunk was pretrained on {comparison.pretrained_on}. Classes or images of the test"
            " half that are in there have been seen before: scores say how methods compare on this"
            " trunk, not how well unseen classes are separated."
        )
    notices += given_notices(comparison)
    resolved = comparison.announced.protocol.resolved
    if resolved.trunk != "identity" and resolved.frozen != "trunk":
        notices.append(f"Training images: {resolved.augment.in_words}.")
    notices += _own_samplers(comparison)
    notices += [_unfinished(record) for record in comparison.unfinished]
    notices += [
        f"{record.method}: begun again; the study of generation {generation_of(record)} is kept,"
        " and stands in no table."
        for record in comparison.replaced
    ]
    for record in comparison.records:
        notices += [*_looks(comparison, record), *_of_study(record)]
    return notices


def notices_of_sweep(sweep: Sweep) -> list[str]:
    """Return which values are missing, which batches hold one class, and which runs diverged."""
    notices = [
        f"{_place(record)}: not finished; run the same sweep again to continue."
        for record in sweep.unfinished
    ]
    return notices + [
        f"{_place(record)}: {text}"
        for record in sweep.records
        for text in (*_of_one_class(record), *_diverged(record))
    ]


def departures_of(comparison: Comparison) -> list[tuple[str, str]]:
    """Return where protocol and methods depart from their papers, with the name of each."""
    protocol = [
        (comparison.protocol, text) for text in comparison.announced.protocol.resolved.departures
    ]
    records = (*comparison.records, *comparison.unfinished)
    return protocol + [
        (record.method, text) for record in records for text in record.announced.method.departures
    ]


def changes_of(comparison: Comparison) -> list[str]:
    """Return the settings that --set changed in the published protocol."""
    settings = comparison.announced.protocol.settings
    return [one for one in settings if not one.startswith("weights=")]  # these stand elsewhere


def _looks(comparison: Comparison, record: StudyRecord) -> list[str]:
    """Return a notice where the study was announced after others on its question."""
    look = comparison.family.looks[record.method]
    bench = next(
        (
            bench
            for bench in comparison.benches
            if record.key in bench.studies and bench.look == look
        ),
        None,
    )
    if bench is None or look == 1:
        earlier = comparison.added.get(record.method)
        said = f"{record.method}: added to the bench later, after {', '.join(earlier or ())}"
        return [f"{said} had been announced, and before their test scores."] if earlier else []
    level, when = 1 - alpha_of_look(look), f"after {number_of(len(bench.after), 'study')}"
    if not bench.after:  # stores were merged, and each had its own first look
        when = "in another store than a bench"
    before = f"{record.method}: declared {when} on the same question (look {look})"
    return [f"{before}: its verdicts are at a stricter level, {level:.3g}."]


def _own_samplers(comparison: Comparison) -> list[str]:
    """Return a notice that names the methods which the protocol's sampler does not serve."""
    common = comparison.announced.protocol.resolved.sampler
    own = [
        f"{record.method} ({sampler})"
        for record in (*comparison.records, *comparison.unfinished)
        if (sampler := record.announced.method.sampler) not in (None, common)
    ]
    if not own:
        return []
    return [
        f"Batches from a sampler of their own, not from {common} as the protocol has it:"
        f" {', '.join(own)}."
    ]


def given_notices(section: Comparison | Across) -> list[str]:
    """Return a notice that nothing was searched, where this is so."""
    if section.given_by is None:
        return []
    return [
        f"Nothing was searched here: parameters {section.given_by}. Searched methods stand in a"
        " table of their own."
    ]


def _unfinished(record: StudyRecord) -> str:
    if record.failed:
        which = "trials of a search" if record.searches > 1 else f"{len(record.trials)} trials"
        return (
            f"{record.method}: all {which} diverged, so nothing was selected and there is no test"
            " score."
        )
    again = " after it was begun again" if generation_of(record) else ""
    return f"{record.method}: not finished{again}; run the same bench again to continue it."


def _of_study(record: StudyRecord) -> list[str]:
    notices = []
    if record.resolved.supervision == "images" and not record.announced.method.baseline:
        notices.append(
            f"{record.method}: training knew no classes; each image was a class of its own, and its"
            " augmented views the only positives."
        )
    if record.resolved.supervision in LISTED and not record.announced.method.baseline:
        notices.append(f"{record.method}: {_of_lists(record)}")
    if own := record.resolved.exceptions.get(record.trained_method):
        settings = ", ".join(as_text(name, value) for name, value in own.items())
        notices.append(f"{record.method}: the protocol makes an exception for it: {settings}.")
    if record.announced.method.batch_shrunk:
        classes, images = record.announced.method.batch
        notices.append(
            f"{record.method}: a fold trains on fewer classes than the protocol's batch holds, so"
            f" batches were {classes} classes x {images} images."
        )
    notices += [f"{record.method}: {text}" for text in _of_one_class(record)]
    lost = {
        "diverged": sum(trial.status == "failed" for trial in record.trials),
        "were given up after their first fold": sum(
            trial.status == "pruned" for trial in record.trials
        ),
    }
    notices += [
        f"{record.method}: {count} of {len(record.trials)} trials {what}; they count in the budget."
        for what, count in lost.items()
        if count
    ]
    notices += [f"{record.method}: {text}" for text in _diverged(record)]
    return notices + _edges(record)


def _of_lists(record: StudyRecord) -> str:
    """Return a notice that training was told listed pairs or triplets alone, and how many."""
    told, given = record.resolved.supervision, record.announced.data.relations
    said = f"training was told no classes; only listed {told} were compared."
    if given is None:
        return said
    words = given.in_words
    return f"{said} {words[0].upper()}{words[1:]}."


def _of_one_class(record: StudyRecord) -> list[str]:
    """Return a notice where each training batch is of a single class."""
    classes, images = record.announced.method.batch
    listed = record.resolved.supervision in LISTED
    if classes > 1 or listed or record.announced.method.baseline:
        return []
    return [
        f"each batch was {images} images of one class, so a method without class weights saw no"
        " negatives."
    ]


def _edges(record: StudyRecord) -> list[str]:
    """Return the ends of ranges that searches chose, with the number of these searches."""
    found = Counter(
        (name, edge.end, edge.bound)
        for selection in record.selections
        for name, edge in selection.edges.items()
        if not edge.natural
    )
    return [
        f"{record.method}: the chosen {name} lies at the {end} end of its range"
        f" ({bound:g})"
        + (f" in {count} of {record.searches} searches" if record.searches > 1 else "")
        + "; a wider range might do better."
        for (name, end, bound), count in found.items()
    ]


def _place(record: StudyRecord) -> str:
    """Return the position of a study in its sweep."""
    point = point_of(record)
    return f"{record.method} at {point.field}={point.value}"


def _diverged(record: StudyRecord) -> list[str]:
    diverged = sum(run.status == "diverged" for run in record.reproductions)
    if not diverged:
        return []
    return [
        f"{diverged} of {len(record.reproductions)} reproduction runs diverged; the best checkpoint"
        " before that was scored."
    ]
