"""What a search finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Match:
    """An image that a search found.

    Args:
        rank: its place among the matches, from 1.
        id: its name in the index.
        score: how similar it is to the query; more is more similar. The cosine of the angle, or
            minus the Euclidean distance, or minus the number of bits that differ.
        confidence: estimated probability that it shows the same thing as the query; None: the index
            is not calibrated.
        words: its metadata by column.
        path: where its file was when it was indexed, below the root; None: it was no file.
    """

    rank: int
    id: str
    score: float
    confidence: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True)
class Found:
    """The matches of one query.

    Args:
        query: name of the query.
        matches: best first.
    """

    query: str
    matches: tuple[Match, ...]
