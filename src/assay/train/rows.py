"""Operations on stacked tensors that give each row the same bits, whatever it is stacked with.
Shapes: S rows of the stack.

Two kinds do not by themselves. A BLAS sums in another order where a matrix begins at another place
in a cache line, and in a stack of matrices whose size is no multiple of a line that place differs
from row to row: here every matrix begins at the start of a line. Some functions are computed by
another formula for the last few numbers that do not fill a vector register: here every row is
filled up to whole registers.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

LINE = 64
"""Bytes of a cache line."""

REGISTERS = 32
"""Numbers that the widest vectorised loop takes at a time: two registers of 16."""


def product(first: Tensor, second: Tensor, out: Tensor | None = None) -> Tensor:
    """`torch.bmm` of (S, A, B) and (S, B, C), each row as if it were alone; into `out` where that
    is given.
    """
    shape = len(first), first.shape[1], second.shape[2]
    if (
        _fills_lines(first)
        and _fills_lines(second)
        and shape[1] * shape[2] * first.element_size() % LINE == 0
    ):
        return torch.bmm(first, second, out=out)
    result = _room(shape, (shape[2], 1), first)
    torch.bmm(_aligned(first), _aligned(second), out=result)
    return result.contiguous() if out is None else out.copy_(result)


def sum_and_product(
    added: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """`torch.baddbmm`, each row as if it were alone."""
    scaled = product(first, second)
    return beta * added + (scaled if alpha == 1 else alpha * scaled)


def by_registers(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of each number, computed by the same formula for every number of a row
    (S, ...).
    """

    def computed(*arguments: Any) -> Tensor:
        tensors = torch.broadcast_tensors(*(one for one in arguments if isinstance(one, Tensor)))  # type: ignore[no-untyped-call]
        others = [one for one in arguments if not isinstance(one, Tensor)]
        shape = tensors[0].shape
        rows = [one.reshape(shape[0] if shape else 1, -1) for one in tensors]
        numbers = rows[0].shape[1]
        missing = -numbers % REGISTERS
        filled = [F.pad(one, (0, missing)) if missing else one.contiguous() for one in rows]
        return function(*filled, *others)[:, :numbers].reshape(shape)

    return computed


def with_rows_apart(traced: GraphModule) -> GraphModule:
    """The recorded operations, those replaced that would give a row other bits in another stack."""
    aten = torch.ops.aten
    ours: dict[Any, Callable[..., Tensor]] = {
        aten.bmm.default: product,
        aten.baddbmm.default: sum_and_product,
    }
    ours |= {
        one: by_registers(one)
        for one in (aten.softplus.default, aten.softplus_backward.default, aten.sigmoid.default)
    }
    ours |= {aten.logaddexp.default: by_registers(aten.logaddexp.default)}
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target in ours:
            node.target = ours[node.target]
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _fills_lines(stack: Tensor) -> bool:
    """Whether every matrix begins at the start of a line;
    a stack of one is judged as one of many.
    """
    numbers = stack.shape[1] * stack.shape[2]
    dense = len(stack) == 1 or stack.stride(0) == numbers
    return dense and numbers * stack.element_size() % LINE == 0 and stack.data_ptr() % LINE == 0


def _aligned(stack: Tensor) -> Tensor:
    """The same matrices, each at the start of a line, by rows or by columns as they were."""
    if _fills_lines(stack):
        return stack
    strides = stack.stride(1), stack.stride(2)
    by_columns = (1, stack.shape[1])
    return _room(
        stack.shape, by_columns if strides == by_columns else (stack.shape[2], 1), stack
    ).copy_(stack)


def _room(shape: tuple[int, ...], strides: tuple[int, int], like: Tensor) -> Tensor:
    a_line = LINE // like.element_size()
    return like.new_empty_strided(
        shape, (math.ceil(shape[1] * shape[2] / a_line) * a_line, *strides)
    )
