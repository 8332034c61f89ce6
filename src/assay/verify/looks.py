"""Checks of looks at the test half: those of a store, and those in the index of the user."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.records.halves import KnownHalf, half_of_study, join_halves
from assay.records.looks import LookIndex, error_words, looks_around, share
from assay.records.run import TEST_CONTENTS
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.verify.finding import Finding


def check_contents(store: Store, record: StudyRecord) -> Iterator[str]:
    """Yield where the content hashes of the test half are not those of the opening of the seal."""
    if record.seal is None:
        return
    path = store.contents(record.seal.test)
    name = path.relative_to(store.root).as_posix()
    if not path.exists():
        if record.tests:  # a kill may come between the opening of the seal and this file
            yield f"{name}: the content hashes of the test half are missing"
    elif digest_file(path) != record.seal.contents:
        yield f"{name}: the content hashes of the test half were altered"


def check_looks(record: StudyRecord) -> Iterator[str]:
    """Yield looks that are not at a run of this study, or not at its test half."""
    for number, look in enumerate(record.looks, 1):
        if look.run not in record.runs:
            yield f"look {number} is at run {look.run[:12]}, which is not of this study"
        if record.seal is not None and look.test != record.seal.test:
            yield f"look {number} is at another test half than the study's"
        if record.seal is not None and not 0 <= look.samples <= record.seal.samples:
            yield (
                f"look {number} is at {look.samples} samples of a test half of"
                f" {record.seal.samples}"
            )


def count_looks(record: StudyRecord) -> str:
    """Return in words how many looks a study has recorded; empty where there are none."""
    if record.seal is None or not record.looks:
        return ""
    count, most = len(record.looks), max(look.samples for look in record.looks)
    return (
        f"{count} look{'s' * (count != 1)} recorded after the test scores, at"
        f" {'most ' * (count > 1)}{share(most, record.seal.samples)}"
    )


def check_contents_of_model(folder: Path, record: StudyRecord) -> Iterator[str]:
    """Yield where a model folder lacks the content hashes of what its study tested on."""
    if record.seal is None:
        return
    path = folder / TEST_CONTENTS
    if not path.exists() or digest_file(path) != record.seal.contents:
        yield f"{TEST_CONTENTS} is missing or was altered"


def find_indexed_looks(
    store: Store, records: Sequence[StudyRecord], index: LookIndex
) -> Iterator[Finding]:
    """Yield a note for each test half that the index of looks of this user has looks at.

    Nothing is wrong with a look. The index is no part of the store, so a file of it that cannot be
    read is a note too; so is a damaged file of content hashes, which `check_contents` reports.
    """
    halves, unread = list[KnownHalf](), dict[str, str]()
    for record in records:
        try:
            half = half_of_study(store, record)
        except BadInput as error:
            unread[_what(record.announced.data.name)] = error_words(error)
            continue
        halves += [half] if half else []
    for half in join_halves(halves):
        try:
            found = looks_around(index, store, half)
        except (BadInput, OSError, RuntimeError) as error:
            unread[_what(half.data)] = error_words(error)
            continue
        if found:
            yield Finding(_what(half.data), note=found)
    for what, why in unread.items():
        yield Finding(what, note=f"not read: {why}", skipped=True)


def _what(data: str) -> str:
    return f"index of looks: test half of {data}"
