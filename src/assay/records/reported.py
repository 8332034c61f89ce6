"""What a report was made of, so that it can be made again after the store has gone on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from assay.records.codec import Document, Record
from assay.records.ledger import read
from assay.records.store import Store

REPORTED = "report.json"
"""Name of the file in the folder of a report that says what the report was made of."""


@dataclass(frozen=True)
class Extent(Record):
    """How far a store had got at one time.

    Args:
        studies: number of lines of each study's ledger, by the key of the study.
        benches: hashes of the benches that had been announced.
    """

    studies: Mapping[str, int]
    benches: tuple[str, ...]

    @classmethod
    def of(cls, store: Store) -> Self:
        """Return how far a store has got now."""
        benches = tuple(store.benches())
        return cls(
            {key: len(read(store.study(key) / "ledger.jsonl")) for key in store.studies()},
            benches,
        )


@dataclass(frozen=True)
class Reported(Document):
    """What a report was made of; `report/report.json` holds it.

    It is removed before anything of the report is written, and written last: a report without it is
    not whole.

    Args:
        extent: how far the store had got.
        times: of each study the number of its runs whose time is known, and their seconds together,
            by the key of the study.
        versions: versions of all that the bytes of the report depend on.
        peaks: most bytes of memory that a run of each study took, by the key of the study, where
            that is known.
    """

    extent: Extent
    times: Mapping[str, tuple[int, float]]
    versions: Mapping[str, str]
    peaks: Mapping[str, int] = field(default_factory=dict)


def decided_since(store: Store, key: str, count: int) -> bool:
    """Return whether a study has gone on after its first `count` lines.

    A look is no step. A peek is, for a report shows what it found.
    """
    lines = read(store.study(key) / "ledger.jsonl")
    return any(line.kind != "look" for line in lines[count:])
