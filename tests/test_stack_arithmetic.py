"""Operations on stacks: they give torch's numbers, and each row the same bits in any stack."""

import pytest
import torch
from torch import Tensor

from assay.train.stack_arithmetic import by_registers, product, sum_and_product

SHAPES = [
    (1, 1, 1),
    (7, 13, 5),
    (30, 9, 91),
    (33, 50, 7),
    (32, 64, 32),
    (24, 3, 10),
    (15, 11, 12),
    (2, 77, 4),
]
PARTS = [(0, 1), (1, 1), (3, 2), (2, 7), (5, 12)]
"""Where a smaller stack begins, and how many rows it has."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turned", ["neither", "first", "second"])
def test_a_product_is_torchs_and_its_rows_do_not_depend_on_the_stack(
    shape: tuple[int, int, int], turned: str
) -> None:
    rows, inner, columns = shape
    first, second = torch.randn(17, rows, inner), torch.randn(17, inner, columns)
    if turned == "first":
        first = torch.randn(17, inner, rows).transpose(1, 2)
    elif turned == "second":
        second = torch.randn(17, columns, inner).transpose(1, 2)
    whole = product(first, second)
    assert torch.allclose(whole, torch.bmm(first, second), atol=1e-4)
    assert torch.equal(product(first, second, out=torch.empty(17, rows, columns)), whole)
    for start, count in PARTS:
        part = product(*(one[start : start + count].clone() for one in (first, second)))
        assert torch.equal(part, whole[start : start + count])


def test_a_sum_and_product_is_torchs() -> None:
    added, first, second = torch.randn(3, 5, 7), torch.randn(3, 5, 4), torch.randn(3, 4, 7)
    for beta, alpha in ((1, 1), (0.5, -2)):
        expected = torch.baddbmm(added, first, second, beta=beta, alpha=alpha)
        assert torch.allclose(
            sum_and_product(added, first, second, beta=beta, alpha=alpha), expected, atol=1e-5
        )


FUNCTIONS = {
    "softplus": (torch.ops.aten.softplus.default, 1, (1, 50)),
    "softplus backward": (torch.ops.aten.softplus_backward.default, 2, (1, 50)),
    "sigmoid": (torch.ops.aten.sigmoid.default, 1, ()),
    "logaddexp": (torch.ops.aten.logaddexp.default, 2, ()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(), (24,), (5, 3), (32, 32)])
def test_a_function_of_each_number_does_not_depend_on_the_stack(
    name: str, shape: tuple[int, ...]
) -> None:
    function, tensors, others = FUNCTIONS[name]
    ours = by_registers(function)
    given: list[Tensor] = [torch.randn(17, *shape) for _ in range(tensors)]
    whole = ours(*given, *others)
    assert torch.allclose(whole, function(*given, *others), atol=1e-6)
    for start, count in PARTS:
        assert torch.equal(
            ours(*(one[start : start + count].clone() for one in given), *others),
            whole[start : start + count],
        )
