"""The index of looks: samples that a user has searched or embedded, and test halves that the user's
studies have opened.

It is a folder of the user's (`assay.files.looks_folder`), for what no store can record: looks by
trunks, files of embeddings and models of no study, and looks before a study opens its test half.

- `looks.jsonl` has a line for every test half that a study opened, and for every evaluation or
  embedding of samples, in order;
- `samples/<hash>.u64` has the prints of the samples of a line (`assay.records.halves`).

It helps against mistakes, not against a cheat: who wants to can remove the folder, name another
one, or change one pixel of an image.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput, reason_of
from assay.files import (
    append_line,
    cut_torn_line,
    lock_in_turn,
    looks_folder,
    parse_json,
    read_bytes,
    remove_drafts_in,
    write_atomically,
)
from assay.hashing import canonical, digest_bytes
from assay.records.codec import Record, Tagged
from assay.records.halves import KnownHalf, Prints, half_of_study, join_halves, marks_of
from assay.records.store import Store
from assay.records.study import StudyRecord

REMEDY = "; set ASSAY_LOOKS to a folder that can be written to"
"""End of a message about an index of looks that cannot be used."""


@dataclass(frozen=True)
class IndexedHalf(Tagged):
    """A test half that a study opened.

    Args:
        data: name of its data set.
        samples: hash that names the file of its samples.
        store: folder of the study's store.
        study: key of the study.
        method: method of the study.
        trainval: fingerprint of the half that the study worked on.
    """

    kind: ClassVar[str] = "half"
    data: str
    samples: str
    store: str
    study: str
    method: str
    trainval: str


@dataclass(frozen=True)
class IndexedLook(Tagged):
    """An evaluation or embedding of samples.

    Args:
        data: name of the data set.
        samples: hash that names the file of the samples that were searched or embedded.
        by: the command and the model or file that looked.
    """

    kind: ClassVar[str] = "look"
    data: str
    samples: str
    by: str


@dataclass(frozen=True)
class IndexLine(Record):
    """A line of the index, and when it was written."""

    at: str
    entry: IndexedHalf | IndexedLook


@dataclass(frozen=True)
class LookBeside(Record):
    """A line of `looks.jsonl` in a model folder outside a store.

    Args:
        at: when it was written.
        data: name of the data set.
        test: fingerprint of its test half, where that was asked for.
        samples: how many samples of the test half of the model's study it saw; of a model of no
            study, all that it saw.
        metrics: scores of all that was searched; none where samples were embedded.
    """

    at: str
    data: str
    test: str
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Sighting:
    """A line of the index that has samples of a test half.

    Args:
        line: the line.
        rows: marks of the samples of the half that it has, in the order of the half's prints.
    """

    line: IndexLine
    rows: NDArray[np.bool_]


class LookIndex:
    """The index of looks in a folder; that of the user where none is given.

    Files of samples never change, so each is read once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = looks_folder() if folder is None else folder
        self.file = self.folder / "looks.jsonl"
        self._read: dict[str, Prints] = {}

    def lines(self) -> list[IndexLine]:
        """Return all lines in order; a torn last one is not yet a line."""
        if not self.file.exists():
            return []
        whole = read_bytes(self.file).split(b"\n")[:-1]
        return [self._parse(number, text) for number, text in enumerate(whole, 1)]

    def _parse(self, number: int, text: bytes) -> IndexLine:
        where = f"{self.file}, line {number}"
        try:
            document = parse_json(text)
        except ValueError:
            raise BadInput(f"{where} is no line of an index of looks; remove that line") from None
        return IndexLine.from_json(document, where)

    def halves(self) -> list[KnownHalf]:
        """Return the test halves that studies opened."""
        return join_halves(
            KnownHalf(
                entry.data,
                self._prints(entry.samples),
                frozenset([entry.trainval]),
                {entry.study: entry.method},
            )
            for line in self.lines()
            if isinstance(entry := line.entry, IndexedHalf)
        )

    def sightings(self, prints: Prints) -> list[Sighting]:
        """Return the lines that have some of the samples with these prints, in order."""
        marks: dict[str, NDArray[np.bool_]] = {}
        found = []
        for line in self.lines():
            name = line.entry.samples
            if name not in marks:
                marks[name] = marks_of(prints, self._prints(name))
            if marks[name].any():
                found.append(Sighting(line, marks[name]))
        return found

    def looks(self, prints: Prints) -> list[Sighting]:
        """Return the looks at some of the samples with these prints, in order."""
        return _apart(self.sightings(prints))[0]

    def has_half_of(self, store: str, prints: Prints) -> bool:
        """Return whether a store has opened just these samples; reads no file of samples."""
        samples = digest_bytes(prints.tobytes())
        halves = (entry for line in self.lines() if isinstance(entry := line.entry, IndexedHalf))
        return any((half.store, half.samples) == (store, samples) for half in halves)

    def enter_half(self, store: Store, record: StudyRecord, prints: Prints) -> None:
        """Enter the test half that a study opened, once."""
        announced = record.announced.data
        with self._appending():
            entry = IndexedHalf(
                data=announced.name,
                samples=self._place(prints),
                store=str(store.root.resolve()),
                study=record.key,
                method=record.method,
                trainval=announced.trainval,
            )
            if entry not in [line.entry for line in self.lines()]:
                self._append(entry)

    def enter_look(self, data: str, prints: Prints, by: str) -> None:
        """Enter an evaluation or embedding of samples."""
        with self._appending():
            self._append(IndexedLook(data, self._place(prints), by))

    @contextmanager
    def _appending(self) -> Iterator[None]:
        """Keep other processes from appending, and remove what a killed one left unfinished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock_in_turn(self.folder / "lock", lambda: None):
            cut_torn_line(self.file)
            remove_drafts_in(self.folder / "samples")
            yield

    def _append(self, entry: IndexedHalf | IndexedLook) -> None:
        line = IndexLine(datetime.now(UTC).isoformat(timespec="seconds"), entry)
        append_line(self.file, canonical(line.to_json()))

    def _place(self, prints: Prints) -> str:
        """Write the file of these samples unless it is there, and return the hash that names it."""
        content = prints.tobytes()
        name = digest_bytes(content)
        if not self._samples(name).exists():
            write_atomically(self._samples(name), content)
        return name

    def _prints(self, name: str) -> Prints:
        if name not in self._read:
            path = self._samples(name)
            content = read_bytes(path) if path.exists() else None
            if content is None or digest_bytes(content) != name:
                raise BadInput(
                    f"{path} is missing or was altered; restore it, or remove the lines that name"
                    f" it from {self.file}"
                )
            self._read[name] = np.frombuffer(content, dtype="<u8")
        return self._read[name]

    def _samples(self, name: str) -> Path:
        return self.folder / "samples" / f"{name}.u64"


# --- What it says of a test half ---


def enter_opened_half(store: Store, record: StudyRecord, say: Callable[[str], None]) -> None:
    """Enter a test half that a study has just opened, and report earlier looks at it.

    Nothing of that goes into the store, which must be the same bytes for every user. A study goes
    on without the index where that cannot be used.
    """
    half = half_of_study(store, record)
    assert half is not None, "its content hashes have just been written"
    try:
        index = LookIndex()
        earlier = _before(index, store, half)
        if earlier:
            say(f"before this test half was opened, {earlier} ({index.folder})")
        index.enter_half(store, record, half.prints)
    except (OSError, RuntimeError, BadInput) as error:
        remedy = "" if isinstance(error, BadInput) else REMEDY
        say(f"the test half is not entered in the index of looks: {error_words(error)}{remedy}")


def error_words(error: Exception) -> str:
    """Return why the index cannot be used, with the file that an `OSError` is about."""
    file = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    return f"{file}{reason_of(error)}"


def _before(index: LookIndex, store: Store, half: KnownHalf) -> str:
    """Return in words what the index has of a test half that a store is about to open.

    Empty where it has nothing, or where another study of the store has opened and reported it.
    """
    here = str(store.root.resolve())
    if index.has_half_of(here, half.prints):
        return ""
    looks, openings = _apart(index.sightings(half.prints))
    stores = sorted({opening.store for opening in openings})
    if here in stores:
        return ""
    said = []
    if looks:
        rows = np.logical_or.reduce([one.rows for one in looks])
        said.append(f"{share(int(rows.sum()), len(rows))} were looked at {_times(looks)}")
    if stores:
        more = f" and {len(stores) - 1} more" if len(stores) > 1 else ""
        said.append(f"studies of {stores[0]}{more} opened samples of it")
    return "; ".join(said)


def looks_around(index: LookIndex, store: Store, half: KnownHalf) -> str:
    """Return in words the looks of the index at a test half of a store; empty without any."""
    found = index.sightings(half.prints)
    looks, openings = _apart(found)
    if not looks:
        return ""
    first = next((one for one in openings if one.store == str(store.root.resolve())), None)
    entries = [one.line.entry for one in found]
    early = _apart(found[: entries.index(first)])[0] if first else []
    when = f", {len(early)} before it was opened here" if first else ""
    return f"looked at {_times(looks)}{when} ({index.folder})"


def _apart(found: Sequence[Sighting]) -> tuple[list[Sighting], list[IndexedHalf]]:
    """Return the looks, and the openings by studies."""
    looks = [one for one in found if isinstance(one.line.entry, IndexedLook)]
    return looks, [entry for one in found if isinstance(entry := one.line.entry, IndexedHalf)]


def share(count: int, total: int) -> str:
    """Return a share of the samples of a test half in words.

    >>> share(37, 80)
    '37 of 80 samples (46%)'
    """
    percent = 100 * count / total
    words = "<1" if 0 < percent < 1 else ">99" if 99 < percent < 100 else f"{percent:.0f}"
    return f"{count:,} of {total:,} samples ({words}%)"


def _times(looks: Sequence[Sighting]) -> str:
    last = looks[-1].line
    assert isinstance(last.entry, IndexedLook)
    times = "once," if len(looks) == 1 else f"{len(looks)} times, last"
    return f"{times} by {last.entry.by} on {last.entry.data} ({last.at})"
