"""Operations on stacked tensors that give each row the same bits, whatever it is stacked with.

Two kinds of torch's operations do not. A BLAS sums in another order if a matrix begins at another
place in a cache line, and that place differs from row to row if the size of a matrix is no multiple
of a line: here every matrix begins at the start of a line. Some functions use another formula for
the last few numbers, which do not fill a vector register: here every row is padded to whole
registers.

Shapes: S rows of the stack.
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
    """Return `torch.bmm` of (S, A, B) and (S, B, C), each row as if it were alone.

    The result is written to `out` if that is given.
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
    """Return `torch.baddbmm`, each row as if it were alone."""
    scaled = product(first, second)
    return beta * added + (scaled if alpha == 1 else alpha * scaled)


def by_registers(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an elementwise function that uses the same formula for every number of a row."""

    def computed(*arguments: Any) -> Tensor:
        given = [one for one in arguments if isinstance(one, Tensor)]
        tensors = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
        others = [one for one in arguments if not isinstance(one, Tensor)]
        shape = tensors[0].shape
        rows = [one.reshape(shape[0] if shape else 1, -1) for one in tensors]
        numbers = rows[0].shape[1]
        missing = -numbers % REGISTERS
        filled = [F.pad(one, (0, missing)) if missing else one.contiguous() for one in rows]
        return function(*filled, *others)[:, :numbers].reshape(shape)

    return computed


def with_rows_apart(traced: GraphModule) -> GraphModule:
    """Replace the traced operations that would give a row other bits in another stack."""
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
    """Return whether every matrix begins at the start of a line, as it would in a larger stack."""
    numbers = stack.shape[1] * stack.shape[2]
    dense = len(stack) == 1 or stack.stride(0) == numbers
    return dense and numbers * stack.element_size() % LINE == 0 and stack.data_ptr() % LINE == 0


def _aligned(stack: Tensor) -> Tensor:
    """Return the matrices, each at the start of a line, by rows or by columns as they were."""
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
