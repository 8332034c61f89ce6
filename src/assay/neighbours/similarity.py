"""Similarities of vectors: as a dot product for matrix products, and exactly.

Shapes: N rows, D dims, P pairs.

A similarity turns queries and references into `left` and `right` vectors, such that

    exact score  <=  left . right  <=  exact score + gap

up to a constant, for `left` and `right` rounded to single (or double) precision and their product
taken in any order. Pairs within the gap are decided by `exact`, which computes each pair by itself
in double precision. Scores rise with similarity; only their order within one query matters.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from assay.neighbours.bits import fastest_type, pack_both, signs
from assay.neighbours.vectors import Vectors, row_sums, unit_rows
from assay.registry import Registry

WhichCount = Callable[[Tensor, Tensor], Tensor]
"""Returns elementwise which references count for which queries; the shapes of both indices
broadcast.
"""


def standing(
    query: Tensor, reference: Tensor, exclude: Tensor | None, counts: WhichCount | None
) -> Tensor:
    """Return which references stand in which queries' lists, in a shape that broadcasts.

    `exclude` is the index that each query leaves out.
    """
    stands = (
        torch.ones((), dtype=torch.bool, device=reference.device)
        if exclude is None
        else reference != exclude
    )
    return stands if counts is None else stands & counts(query, reference)


class VectorSimilarity(Protocol):
    """A similarity of given queries and references, as a search uses it."""

    queries: Vectors
    references: Vectors

    symmetric: bool
    """Whether left and right vectors of a row are equal and the gap is constant, so that one tile
    serves both sides.
    """

    is_exact: bool
    """Whether products are exact wherever they are trusted: the gap is 0."""

    def trusts(self, dtype: torch.dtype) -> bool:
        """Return whether this precision can hold the products."""

    def left(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return the left vectors of some queries."""

    def right(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return the right vectors of some references."""

    def gap(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> Tensor:
        """Return by how much products of pairs may exceed exact scores; the shape broadcasts."""

    def widest_gap(self, queries: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the largest gap to any reference."""

    def exact(self, queries: Tensor, references: Tensor) -> Tensor:
        """Return scores (P,) in double precision of pairs given by their indices."""


class _MakesSimilarity(Protocol):
    __doc__: str | None

    def __call__(self, queries: Vectors, references: Vectors) -> VectorSimilarity: ...


vector_similarities = Registry[_MakesSimilarity]("similarity")


SEGMENT = 32
"""Numbers whose squares are added in the working precision; sums of segments are added in double
precision.
"""

SAFE = 480
"""Exponent up to which numbers may be squared and added in double precision."""

SMALL = 1 << 22
"""Numbers in a set that is small enough to be kept in double precision during a search."""


def rounding(dim: int, dtype: torch.dtype) -> float:
    """Return a bound on the error of a dot product of unit vectors normalised in this precision.

    The product errs by at most D u, either norm by SEGMENT u / 2, the rest by a few u (u: half the
    distance from 1 to the next number). Both precisions are compared with sums in double precision,
    which err themselves.
    """
    unit_roundoff = torch.finfo(dtype).eps / 2 + torch.finfo(torch.float64).eps
    return (dim + SEGMENT + 16) * unit_roundoff / (1 - dim * unit_roundoff)


@vector_similarities("cosine")
class Cosine:
    """q.r / (|q| |r|); a zero vector has similarity 0 to everything."""

    symmetric = True
    is_exact = False

    def __init__(self, queries: Vectors, references: Vectors) -> None:
        self.queries, self.references = queries, references
        self.counts_Q = _not_zero(queries)
        self._exact_queries = _ExactUnits(queries)
        self._exact_references = (
            self._exact_queries if references is queries else _ExactUnits(references)
        )

    def trusts(self, dtype: torch.dtype) -> bool:
        """Return True: unit vectors fit any precision."""
        return True

    def left(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return unit vectors."""
        return _units(self.queries.read(which, dtype), self.queries, which)

    def right(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return unit vectors."""
        return _units(self.references.read(which, dtype), self.references, which)

    def gap(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the gap, which is the same for all references."""
        return self.widest_gap(queries, dtype)

    def widest_gap(self, queries: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the gap, which is the same for all queries but zero vectors: these are exact."""
        return (2 * rounding(self.queries.dim, dtype) * self.counts_Q[queries]).to(dtype)

    def exact(self, queries: Tensor, references: Tensor) -> Tensor:
        """Return products of unit vectors."""
        return row_sums(
            self._exact_queries.read(queries).mul_(self._exact_references.read(references))
        )


@vector_similarities("dot")
class Dot:
    """q.r, of vectors as they are.

    Left vectors are scaled to unit length, which changes no query's order; the error then grows
    with the reference's own length. One more dimension, 1 on the left and that error on the right,
    makes the product an upper bound.
    """

    symmetric = False
    is_exact = False

    def __init__(self, queries: Vectors, references: Vectors) -> None:
        self.queries, self.references = queries, references
        self.counts_Q = _not_zero(queries)
        self.scale = _power_of_two(_largest(references))
        self.exact_scale = _safe_power_of_two(_largest(references))
        self.lengths_R = self._lengths()

    def trusts(self, dtype: torch.dtype) -> bool:
        """Return whether the longest right vector can be multiplied without overflow."""
        return float(self.lengths_R.max()) < math.sqrt(torch.finfo(dtype).max) / 4

    def left(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return unit vectors and a 1; zeros for a zero vector, whose products are exact."""
        x_ND = unit_rows(self._raise_query(self.queries.read(which, torch.float64)))
        return torch.cat([x_ND, x_ND.any(1, keepdim=True)], dim=1).to(dtype)

    def right(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return vectors and their errors."""
        x_ND = self._raise_reference(self.references.read(which, torch.float64))
        return torch.cat([x_ND, self._error(x_ND.norm(dim=1, keepdim=True), dtype)], dim=1).to(
            dtype
        )

    def gap(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> Tensor:
        """Return twice the reference's error."""
        return (2 * self._error(self.lengths_R[references], dtype) * self.counts_Q[queries]).to(
            dtype
        )

    def widest_gap(self, queries: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the gap of the longest reference."""
        return self.gap(queries, self.lengths_R.argmax(), dtype)

    def exact(self, queries: Tensor, references: Tensor) -> Tensor:
        """Return products, scaled by powers of two, which change no digit: they cannot overflow."""
        a_PD, b_PD = (
            self.queries.read(queries, torch.float64),
            self.references.read(references, torch.float64),
        )
        return row_sums(
            a_PD / _powers_of_two(a_PD.abs().amax(1, keepdim=True)) * (b_PD / self.exact_scale)
        )

    def _error(self, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        return 2 * rounding(self.queries.dim + 2, dtype) * lengths + 1e3 * torch.finfo(dtype).tiny

    def _lengths(self) -> Tensor:
        return torch.cat(
            [self._raise_reference(block).norm(dim=1) for _, block in self.references.blocks()]
        )

    def _raise_query(self, x_ND: Tensor) -> Tensor:
        return x_ND / _powers_of_two(x_ND.abs().amax(1, keepdim=True))

    def _raise_reference(self, x_ND: Tensor) -> Tensor:
        return x_ND / self.scale


@vector_similarities("euclidean")
class Euclidean(Dot):
    """-|q - r|^2, as a dot product with one more dimension: (q, 1) . (r, -|r|^2 / 2).

    Vectors are measured from the mean of the references, in units of their typical distance from
    it: a common offset would only cost digits.
    """

    def __init__(self, queries: Vectors, references: Vectors) -> None:
        self.queries, self.references = queries, references
        self.scale = _power_of_two(max(_largest(queries), _largest(references)))
        self.exact_scale = _safe_power_of_two(max(_largest(queries), _largest(references)))
        self.centre_D = sum(
            ((block / self.scale).sum(0) for _, block in references.blocks()), start=torch.zeros(())
        ) / len(references)
        self.typical = 1.0
        distances_R = torch.cat(
            [self._centred(block).norm(dim=1) for _, block in references.blocks()]
        )
        self.typical = float(distances_R.median()) or float(distances_R.max()) or 1.0
        self.lengths_R = self._lengths()
        self.longest = float(self.lengths_R.max())
        self.lengths_Q = torch.cat(
            [self._raise_query(block).norm(dim=1) for _, block in queries.blocks()]
        )

    def exact(self, queries: Tensor, references: Tensor) -> Tensor:
        """Return minus the squared distance, scaled by a power of two."""
        a_PD, b_PD = (
            self.queries.read(queries, torch.float64),
            self.references.read(references, torch.float64),
        )
        return -row_sums((a_PD / self.exact_scale - b_PD / self.exact_scale).square())

    def gap(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> Tensor:
        """Return twice the reference's error plus the error of the exact squared distance."""
        exact = rounding(self.queries.dim, torch.float64) * (
            self.lengths_Q[queries] + 4 * self.longest
        )
        return (2 * self._error(self.lengths_R[references], dtype) + 2 * exact).to(dtype)

    def _centred(self, x_ND: Tensor) -> Tensor:
        return (x_ND / self.scale - self.centre_D) / self.typical

    def _raise_query(self, x_ND: Tensor) -> Tensor:
        return torch.cat([self._centred(x_ND), torch.ones_like(x_ND[:, :1])], dim=1)

    def _raise_reference(self, x_ND: Tensor) -> Tensor:
        centred_ND = self._centred(x_ND)
        return torch.cat([centred_ND, -centred_ND.square().sum(1, keepdim=True) / 2], dim=1)


@vector_similarities("hamming")
class Hamming:
    """Minus the number of bits z > 0 that differ; rows of uint8 are bits that are packed already.

    As -1 and 1 the bits have products D - 2 x distance, whole numbers that either precision holds
    exactly.
    """

    symmetric = True
    is_exact = True

    def __init__(self, queries: Vectors, references: Vectors) -> None:
        self.queries, self.references = pack_both(queries, references)

    def trusts(self, dtype: torch.dtype) -> bool:
        """Return whether the products are exact: whole numbers up to 2^24 in single precision."""
        return 8 * self.queries.dim <= 1 / torch.finfo(dtype).eps

    def left(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return bits as -1 and 1, in the type whose products are fastest."""
        return signs(self.queries.read(which, None), fastest_type(self.queries.device, dtype))

    def right(self, which: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return bits as -1 and 1, in the type whose products are fastest."""
        return signs(self.references.read(which, None), fastest_type(self.references.device, dtype))

    def gap(self, queries: Tensor, references: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0: products are exact."""
        return self.widest_gap(queries, dtype)

    def widest_gap(self, queries: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0: products are exact."""
        return torch.zeros((), dtype=dtype, device=queries.device)

    def exact(self, queries: Tensor, references: Tensor) -> Tensor:
        """Return products of bits as -1 and 1."""
        a_PD = signs(self.queries.read(queries, None), torch.float64)
        return row_sums(a_PD * signs(self.references.read(references, None), torch.float64))


class _ExactUnits:
    """Unit vectors in double precision, kept in memory if they are few."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def read(self, which: Tensor) -> Tensor:
        """Return a copy of some of them."""
        if len(self.vectors) * self.vectors.dim > SMALL:
            return unit_rows(self.vectors.read(which, torch.float64))
        return self._kept[which]

    @cached_property
    def _kept(self) -> Tensor:
        return torch.cat([unit_rows(block) for _, block in self.vectors.blocks()])


def _units(x_ND: Tensor, source: Vectors, which: slice | Tensor) -> Tensor:
    """Return unit vectors, via double precision where single precision cannot square numbers."""
    norms_N = _norms(x_ND)
    low, high = torch.finfo(x_ND.dtype).tiny ** 0.4, torch.finfo(x_ND.dtype).max ** 0.4
    if bool(((norms_N > low) & (norms_N < high)).all()):
        return x_ND / norms_N.to(x_ND.dtype)
    return unit_rows(source.read(which, torch.float64)).to(x_ND.dtype)


def _norms(x_ND: Tensor) -> Tensor:
    """Return norms (N, 1) in double precision, from sums over segments in the precision of x."""
    whole = x_ND.shape[1] // SEGMENT * SEGMENT
    parts_NS = torch.linalg.vector_norm(x_ND[:, :whole].unflatten(1, (-1, SEGMENT)), dim=2)  # type: ignore[no-untyped-call]
    rest_N1 = torch.linalg.vector_norm(x_ND[:, whole:], dim=1, keepdim=True)
    norms: Tensor = torch.cat([parts_NS, rest_N1], dim=1).double().norm(dim=1, keepdim=True)
    return norms


def _not_zero(vectors: Vectors) -> Tensor:
    return torch.cat([block.any(1) for _, block in vectors.blocks(None)])


def _largest(vectors: Vectors) -> float:
    return max(float(block.abs().max()) for _, block in vectors.blocks())


def _power_of_two(largest: float) -> float:
    """Return a power of two at or just above a number, 1 for 0: dividing by it changes no digit."""
    return math.ldexp(1.0, max(-1021, min(1023, math.frexp(largest)[1]))) if largest else 1.0


def _safe_power_of_two(largest: float) -> float:
    """Return 1, or a scale for numbers whose products could overflow or vanish."""
    exponent = math.frexp(largest)[1]
    return math.ldexp(1.0, exponent - max(-SAFE, min(SAFE, exponent)))


def _powers_of_two(largest: Tensor) -> Tensor:
    exponents = torch.frexp(largest).exponent.clamp(-1021, 1023).long()
    # the power is written as the bits of a float64, which is exact
    return torch.where(largest > 0, ((exponents + 1023) << 52).view(torch.float64), 1)
