"""Rows of numbers from any place: a numpy array, a memory-mapped file, a tensor on any device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

BLOCK = 1 << 21
"""Entries read at once: bounds memory whatever the number of rows."""


class Vectors:
    """An (N, D) array that is read some rows at a time and never copied whole.

    Args:
        rows: numbers of shape (N, D); anything numpy understands, or a tensor.
        device: where to compute; by default where the tensor is, else the CPU.
        chosen: indices of the rows that are meant, in their order; all if None.

    >>> Vectors([[3, 4], [0, 1]]).read(slice(0, 1))
    tensor([[3., 4.]])
    """

    def __init__(
        self,
        rows: "ArrayLike | Tensor | Vectors",
        device: torch.device | None = None,
        chosen: Tensor | None = None,
    ) -> None:
        self.chosen, self._is_finite = chosen, False
        if isinstance(rows, Vectors):
            self._is_finite = rows._is_finite
            device = device or rows.device
            if rows.chosen is not None:
                self.chosen = rows.chosen if chosen is None else rows.chosen[chosen]
            rows = rows.rows
        self.rows: Any = rows.detach() if isinstance(rows, Tensor) else np.asanyarray(rows)
        if self.rows.ndim != 2:
            raise ValueError(f"vectors have shape (N, D), got {tuple(self.rows.shape)}")
        if not _is_real(self.rows):
            raise ValueError(f"vectors are real numbers, got {self.rows.dtype}")
        if self.rows.shape[1] == 0:
            raise ValueError(
                f"vectors of no dimensions, shape {tuple(self.rows.shape)}: there is nothing to"
                " compare"
            )
        self.device: torch.device = device or (
            self.rows.device if isinstance(self.rows, Tensor) else torch.device("cpu")
        )

    def __len__(self) -> int:
        return len(self.rows if self.chosen is None else self.chosen)

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        return int(self.rows.shape[1])

    @property
    def is_packed(self) -> bool:
        """Whether the rows are bytes, as packed bits are."""
        return self.rows.dtype in (torch.uint8, np.uint8)

    def read(self, which: slice | Tensor, dtype: torch.dtype | None = torch.float32) -> Tensor:
        """Return some rows in the given type (None: their own), as a copy or a view: read only."""
        if self.chosen is not None:
            which = self.chosen[which if isinstance(which, slice) else which.to(self.chosen.device)]
        if isinstance(self.rows, Tensor):
            chosen = self.rows[which if isinstance(which, slice) else which.to(self.rows.device)]
        else:
            chosen = torch.from_numpy(
                _native(self.rows[which if isinstance(which, slice) else which.cpu().numpy()])
            )
        return chosen.to(self.device, dtype or chosen.dtype)

    def blocks(self, dtype: torch.dtype | None = torch.float64) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows, a block at a time, each block with its place."""
        for rows in slices(len(self), max(1, BLOCK // self.dim)):
            yield rows, self.read(rows, dtype)

    def check_finite(self, what: str) -> None:
        """Raise a `ValueError` that names the first row with a NaN or an infinity.

        Rows are checked only once.
        """
        if self._is_finite:
            return
        bad = self.not_finite()
        if bad:
            others = f" and {len(bad) - 1} other rows" if len(bad) > 1 else ""
            raise ValueError(
                f"row {bad[0]}{others} of the {what} is NaN or infinite; remove such rows before"
                " they are compared"
            )
        self._is_finite = True

    def not_finite(self) -> list[int]:
        """Return the chosen rows, by their number in the array, with a NaN or an infinity."""
        bad: list[int] = []
        for rows, block in self.blocks(torch.float32):
            suspect = (~torch.isfinite(torch.linalg.vector_norm(block, dim=1))).nonzero()[
                :, 0
            ] + rows.start
            if len(suspect):  # in single precision, the norm of large numbers is infinite too
                bad += suspect[~torch.isfinite(self.read(suspect, torch.float64)).all(1)].tolist()
        return bad if self.chosen is None else self.chosen[bad].tolist()

    def zeros(self) -> list[int]:
        """Return the places of the rows that are all zeros.

        >>> Vectors([[0, 0], [0, 1]]).zeros()
        [0]
        """
        found: list[int] = []
        for rows, block in self.blocks(None):
            found += ((block == 0).all(1).nonzero()[:, 0] + rows.start).tolist()
        return found


def unit_rows(x: Tensor) -> Tensor:
    """Return rows divided by their norms, scaled first so that no square vanishes or overflows.

    >>> unit_rows(torch.tensor([[3e-200, 4e-200], [0.0, 0.0]], dtype=torch.float64))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    largest = x.abs().amax(1, keepdim=True)
    scaled = x / torch.where(largest > 0, largest, 1)
    norms = row_sums(scaled.square())[:, None].sqrt()
    return scaled / norms.clamp(min=1)


def row_sums(x: Tensor) -> Tensor:
    """Return sums (N,) of rows; the bits of each do not depend on the other rows.

    torch would split a single long row over threads.
    """
    return x.sum(1) if len(x) > 1 else x.expand(2, -1).contiguous().sum(1)[: len(x)]


def as_indices(numbers: ArrayLike | Tensor, what: str, device: torch.device) -> Tensor:
    """Return whole numbers of any type as a tensor of indices."""
    given = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else np.array(numbers)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        raise ValueError(
            f"{what} are whole numbers of shape (N,), got {given.dtype} of shape {given.shape}"
        )
    return torch.from_numpy(given.astype(np.int64)).to(device)


def slices(total: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover `total`."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _is_real(rows: Any) -> bool:
    if isinstance(rows, Tensor):
        return not rows.is_complex() and rows.dtype != torch.bool
    return rows.dtype.kind in "iuf"


def _native(rows: Any) -> Any:
    """Return a copy in a type and byte order that torch supports."""
    if rows.dtype == np.uint8:
        wanted: type = np.uint8
    elif rows.dtype.kind == "f":
        wanted = np.float64 if rows.dtype.itemsize > 4 else np.float32
    else:
        wanted = np.float64 if rows.dtype == np.uint64 else np.int64
    return np.array(rows, dtype=wanted, order="C")
