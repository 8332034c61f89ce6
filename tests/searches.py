"""Searches to test: vectors of every kind, a brute force, and constants that lead small searches
down every path.
"""

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.neighbours import nearest
from loops import for_each

Row = tuple[float, ...]
Rows = list[Row]
WhichCount = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[str, Row, Row], Any]

SIMILARITIES = ["cosine", "dot", "euclidean", "hamming"]

EXACT: Rows = [
    *itertools.product((0.5, -0.5), repeat=4),
    *(tuple(sign * float(i == axis) for i in range(4)) for axis in range(4) for sign in (1, -1)),
    (0.0, 0.0, 0.0, 0.0),
]
"""Unit vectors (and the vector of zeros) whose products are exact in any precision, so that ties
are ties.
"""


# --- The brute force ---


@dataclass(frozen=True)
class Search:
    """What to look for. Rows are what the vectors of `dtype` hold."""

    queries: Rows
    references: Rows
    k: int
    similarity: str = "cosine"
    exclude: list[int] | None = None
    counts: WhichCount | None = None
    dtype: torch.dtype = torch.float64

    def sides(self) -> tuple[Tensor, Tensor]:
        """Vectors of both sides; one object if it is a search of a set in itself."""
        queries = torch.tensor(self.queries, dtype=self.dtype)
        return queries, (
            queries
            if self.references is self.queries
            else torch.tensor(self.references, dtype=self.dtype)
        )

    def found(self) -> list[list[int]]:
        exclude = None if self.exclude is None else torch.tensor(self.exclude)
        return nearest(
            *self.sides(), self.k, exclude, similarity=self.similarity, counts=self.counts
        ).tolist()

    def standing(self) -> list[list[int]]:
        """For each query the references that are neither left out nor of no account."""
        numbers = torch.arange(len(self.queries))[:, None], torch.arange(len(self.references))[None]
        stands = torch.ones(len(self.queries), len(self.references), dtype=torch.bool)
        if self.counts is not None:
            stands &= self.counts(*numbers)
        if self.exclude is not None:
            stands &= torch.tensor(self.exclude)[:, None] != numbers[1]
        return [row.nonzero()[:, 0].tolist() for row in stands]

    def brute_force(self, score: Score) -> list[list[int]]:
        """All scores, one pair at a time, sorted by (score descending, index ascending)."""
        rows = zip(self.scores(score), self.standing(), strict=True)
        return [self._order(scores, columns) for scores, columns in rows]

    def scores(self, score: Score) -> list[list[Any]]:
        return [
            [score(self.similarity, query, reference) for reference in self.references]
            for query in self.queries
        ]

    def clear(self) -> dict[int, list[int]]:
        """What is to be found, of those queries where rounding cannot matter to it: scores are
        equal or well apart.
        """
        rows = zip(
            self.scores(exact_score), self.scores(double_score), self.standing(), strict=True
        )
        return {
            number: self._order(exact, columns)
            for number, (exact, double, columns) in enumerate(rows)
            if are_well_apart(exact) and self._order(exact, columns) == self._order(double, columns)
        }

    def _order(self, scores: list[Any], columns: list[int]) -> list[int]:
        order = sorted(columns, key=lambda column: (-scores[column], column))
        return (order + [-1] * self.k)[: self.k]

    def assert_found(self) -> None:
        found = self.found()
        expected = self.clear()
        assert {number: found[number] for number in expected} == expected


def are_well_apart(scores: list[Any]) -> bool:
    """Or equal: by more than sums in double precision may err, or not at all."""
    return all(
        low == high or high - low > 1e-13 * max(abs(low), abs(high))
        for low, high in itertools.pairwise(sorted(scores))
    )


def double_score(similarity: str, a: Row, b: Row) -> float:
    """In double precision, as its definition says."""
    if similarity == "hamming":
        return float(exact_score(similarity, a, b))
    if similarity == "euclidean":
        return -sum((x - y) * (x - y) for x, y in zip(a, b, strict=True))
    if similarity == "cosine":
        a, b = unit_row(a), unit_row(b)
    return sum(x * y for x, y in zip(a, b, strict=True))


