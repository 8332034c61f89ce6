"""Checks of what an opened seal says of the data: problems of the test half, samples left out."""

from collections.abc import Iterator, Sequence

from assay.data.copies import NEARLY
from assay.records.announced_data import AnnouncedData
from assay.records.study import StudyRecord
from assay.study.conditions import Conditions
from assay.verify.finding import Finding

TITLE = "problems of the test half"

Problems = tuple[str, ...]


def check_same_problems(records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each test half that several seals were opened on.

    The same code finds the same problems in the same data. Near copies are found by the last digits
    of a cosine: others are noted, as merged stores of two machines may have them.
    """
    groups: dict[tuple[AnnouncedData, tuple[str, ...]], list[StudyRecord]] = {}
    for record in records:
        if (seal := record.seal) is not None:
            here = record.announced.environment
            which = seal.test, seal.contents, here.source, here.images
            groups.setdefault((record.announced.data, which), []).append(record)
    for group in groups.values():
        if len(group) > 1:
            yield _same_in(group)


def _same_in(group: Sequence[StudyRecord]) -> Finding:
    first, what = group[0], f"{group[0].announced.data.name}: {TITLE}"
    due = problems_of(first)
    others = [other for other in group if problems_of(other) != due]
    for other in others:
        if _exact(there := problems_of(other)) != _exact(due):
            differs = f"{first.method} and {other.method} have other problems of one test half"
            return Finding(what, f"{differs}: {_words(due)}, and {_words(there)}")
    if not others:
        return Finding(what)
    named = ", ".join(other.method for other in others)
    note = f"{first.method} and {named} have other problems of one test half, in near copies only"
    return Finding(what, note=note, trusted="; ".join(map(_trusted, others)))


def compare_problems(record: StudyRecord, conditions: Conditions, *, as_first: bool) -> Finding:
    """Return whether the seal says of the test half what the data give.

    `as_first` says whether this machine is seen to compute as the one that computed the study. What
    was left out is only noted: broken files may have been removed since.
    """
    assert record.seal is not None
    sealed, environment = conditions.test, record.announced.environment
    what = f"{record.title}: {TITLE}"
    there, here = problems_of(record), tuple(sealed.flaws.of_test)
    left_out = tuple(record.seal.left_out), tuple(sealed.left_out)
    notes = [
        f"left out of the test half: {_words(left_out[0])} in the ledger, {_words(left_out[1])}"
        " here"
    ] * (left_out[0] != left_out[1])
    if there == here:
        return Finding(what, note="; ".join(notes))
    differs = f"the seal names {_words(there)}; the data have {_words(here)}"
    same_code = environment.source == conditions.environment.source
    same_digits = as_first and environment.images == conditions.environment.images
    if same_code and (same_digits or _exact(there) != _exact(here)):
        return Finding(what, differs)
    why = "near copies, on another machine" if same_code else "another version of Assay found them"
    return Finding(what, note="; ".join([*notes, f"{differs} ({why})"]), trusted=_trusted(record))


def problems_of(record: StudyRecord) -> Problems:
    """Return the problems of the test half that the seal of a study names."""
    return record.seal.problems if record.seal else ()


def _exact(problems: Problems) -> Problems:
    """Return the problems that are found by hashes, the same on every machine."""
    return tuple(problem for problem in problems if NEARLY not in problem)


def _words(problems: Problems) -> str:
    return "; ".join(problems) or "none"


def _trusted(record: StudyRecord) -> str:
    return f"the problems that the seal of {record.title} names"
