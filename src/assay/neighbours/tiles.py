"""Products of some queries with some references, and the few products that exceed a bound.

Shapes: Q queries, R references, T tiles of TILE references each, G groups, P pairs found.

A tile is small enough to be reduced while it is in the caches. The maxima of its groups of entries
are taken across rows or columns, never along memory, and say which groups need a look.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from assay.neighbours.bits import multiply

TILE = 1024
"""Rows and columns of a tile of products."""

GROUP = 32
"""Entries that are skipped together where their maximum is below the bound."""

Found = tuple[Tensor, Tensor, Tensor]
"""Rows, references and values of pairs, sorted by row."""


@dataclass(frozen=True)
class ProductPanel:
    """Products of queries with successive references in tiles, padded with -inf at the end.

    Args:
        first: index of the first reference.
        tiles: products (T, Q, TILE).
        tops: maxima of groups (T, Q, TILE / GROUP); group g of a tile holds the columns
            g, g + TILE / GROUP, ...
    """

    first: int
    tiles: Tensor
    tops: Tensor

    @property
    def columns(self) -> Tensor:
        """Indices (T, 1, TILE) of the references; padding has indices beyond the last."""
        count, _, width = self.tiles.shape
        places = torch.arange(self.first, self.first + count * width, device=self.tiles.device)
        return places.view(count, 1, width)

    def keep(self, which_TQR: Tensor) -> "ProductPanel":
        """Return the panel with -inf at all other places."""
        tiles = self.tiles.masked_fill(~which_TQR, -torch.inf)
        return ProductPanel(self.first, tiles, tiles.unflatten(2, (GROUP, -1)).amax(2))  # type: ignore[no-untyped-call]

    def reached_by(self, k: int) -> Tensor | None:
        """Return a value (Q,) that at least k references of each query reach.

        None where there are fewer than k references.
        """
        count, queries, width = self.tiles.shape
        if count * width < k:
            return None
        parts = self.tops
        if count * width // GROUP < 2 * k:
            parts = self.tiles.unflatten(2, (_smaller_group(count * width, k), -1)).amax(2)  # type: ignore[no-untyped-call]
        return (
            parts.transpose(0, 1).reshape(queries, -1).topk(k, dim=1, sorted=False).values.amin(1)
        )

    def groups_above(self, bound_Q: Tensor) -> Tensor:
        """Return how many groups (Q,) have an entry above the query's bound."""
        return (self.tops > bound_Q[:, None]).sum((0, 2))

    def above(self, bound_Q: Tensor) -> Found:
        """Return the entries above their query's bound."""
        row_G, tile_G, group_G = (self.tops.transpose(0, 1) > bound_Q[:, None, None]).nonzero(
            as_tuple=True
        )
        width, groups = self.tiles.shape[2], self.tops.shape[2]
        members_GM = self.tiles.unflatten(2, (GROUP, groups))[tile_G, row_G, :, group_G]  # type: ignore[no-untyped-call]
        which_P, member_P = (members_GM > bound_Q[row_G, None]).nonzero(as_tuple=True)
        reference_P = self.first + (tile_G * width + group_G)[which_P] + member_P * groups
        return row_G[which_P], reference_P, members_GM[which_P, member_P]


class Multiplier:
    """Makes panels in the same memory: a new panel overwrites the previous one."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def panel(
        self,
        left_QD: Tensor,
        right_RD: Tensor,
        first: int,
        exclude_Q: Tensor | None,
        dtype: torch.dtype,
    ) -> ProductPanel:
        """Return all products in the given precision, -inf where a query excludes a reference."""
        width = min(TILE, math.ceil(len(right_RD) / GROUP) * GROUP)
        shape = math.ceil(len(right_RD) / width), len(left_QD), width
        tiles = self._empty(shape, dtype, left_QD.device)
        tops = tiles.new_empty(len(tiles), len(left_QD), width // GROUP)
        for number, tile in enumerate(tiles):
            right = right_RD[number * width : (number + 1) * width]
            if len(right) < width:
                tile[:, len(right) :] = -torch.inf
            multiply(left_QD, right, tile[:, : len(right)])
            if exclude_Q is not None:
                _leave_out(tile, exclude_Q - first - number * width)
            torch.amax(tile.view(len(tile), GROUP, -1), 1, out=tops[number])
        return ProductPanel(first, tiles, tops)

    def _empty(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        size = math.prod(shape)
        if len(self._room) < size or self._room.dtype != dtype:
            self._room = torch.empty(size, dtype=dtype, device=device)
        return self._room[:size].view(shape)


@dataclass(frozen=True)
class Transposed:
    """One tile seen from the other side: its columns are the queries, its rows the references.

    Args:
        first: index of the first reference.
        tile: products (R, Q).
    """

    first: int
    tile: Tensor

    def reached_by(self, k: int) -> Tensor | None:
        """Return a value (Q,) that at least k references of each query reach.

        None where there are fewer than k references.
        """
        if len(self.tile) < k:
            return None
        parts = self._tops if len(self._tops) >= 2 * k else self.tile
        return parts.T.topk(k, dim=1, sorted=False).values.amin(1)

    def groups_above(self, bound_Q: Tensor) -> Tensor:
        """Return how many groups (Q,) have an entry above the query's bound."""
        return (self._tops > bound_Q).sum(0)

    def above(self, bound_Q: Tensor) -> Found:
        """Return the entries above their query's bound."""
        row_G, group_G = (bound_Q[:, None] < self._tops.T).nonzero(as_tuple=True)
        members_GM = self._groups[group_G, :, row_G]
        which_P, member_P = (members_GM > bound_Q[row_G, None]).nonzero(as_tuple=True)
        return (
            row_G[which_P],
            self.first + group_G[which_P] * GROUP + member_P,
            members_GM[which_P, member_P],
        )

    @cached_property
    def _groups(self) -> Tensor:
        return self.tile.view(-1, GROUP, self.tile.shape[1])

    @cached_property
    def _tops(self) -> Tensor:
        return self._groups.amax(1)


def _smaller_group(references: int, k: int) -> int:
    """Return the size of a group where there are few references: 4 k groups, if possible."""
    group = GROUP // 2
    while group > 1 and references // group < 4 * k:
        group //= 2
    return group


def _leave_out(tile_QR: Tensor, column_Q: Tensor) -> None:
    here = ((column_Q >= 0) & (column_Q < tile_QR.shape[1])).nonzero()[:, 0]
    tile_QR[here, column_Q[here]] = -torch.inf
