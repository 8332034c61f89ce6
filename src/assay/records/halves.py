"""Test halves that studies have opened, known by the content of their samples.

A sample is known by the hash of its content (`Items.digest`), whatever its name, label or place.
When the seal of a study opens, the hashes of its test half are written to the store
(`answers/<half>.sha256`, one in a line) and later to the folder of its model (`test_half.sha256`).
Before that nothing has them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.files import read_text
from assay.hashing import digest_bytes
from assay.records.run import CARD, TEST_CONTENTS, ModelCard
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records

Prints = NDArray[np.uint64]
"""The first 64 bits of content hashes, sorted; a content that occurs twice is there twice."""

BLOCK = 4096
"""Rows of a file of embeddings that are hashed at a time."""

NAMED = 3
"""Methods that a sentence names; of more it gives the number."""


@dataclass(frozen=True, eq=False)
class KnownHalf:
    """A test half that studies have opened.

    Args:
        data: name of its data set.
        prints: of its samples.
        trainvals: fingerprints of the trainval halves of these studies.
        studies: names of their methods, by the keys of the studies.
    """

    data: str
    prints: Prints = field(repr=False)
    trainvals: frozenset[str]
    studies: Mapping[str, str]

    @property
    def identity(self) -> bytes:
        """Bytes that are equal for equal samples."""
        return self.prints.tobytes()

    def count_in(self, prints: Prints) -> int:
        """Return how many of its samples are among others."""
        return int(marks_of(self.prints, prints).sum())

    def opened_by(self) -> str:
        """Return in words which studies opened it."""
        methods = list(dict.fromkeys(filter(None, self.studies.values())))
        if not methods:
            return f"a study of {self.data}"
        more = f" and {len(methods) - NAMED} more" if len(methods) > NAMED else ""
        studies = "study" if len(self.studies) == 1 else "studies"
        return f"the {studies} of {', '.join(methods[:NAMED])}{more}"


def prints_of(contents: Sequence[str]) -> Prints:
    """Return the prints of content hashes.

    >>> prints_of(["00000000000000020f", "00000000000000010f"])
    array([1, 2], dtype=uint64)
    """
    return np.sort(np.array([int(hash_[:16], 16) for hash_ in contents], dtype="<u8"))


def prints_of_rows(z: NDArray[Any]) -> Prints:
    """Return the prints of vectors as `features:` holds them, in single precision.

    A memory-mapped file of any length is read in blocks.
    """
    found = np.empty(len(z), dtype=">u8")
    for start in range(0, len(z), BLOCK):
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(z[start : start + BLOCK], dtype=np.float32)
        hashes = b"".join(sha256(row).digest()[:8] for row in rows)
        found[start : start + BLOCK] = np.frombuffer(hashes, dtype=">u8")
    return np.sort(found.astype("<u8"))


def marks_of(prints: Prints, others: Prints) -> NDArray[np.bool_]:
    """Return which of some prints are among others.

    >>> marks_of(prints_of(["1" * 64, "2" * 64, "2" * 64]), prints_of(["2" * 64]))
    array([False,  True,  True])
    """
    if len(others) == 0:
        return np.zeros(len(prints), dtype=np.bool_)
    places = np.searchsorted(others, prints)  # both are sorted: quicker than np.isin
    found: NDArray[np.bool_] = others[np.minimum(places, len(others) - 1)] == prints
    return found


def pack_contents(contents: Sequence[str]) -> bytes:
    """Return content hashes as a file holds them: one in a line, sample after sample."""
    return "".join(f"{hash_}\n" for hash_ in contents).encode()


def fingerprint_of_contents(contents: Sequence[str]) -> str:
    """Return the hash of the file of content hashes, which the opening of the seal records."""
    return digest_bytes(pack_contents(contents))


def join_halves(halves: Iterable[KnownHalf]) -> list[KnownHalf]:
    """Return each test half once, with all studies that opened it."""
    found: dict[bytes, KnownHalf] = {}
    for half in halves:
        known = found.get(half.identity, half)
        found[half.identity] = replace(
            known,
            trainvals=known.trainvals | half.trainvals,
            studies={**known.studies, **half.studies},
        )
    return list(found.values())


def half_of_study(store: Store, record: StudyRecord) -> KnownHalf | None:
    """Return the test half that a study opened; None where its seal is closed."""
    prints = None if record.seal is None else _read_prints(store.contents(record.seal.test))
    if prints is None:
        return None
    announced = record.announced.data
    return KnownHalf(
        announced.name, prints, frozenset([announced.trainval]), {record.key: record.method}
    )


def opened_halves(store: Store) -> Iterator[tuple[StudyRecord, KnownHalf]]:
    """Yield each study of a store that has opened its test half, with that half."""
    for record in study_records(store):
        if half := half_of_study(store, record):
            yield record, half


def half_of_model(folder: Path) -> KnownHalf | None:
    """Return the test half of the study that wrote a model folder; None where no study did."""
    prints = _read_prints(folder / TEST_CONTENTS)
    if prints is None:
        return None
    card = ModelCard.read(folder / CARD)
    studies = {} if card.study is None else {card.study: card.method}
    return KnownHalf(card.data, prints, frozenset([card.trainval]), studies)


def _read_prints(path: Path) -> Prints | None:
    """Return the prints of a file of content hashes; None where there is no such file."""
    if not path.exists():
        return None
    try:
        return prints_of(read_text(path).split())
    except (OSError, ValueError):
        raise BadInput(
            f"{path} holds no content hashes: it was altered; restore it from a copy"
        ) from None