def exact_score(similarity: str, a: Row, b: Row) -> Fraction:
    """Without any rounding; the cosine squared, with its sign, and times the query's own length."""
    if similarity == "hamming":
        return Fraction(-sum((int(x) ^ int(y)).bit_count() for x, y in zip(a, b, strict=True)))
    shift_a, a_whole = whole(a)
    shift_b, b_whole = whole(b)
    if similarity == "euclidean":
        squares = sum(
            (x * shift_b - y * shift_a) ** 2 for x, y in zip(a_whole, b_whole, strict=True)
        )
        return Fraction(-squares, (shift_a * shift_b) ** 2)
    product = sum(x * y for x, y in zip(a_whole, b_whole, strict=True))
    if similarity == "dot":
        return Fraction(product, shift_a * shift_b)
    return Fraction(product * abs(product), shift_a**2 * (sum(y * y for y in b_whole) or 1))


@cache
def whole(row: Row) -> tuple[int, list[int]]:
    """A power of two, and the row times that as whole numbers."""
    ratios = [float(value).as_integer_ratio() for value in row]
    shift = max(below for _, below in ratios)
    return shift, [above * (shift // below) for above, below in ratios]


@cache
def unit_row(row: Row) -> Row:
    norm = math.hypot(*row)
    return tuple(value / norm for value in row) if norm else row


# --- Vectors ---


def gaussian(draw: random.Random, count: int) -> Rows:
    dim = draw.choice([1, 2, 5, 33])
    return [tuple(draw.gauss(0, 1) for _ in range(dim)) for _ in range(count)]


def ties(draw: random.Random, count: int) -> Rows:
    return [draw.choice(EXACT) for _ in range(count)]


def duplicates(draw: random.Random, count: int) -> Rows:
    rows = gaussian(draw, 3)
    return [draw.choice(rows) for _ in range(count)]


def constant(draw: random.Random, count: int) -> Rows:
    return gaussian(draw, 1) * count


def zeros_among_others(draw: random.Random, count: int) -> Rows:
    return [row if draw.random() < 0.6 else (0.0,) * len(row) for row in gaussian(draw, count)]


def mixed_norms(draw: random.Random, count: int) -> Rows:
    """From 1e-30 to 1e30, by powers of two, which change no digit of a direction."""
    return scaled(draw, ties(draw, count), [-100, -50, 0, 50, 100])


def scaled(draw: random.Random, rows: Rows, exponents: list[int]) -> Rows:
    scales = [2.0 ** draw.choice(exponents) for _ in rows]
    return [tuple(scale * value for value in row) for scale, row in zip(scales, rows, strict=True)]


def common_offset(draw: random.Random, count: int) -> Rows:
    """Far from the origin, on a grid that single precision still holds."""
    return [tuple(2.0**20 + draw.randrange(16) / 8 for _ in range(3)) for _ in range(count)]


def near_duplicates(draw: random.Random, count: int) -> Rows:
    """On a line, 1e-6 to 1e-12 apart, beside a few that are elsewhere."""
    spread = 2.0 ** draw.choice([-20, -30, -40])
    centre, towards = ([draw.randrange(-8, 8) / 4 for _ in range(5)] for _ in range(2))
    line = [
        tuple(c + draw.randrange(40) * spread * t for c, t in zip(centre, towards, strict=True))
        for _ in range(count)
    ]
    return [row if draw.random() < 0.8 else tuple(draw.gauss(0, 1) for _ in row) for row in line]


def packed_bits(draw: random.Random, count: int) -> Rows:
    dim, values = draw.choice([1, 3, 9]), draw.choice([[255], [0, 1, 128], range(256)])
    return [tuple(draw.choice(values) for _ in range(dim)) for _ in range(count)]


KINDS = [gaussian, ties, duplicates, constant, zeros_among_others, mixed_norms, near_duplicates]

every_kind = for_each(
    ("kind", "similarity"),
    [
        *itertools.product(KINDS, ["cosine", "dot", "euclidean"]),
        (common_offset, "euclidean"),
        (packed_bits, "hamming"),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
every_similarity = for_each("similarity", SIMILARITIES)


def rows_for(similarity: str, draw: random.Random, count: int) -> Rows:
    """Vectors with ties, duplicates and none, as the similarity takes them."""
    if similarity == "hamming":
        return [
            tuple(draw.choice([0, 3, 255, draw.randrange(256)]) for _ in range(2))
            for _ in range(count)
        ]
    return [
        draw.choice(EXACT) if draw.random() < 0.6 else tuple(draw.gauss(0, 1) for _ in range(4))
        for _ in range(count)
    ]


def dtype_for(similarity: str) -> torch.dtype:
    return torch.uint8 if similarity == "hamming" else torch.float32


def vectors_for(similarity: str, count: int, seed: int = 0) -> Tensor:
    """Vectors with ties and duplicates."""
    return torch.tensor(
        rows_for(similarity, random.Random(seed), count), dtype=dtype_for(similarity)
    )


def every_restriction(count: int) -> list[dict[str, Any]]:
    """What may be left out where `count` vectors look for one another: nothing, oneself, one's own
    camera.
    """
    own = torch.arange(count)
    camera = own % 3
    return [
        {},
        {"exclude": own},
        {"exclude": torch.where(camera == 0, -1, own)},
        {"counts": lambda q, r: camera[q] != camera[r]},
        {"counts": lambda q, r: camera[q] != camera[r], "exclude": own},
    ]


def as_held(rows: Rows, dtype: torch.dtype) -> Rows:
    """The numbers that are left when vectors are of this type."""
    return [tuple(row) for row in torch.tensor(rows, dtype=dtype).tolist()]


# --- Searches ---


def draw_search(
    draw: random.Random, kind: Callable[[random.Random, int], Rows], similarity: str
) -> Search:
    """Anything that may be asked: in itself or in others, with references left out or of no
    account, any k.
    """
    references, itself = draw.randint(2, 48), draw.random() < 0.5
    queries = references if itself else draw.randint(1, 12)
    dtype = torch.uint8 if similarity == "hamming" else draw.choice([torch.float32, torch.float64])
    rows = as_held(kind(draw, references if itself else references + queries), dtype)
    right = rows[:references]
    exclude = draw.choice([None, draw_exclude(draw, queries, references, itself)])
    available = references - (exclude is not None and min(exclude) >= 0)
    k = draw.choice([1, available, draw.randint(1, available)])
    counts = draw.choice([None, draw_counts(draw, queries, references)])
    return Search(
        right if itself else rows[references:], right, k, similarity, exclude, counts, dtype
    )


def draw_exclude(draw: random.Random, queries: int, references: int, itself: bool) -> list[int]:
    if itself and draw.random() < 0.7:
        return list(range(references))
    return [draw.randrange(-1, references) for _ in range(queries)]


def draw_counts(draw: random.Random, queries: int, references: int) -> WhichCount:
    left, right = (
        torch.tensor([draw.randrange(3) for _ in range(count)]) for count in (queries, references)
    )
    return draw.choice([
        lambda q, r: left[q] != right[r],
        lambda q, r: left[q] == right[r],
        lambda q, r: right[r] != 0,
        lambda q, r: left[q] != 0,
        lambda q, r: (left[q] == right[r]) & (right[r] == 5),
    ])  # fmt: skip


# --- Paths ---


PATHS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "a few rows at a time": {"ROWS": 100, "TILE": 8, "GROUP": 4, "PAIRS": 60},
    "in candidates": {"SORTED": 0},
    "small tiles": {"SORTED": 0, "TILE": 8, "GROUP": 4, "PANEL": 2},
    "tiles of one group": {"SORTED": 0, "TILE": 8, "GROUP": 8, "PANEL": 1},
    "both sides": {"SORTED": 0, "TILE": 8, "GROUP": 4, "WORTH": 0},
    "both sides in few places": {
        "SORTED": 0,
        "TILE": 16,
        "GROUP": 2,
        "WORTH": 0,
        "places_for": lambda k: k + 1,
    },
    "few places": {"SORTED": 0, "places_for": lambda k: k + 1},
    "few places and small tiles": {
        "SORTED": 0,
        "places_for": lambda k: k + 2,
        "TILE": 8,
        "GROUP": 4,
        "PANEL": 2,
    },
    "small buffers": {"SORTED": 0, "BUFFER": 300, "TILE": 16, "GROUP": 4, "PANEL": 1},
    "few pairs at once": {
        "SORTED": 0,
        "PAIRS": 60,
        "PLACES": 100,
        "BLOCK": 5,
        "SMALL": 0,
        "places_for": lambda k: k + 4,
    },
}
"""Constants that change how a search goes, and must not change what it finds."""

every_path = for_each("path", PATHS)


@contextmanager
def along(path: str) -> Iterator[None]:
    """Go this path inside: give constants other values, wherever they have been imported to."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith("assay.neighbours.")
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATHS[path].items():
            places = [module for module in modules if hasattr(module, name)]
            assert places, f"no module has a constant {name}"
            for module in places:
                patch.setattr(module, name, value)
        yield
