"""Proxy-NCA and normalised softmax: one function under two names, and an import file that searches
it in one space.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.losses import losses
from assay.methods import assemble, defaults, import_parts, methods
from miniature import QUICK

FILE = Path(__file__).parents[1] / "benchmarks" / "same_loss.py"


def value_and_gradients(
    name: str, own: dict[str, float], z: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
) -> list[Any]:
    loss = losses[name](**own)
    loss.setup(weights.shape[1], len(weights))
    loss.weights = torch.nn.Parameter(weights.clone())
    leaf = z.clone().requires_grad_()
    value = loss(leaf, y)
    return [value.detach(), *torch.autograd.grad(value, [leaf, loss.weights])]


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    z, weights = (torch.randn(rows, 5, generator=draw, dtype=torch.float64) for rows in (8, 6))
    return z, torch.randint(0, 6, (8,), generator=draw), weights


@given(seed=st.integers(0, 2**31), scale=st.floats(0.005, 50))
@settings(max_examples=50, deadline=None)
def test_proxy_nca_is_normalised_softmax_at_half_the_inverse_scale(seed: int, scale: float) -> None:
    """Value, and gradients by embeddings and weights."""
    z, y, weights = batch(seed)
    ours = value_and_gradients("proxy_nca", {"scale": scale}, z, y, weights)
    theirs = value_and_gradients(
        "normalized_softmax", {"temperature": 1 / (2 * scale)}, z, y, weights
    )
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_both_are_a_softmax_over_squared_distances_to_unit_proxies() -> None:
    z, y, weights = batch(1)
    total = 0.0
    for i in range(8):
        x = (z[i] / z[i].norm()).tolist()
        distances = [
            sum((a - b) ** 2 for a, b in zip(x, (w / w.norm()).tolist(), strict=True))
            for w in weights
        ]
        terms = [math.exp(-9 * distance) for distance in distances]
        total -= math.log(terms[int(y[i])] / sum(terms))
    for name, own in (
        ("proxy_nca", {"scale": 9.0}),
        ("normalized_softmax", {"temperature": 1 / 18}),
    ):
        assert value_and_gradients(name, own, z, y, weights)[0].item() == pytest.approx(
            total / 8, rel=1e-9
        )


@pytest.mark.usefixtures("as_before")
def test_the_file_registers_both_in_one_space_with_one_set_of_defaults() -> None:
    import_parts([str(FILE)])
    softmax, proxies = methods["normalized_softmax_one_space"], methods["proxy_nca_one_space"]
    assert softmax.space == proxies.space == methods["normalized_softmax"].space
    assert (
        defaults(softmax, QUICK)
        == defaults(proxies, QUICK)
        == defaults(methods["normalized_softmax"], QUICK)
    )
    assert (
        (softmax.batch, softmax.miner) == (proxies.batch, proxies.miner) == ("classification", None)
    )
    z, y, weights = batch(2)
    found = []
    for method in (softmax, proxies):
        parts = assemble(method, {**defaults(method, QUICK), "temperature": 0.2}, QUICK)
        parts.loss.setup(5, 6)
        parts.loss.weights = torch.nn.Parameter(weights.clone())
        found.append(parts.loss(z, y).item())
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert type(parts.loss).__mro__[1] is losses["proxy_nca"]
