"""Defects of public implementations of losses and miners (pitfalls 21 to 34), one by one: what the
defective form gives, that ours gives something else, and that ours is right.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml
from torch import Tensor

from assay.losses import losses
from assay.losses.loss import Loss
from assay.methods import BuiltMethod
from assay.miners import miners
from assay.pairs import Pairs, References, Triplets
from assay.protocols import protocols, resolve
from assay.train import optimiser_of
from assay.trunks import trunk_facts
from half_precision import run_script
from loops import for_each
from watching import LargestTensor

BUILT_IN = [name for name, loss in losses.items() if loss.__module__.startswith("assay.")]
DIM, CLASSES = 5, 4
SIZES = [2, 5, 3, 4]
"""Samples of each class."""


pytestmark = pytest.mark.usefixtures("one_thread")


def draw_batch(seed: int = 0, sizes: list[int] = SIZES, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Shuffled, of unequal classes and unequal lengths."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return (
        torch.randn(len(y), dim, generator=draw, dtype=torch.float64),
        y[torch.randperm(len(y), generator=draw)],
    )


def build(
    name: str,
    dim: int = DIM,
    classes: int = CLASSES,
    dtype: torch.dtype = torch.float64,
    **parameters: Any,
) -> Loss:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        loss = losses[name](**parameters)
        loss.setup(dim, classes)
        loss.prepare(samples=10_000, features=dim)
    return loss.to(dtype)


def with_weights(name: str, weights: Tensor, **parameters: Any) -> Loss:
    loss = build(name, weights.shape[-1], len(weights), **parameters)
    loss.weights = torch.nn.Parameter(weights.clone())
    return loss


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def gradient_of(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


def pairs_of(y: Tensor) -> list[tuple[int, int]]:
    """Ordered positive pairs."""
    return [(a, p) for a, p in itertools.permutations(range(len(y)), 2) if y[a] == y[p]]


def others_of(y: Tensor, a: int) -> list[int]:
    return [n for n in range(len(y)) if y[n] != y[a]]


def approx(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def differs(value: float, defective: float) -> bool:
    return not math.isfinite(defective) or abs(value - defective) > 1e-4 * abs(value)


# --- 21. ArcFace: margin on every logit; acos without clamp; negative cosines clamped to 0 ---


def cosface_moves(cosine: Tensor) -> Tensor:
    return cosine - 0.35


def arcface_moves(cosine: Tensor) -> Tensor:
    angle = cosine.acos() + math.radians(28.6)
    return torch.where(angle > math.pi, -2 - angle.cos(), angle.cos())


def sphereface_moves(cosine: Tensor) -> Tensor:
    turns = (4 * cosine.acos() / math.pi).floor().clamp(max=3)
    return (-1) ** turns * (4 * cosine.acos()).cos() - 2 * turns


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "arcface": arcface_moves,
    "cosface": cosface_moves,
    "sphereface": sphereface_moves,
}
every_angular_margin = for_each("name", list(MOVES))


def by_logits(logits: Tensor, y: Tensor, scale: float = 4.0) -> float:
    return F.cross_entropy(scale * logits, y).item()


@every_angular_margin
def test_pitfall_21_the_margin_moves_the_own_class_only(name: str) -> None:
    z, y = draw_batch(21)
    loss = build(name, scale=4.0)
    cosine = F.normalize(z) @ F.normalize(loss.weights.detach()).T
    own = F.one_hot(y, CLASSES).bool()
    right = by_logits(torch.where(own, MOVES[name](cosine), cosine), y)
    on_every_logit = by_logits(MOVES[name](cosine), y)
    value = loss(z, y).item()
    assert value == approx(right)
    assert differs(value, on_every_logit)
    if name == "cosface":
        assert on_every_logit == approx(by_logits(cosine, y)), "a margin on every logit is none"


@every_angular_margin
@for_each("end", [1.0, -1.0])
@for_each("dtype", [torch.float32, torch.float64])
def test_pitfall_21_gradients_are_finite_at_both_ends_of_the_cosine(
    name: str, end: float, dtype: torch.dtype
) -> None:
    """The sample lies exactly on its class's weight, or opposite; acos has no derivative there."""
    weights, y = torch.eye(3, dtype=dtype), torch.tensor([0, 1, 2])
    z, loss = leaf(end * weights), with_weights(name, weights, scale=4.0)
    value = loss(z, y)
    assert all(torch.isfinite(gradient).all() for gradient in gradient_of(value, z, loss.weights))
    moved = MOVES[name](torch.tensor(end, dtype=torch.float64)).item()
    assert value.item() == pytest.approx(math.log(math.exp(4 * moved) + 2) - 4 * moved, rel=1e-5)
    cosine = leaf(torch.tensor(end))
    assert not torch.isfinite(gradient_of((cosine.acos() + 0.5).cos(), cosine)[0])


@every_angular_margin
@for_each("distance", [1e-9, 1e-7, 1e-5, 1e-3])
def test_pitfall_21_gradients_do_not_explode_near_the_end_of_the_cosine(
    name: str, distance: float
) -> None:
    """The derivative of the angle grows without bound, what it does to an embedding must not."""
    weights = F.normalize(draw_batch(3, [1, 1, 1, 1], dim=16)[0]).float()
    step = F.normalize(draw_batch(4, [1, 1, 1, 1], dim=16)[0]).float()
    loss = with_weights(name, weights, scale=64.0)
    for sign in (1, -1):
        z = leaf(sign * weights + distance * step)
        (gradient,) = gradient_of(loss(z, torch.arange(4)), z)
        assert gradient.norm(dim=1).max() < 64 * 4 * 2


@pytest.mark.parametrize("name", [*MOVES, "normalized_softmax"])
def test_pitfall_21_negative_cosines_count_as_they_are(name: str) -> None:
    """Samples that are far from every weight: with cosines clamped to 0 all classes but the own
    would be alike.
    """
    weights, y = torch.eye(4, 5, dtype=torch.float64) + 0.1, torch.arange(4)
    z = -weights - torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    move = MOVES.get(name, lambda cosine: cosine)
    loss = with_weights(
        name, weights, **({"temperature": 0.25} if name == "normalized_softmax" else {"scale": 4.0})
    )
    cosine, own = F.normalize(z) @ F.normalize(weights).T, torch.eye(4, dtype=torch.bool)
    assert cosine.max() < 0
    right, clamped = (
        by_logits(torch.where(own, move(c), c), y) for c in (cosine, cosine.clamp(min=0))
    )
    value = loss(z, y).item()
    assert value == approx(right)
    assert differs(value, clamped)


# --- 22. SoftTriple: normalised along the wrong axis; softmax over classes instead of centres ---


def soft_triple(z: Tensor, y: Tensor, weights: Tensor, normalised: int, chosen_among: int) -> float:
    """Similarities (N, C, K) from weights (C, K, D), by the axis of the norm and that of the inner
    softmax.
    """
    s = torch.einsum("nd,ckd->nck", F.normalize(z), F.normalize(weights, dim=normalised))
    similar = ((s / 0.1).softmax(chosen_among) * s).sum(2)
    return by_logits(similar - 0.01 * F.one_hot(y, len(weights)), y, scale=20)


@pytest.mark.parametrize("centres", [3, 4, 5])
def test_pitfall_22_soft_triple_normalises_centres_and_chooses_among_those_of_a_class(
    centres: int,
) -> None:
    """Also where centres, classes or dimensions are equally many, so that a wrong axis has the
    right shape.
    """
    z, y = draw_batch(22)
    loss = build("soft_triple", centres=centres, regularisation=0.0)
    weights = loss.weights.detach()
    assert weights.shape == (CLASSES, centres, DIM)
    value = loss(z, y).item()
    assert value == approx(soft_triple(z, y, weights, normalised=2, chosen_among=2))
    for wrong_axis in (0, 1):
        assert differs(value, soft_triple(z, y, weights, normalised=wrong_axis, chosen_among=2))
    assert differs(value, soft_triple(z, y, weights, normalised=2, chosen_among=1))


def test_pitfall_22_the_regulariser_of_soft_triple_stays_within_a_class() -> None:
    """Centres of each class at one place, classes apart: nothing to merge, but for the 1e-5 under
    the root.
    """
    z, y = draw_batch(22)
    weights = torch.eye(CLASSES, DIM, dtype=torch.float64)[:, None, :].expand(CLASSES, 3, DIM)
    with_, without = (
        with_weights("soft_triple", weights, centres=3, regularisation=r)(z, y).item()
        for r in (1.0, 0.0)
    )
    assert with_ - without == approx(math.sqrt(1e-5) / 2)
    between_classes = math.sqrt(2 + 1e-5)
    assert differs(with_ - without, between_classes / 2)


# --- 23. Margin: beta by position; divisor; beta not in the state dict; weight decay on beta ---


def margin_by_hand(
    z: Tensor, y: Tensor, beta: list[float], margin: float = 0.2
) -> tuple[float, float]:
    """With a boundary for each anchor: over the hinges above 0, and over the triplets."""
    d = torch.cdist(F.normalize(z), F.normalize(z))
    hinges = []
    for a, p in pairs_of(y):
        for n in others_of(y, a):
            hinges += [(d[a, p] - beta[a] + margin).item(), (beta[a] - d[a, n] + margin).item()]
    active = [hinge for hinge in hinges if hinge > 0]
    assert 0 < len(active) < len(hinges)
    return sum(active) / len(active), sum(active) / (len(hinges) / 2)


BETAS = [0.6, 0.9, 1.2, 1.5]


def margin_with_betas(betas: list[float]) -> Loss:
    loss = build("margin_per_class")
    loss.beta.data = torch.tensor(betas, dtype=torch.float64)
    return loss


@pytest.mark.parametrize("seed", range(3))
def test_pitfall_23_the_boundary_is_that_of_the_anchors_class_whatever_its_place_in_the_batch(
    seed: int,
) -> None:
    """One of each class first, in an order of their own, so that a look-up by position finds a
    boundary too.
    """
    z, y = draw_batch(seed, [2, 2, 2, 2])
    y = torch.cat([torch.tensor([2, 0, 3, 1]), torch.tensor([1, 3, 0, 2])])
    value = margin_with_betas(BETAS)(z, y).item()
    by_class, _ = margin_by_hand(z, y, [BETAS[label] for label in y])
    by_position, _ = margin_by_hand(z, y, [BETAS[i % 4] for i in range(len(y))])
    assert value == pytest.approx(by_class, rel=1e-7)
    assert differs(value, by_position)


def test_pitfall_23_a_boundary_learns_from_the_anchors_of_its_class_alone() -> None:
    z, y = draw_batch(23)
    z, y = z[y != 2], y[y != 2]
    loss = margin_with_betas(BETAS)
    (gradient,) = gradient_of(loss(z, y), loss.beta)
    assert gradient[2] == 0
    assert gradient[[0, 1, 3]].ne(0).all()


@pytest.mark.parametrize("name", ["margin", "margin_per_class"])
def test_pitfall_23_the_divisor_is_the_number_of_hinges_above_zero_not_of_triplets(
    name: str,
) -> None:
    z, y = draw_batch(24)
    value = build(name)(z, y).item()
    over_hinges, over_triplets = margin_by_hand(z, y, [1.2] * len(y))
    assert value == pytest.approx(over_hinges, rel=1e-7)
    assert differs(value, over_triplets)


def test_pitfall_23_the_divisor_counts_a_mined_triplet_as_often_as_it_was_mined() -> None:
    """Anchor 0 with positive 1 at d = 1.6: three negatives at 0.2, 1.0 and 1.9, of which the first
    is inside the boundary.
    """
    angles = torch.tensor(
        [0.0] + [2 * math.asin(d / 2) for d in (1.6, 0.2, 1.0, 1.9)], dtype=torch.float64
    )
    z, y = torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 0, 1, 1, 1])
    negative = torch.tensor([[False, False, True, True, True]])
    mined = Triplets(torch.tensor([0]), torch.tensor([1]), negative)
    pull, push = 1.6 - 1.2 + 0.2, [1.2 - 0.2 + 0.2, 1.2 - 1.0 + 0.2]
    assert build("margin")(z, y, mined).item() == pytest.approx(
        (3 * pull + sum(push)) / 5, rel=1e-7
    )


@pytest.mark.parametrize("name", ["margin", "margin_per_class"])
def test_pitfall_23_the_boundary_is_in_the_state_dict(name: str) -> None:
    z, y = draw_batch(23)
    loss, restored = build(name), build(name)
    loss.beta.data += 0.1 * torch.arange(loss.beta.numel()).reshape(loss.beta.shape) + 0.05
    assert "beta" in loss.state_dict()
    assert restored(z, y).item() != loss(z, y).item()
    restored.load_state_dict(loss.state_dict())
    assert restored(z, y).item() == loss(z, y).item()


@pytest.mark.parametrize("name", ["margin", "margin_per_class"])
def test_pitfall_23_the_boundary_is_not_decayed(name: str) -> None:
    """A step without gradient moves what is decayed, such as a network's weights or proxies, and
    not the boundary.
    """
    quick = resolve(protocols["quick"], "photo", trunk_facts)
    protocol = replace(quick, optimiser=replace(quick.optimiser, weight_decay=0.5))
    for loss, decayed in ((build(name), False), (build("normalized_softmax"), True)):
        model = torch.nn.Linear(2, 2)
        weights = [*model.parameters(), *loss.parameters()]
        before = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimiser_of(model, BuiltMethod(loss, None, 0.1, 0.1), protocol).step()
        moved = [
            not torch.equal(weight, start) for weight, start in zip(weights, before, strict=True)
        ]
        assert moved == [True, True, decayed]


# --- 24. Angular: unnormalised negatives against normalised anchors ---


def angular(anchors: Tensor, negatives: Tensor, y: Tensor) -> float:
    """alpha = 45 degrees, so that tan^2 is 1."""
    terms = []
    for a, p in pairs_of(y):
        exponents = [
            4 * ((anchors[a] + anchors[p]) @ negatives[n]) - 4 * (anchors[a] @ anchors[p])
            for n in others_of(y, a)
        ]
        terms.append(torch.stack([torch.zeros_like(exponents[0]), *exponents]).logsumexp(0))
    return torch.stack(terms).mean().item()


def test_pitfall_24_the_length_of_embeddings_leaves_angular_alone() -> None:
    z, y = draw_batch(24)
    unit = F.normalize(z)
    mixed, mixed_and_longer = angular(unit, z, y), angular(unit, 10 * z, y)
    assert differs(mixed, mixed_and_longer)
    for scale in (1.0, 10.0):
        value = build("angular")(scale * z, y).item()
        assert value == approx(angular(unit, unit, y))
        assert differs(value, angular(unit, scale * z, y))


def test_pitfall_24_the_length_of_references_leaves_angular_alone() -> None:
    z, y = draw_batch(24)
    past, labels = draw_batch(25)
    near, far = (
        build("angular")(z, y, None, References(scale * past, labels, None)).item()
        for scale in (1, 10)
    )
    assert far == approx(near)


# --- 25. Histograms: membership by float equality ---


def kept_by_equality(s: Tensor, bins: int) -> float:
    """Share of the weight that stays if a value's bin is found by comparing its rounded-down value
    with the nodes.
    """
    step = 2 / bins
    nodes = torch.arange(bins + 1, dtype=s.dtype) * step - 1
    floor = (s / step).floor() * step
    lower, upper = floor[:, None] == nodes, floor[:, None] == nodes - step
    shares = (nodes + step - s[:, None]) * lower / step + (
        s[:, None] - (nodes - step)
    ) * upper / step
    return shares.sum().item() / len(s)


def similarities(kind: str, bins: int, dtype: torch.dtype) -> Tensor:
    if kind == "nodes":
        return torch.linspace(-1, 1, bins + 1, dtype=dtype)
    return 2 * torch.rand(400, generator=torch.Generator().manual_seed(25), dtype=dtype) - 1


def with_similarities(s: Tensor) -> tuple[Tensor, Tensor]:
    """An anchor, and references that have these similarities to it."""
    references = torch.stack([s, (1 - s.square()).clamp(min=0).sqrt()], dim=1)
    return torch.tensor([[1.0, 0.0]], dtype=s.dtype), references


def pairs_where(positive: Tensor, negative: Tensor) -> Pairs:
    return Pairs(positive[None], negative[None])


@for_each("dtype", [torch.float32, torch.float64])
@for_each("kind", ["anywhere", "nodes"])
@for_each("bins", [10, 11, 100, 150])
def test_pitfall_25_the_histogram_keeps_the_whole_weight(
    bins: int, kind: str, dtype: torch.dtype
) -> None:
    """Every negative is more similar than every positive, by more than a bin: then the loss is
    weight times weight, 1.
    """
    s = similarities(kind, bins, dtype)
    anchor, references = with_similarities(s)
    mined = pairs_where(s < -0.25, s > 0.25)
    nobody = torch.zeros(len(s), dtype=torch.long)
    value = losses["histogram"](bins=bins)(
        anchor, nobody[:1], mined, References(references, nobody, None)
    ).item()
    assert value == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["anywhere", "nodes"])
@pytest.mark.parametrize("bins", [10, 11])
def test_pitfall_25_the_histogram_shares_a_value_between_the_two_nodes_around_it(
    bins: int, kind: str
) -> None:
    """By a triangular kernel, and with every second value a negative."""
    s = similarities(kind, bins, torch.float64)
    anchor, references = with_similarities(s)
    odd, nobody = torch.arange(len(s)) % 2 == 1, torch.zeros(len(s), dtype=torch.long)
    kernel = (
        1 - (s[:, None] - torch.linspace(-1, 1, bins + 1, dtype=s.dtype)).abs() * bins / 2
    ).clamp(min=0)
    expected = (kernel[odd].mean(0) * kernel[~odd].mean(0).cumsum(0)).sum().item()
    memory = References(references, nobody, None)
    value = losses["histogram"](bins=bins)(
        anchor, nobody[:1], pairs_where(~odd, odd), memory
    ).item()
    assert value == approx(expected)


def test_pitfall_25_equality_would_lose_most_of_the_weight_at_11_bins() -> None:
    assert kept_by_equality(similarities("anywhere", 11, torch.float32), 11) < 0.6


@pytest.mark.parametrize("kind", ["anywhere", "nodes"])
@pytest.mark.parametrize("bins", [3, 10, 11, 100])
def test_pitfall_25_fastap_keeps_the_whole_weight(bins: int, kind: str) -> None:
    """With positives alone precision is 1 at every node: the loss is 1 less the weight that was
    kept.
    """
    s = similarities(kind, bins, torch.float32)
    anchor, references = with_similarities(s)
    everyone = torch.ones(len(s), dtype=torch.bool)
    nobody = torch.zeros(len(s), dtype=torch.long)
    mined, memory = pairs_where(everyone, ~everyone), References(references, nobody, None)
    assert losses["fastap"](bins=bins)(anchor, nobody[:1], mined, memory).item() == pytest.approx(
        0, abs=1e-5
    )


# --- 26. NaN on duplicates, and where a batch has no positive, no negative or no active term ---


def batches_that_break() -> dict[str, tuple[Tensor, Tensor]]:
    z, y = draw_batch(26)
    same = z[:1].expand(6, DIM).clone()
    twice, opposite = z.clone(), z.clone()
    twice[:7] = z[7:]
    opposite[:7] = -z[7:]
    return {
        "duplicates": (twice, y),
        "opposites": (opposite, y),
        "all the same": (same, torch.tensor([0, 0, 0, 1, 1, 2])),
        "all the same in one class": (same, torch.zeros(6, dtype=torch.long)),
        "no positive": (z[:4], torch.arange(4)),
        "no negative": (z[:4], torch.zeros(4, dtype=torch.long)),
        "one sample": (z[:1], torch.zeros(1, dtype=torch.long)),
        "zeros": (torch.zeros(6, DIM, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])),
    }


@for_each("case", list(batches_that_break()))
@for_each("name", BUILT_IN)
def test_pitfall_26_value_and_gradient_are_finite_whatever_is_missing_or_coincides(
    name: str, case: str
) -> None:
    z, y = batches_that_break()[case]
    for dtype in (torch.float32, torch.float64):
        loss, batch = build(name, dtype=dtype), leaf(z.to(dtype))
        value = loss(batch, y)
        assert torch.isfinite(value)
        gradients = torch.autograd.grad(value, [batch, *loss.parameters()], allow_unused=True)
        assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)
        assert gradients[0] is not None


def test_pitfall_26_the_naive_forms_give_nan() -> None:
    same = leaf(torch.ones(2, 3))
    naive = ((same[:1] - same[1:]) ** 2).sum().sqrt()
    assert not torch.isfinite(gradient_of(naive, same)[0]).all()
    assert torch.empty(0).mean().isnan()


@for_each("name", [name for name in BUILT_IN if losses[name].compares != "classes"])
@for_each("labels", [[0, 1, 2, 3], [0]], ids=["no positive", "one sample"])
def test_pitfall_26_a_batch_without_positives_costs_only_what_its_equation_says(
    name: str, labels: list[int]
) -> None:
    """Nothing, but for multi-similarity, whose negatives count by themselves, what pushes all
    negatives apart, and structured clustering, where a single class costs the margin.
    """
    z, _ = draw_batch(26)
    value = build(name)(z[: len(labels)], torch.tensor(labels)).item()
    by_themselves = {
        "contrastive",
        "multi_similarity",
        "ranked_list",
        "snr_contrastive",
        "structured_clustering",
        "xbm_contrastive",
    }
    assert value == 0 if name not in by_themselves else value >= 0


@pytest.mark.parametrize(
    "name",
    [
        "contrastive",
        "lifted_generalized",
        "margin",
        "margin_per_class",
        "quadruplet",
        "ranked_list",
        "triplet",
        "triplet_mean",
    ],
)
def test_pitfall_26_a_batch_without_active_terms_costs_nothing_and_moves_nothing(name: str) -> None:
    """Two of each class at the same place, classes at opposite ends; the mean over active terms
    would be 0/0.
    """
    z = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    z, y = leaf(z), torch.tensor([0, 0, 1, 1, 2, 2])
    loss = build(
        name, dim=2, classes=3, **({"margin": 0.0} if name == "lifted_generalized" else {})
    )
    if name.startswith("margin"):
        loss.beta.data.fill_(0.7)
    value = loss(z, y)
    assert value.item() == 0
    assert gradient_of(value, z)[0].eq(0).all()


# --- 27, 28. (positive pairs x negative pairs), and cubes ---


def test_pitfall_27_the_watch_sees_what_it_should_refuse() -> None:
    z = torch.randn(16, 4)
    with LargestTensor() as largest:
        (z @ z.T)[:, :, None] - (z @ z.T)[:, None, :]
    assert largest.elements == 16**3


@for_each("name", BUILT_IN)
def test_pitfall_27_and_28_nothing_exceeds_positive_pairs_times_batch(name: str) -> None:
    """128 classes x 4: 1,536 positive pairs x 512. Pairs x pairs would be 508 times as much, a cube
    170 times.
    """
    count, per_class = 512, 4
    y = torch.arange(count) % (count // per_class)
    z = leaf(draw_batch(27, [1] * count, dim=8)[0].float())
    loss = build(name, 8, count // per_class, torch.float32)
    with LargestTensor() as largest:
        loss(z, y).backward()
    assert count <= largest.elements <= count * (per_class - 1) * count


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, miner in miners.items()
        if miner.__module__.startswith("assay.") and name != "listed_triplets"
    ],
)
def test_pitfall_28_no_miner_exceeds_positive_pairs_times_batch(name: str) -> None:
    count, per_class = 512, 4
    y = torch.arange(count) % (count // per_class)
    z = draw_batch(28, [1] * count, dim=8)[0].float()
    with LargestTensor() as largest:
        miners[name]()(z, y)
    assert count**2 <= largest.elements <= count * (per_class - 1) * count


def test_pitfall_28_listed_triplets_do_not_exceed_the_batch_times_itself() -> None:
    """Its batches are of three equal parts."""
    count = 510
    with LargestTensor() as largest:
        miners["listed_triplets"]()(torch.randn(count, 8), torch.arange(count) % 17)
    assert largest.elements == count**2


# --- 29. Smooth-AP right only for square, grouped batches ---


def smooth_ap(z: Tensor, positives: list[list[int]], temperature: float = 0.1) -> float:
    s = F.normalize(z) @ F.normalize(z).T
    precisions = []
    for a, mine in enumerate(positives):
        terms = []
        for p in mine:
            above = {
                j: torch.sigmoid((s[a, j] - s[a, p]) / temperature).item()
                for j in range(len(z))
                if j not in (a, p)
            }
            terms.append((1 + sum(above[j] for j in mine if j != p)) / (1 + sum(above.values())))
        if terms:
            precisions.append(sum(terms) / len(terms))
    return 1 - sum(precisions) / len(precisions)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [2, 2, 2, 2], [4, 4], [2, 5, 3], [1, 6, 2]], ids=str)
def test_pitfall_29_smooth_ap_is_right_for_classes_of_any_size_in_any_order(
    sizes: list[int],
) -> None:
    z, y = draw_batch(29, sizes)
    count, step = len(y), len(y) // len(sizes)
    grouped = [[j for j in range(count) if j != i and j // step == i // step] for i in range(count)]
    by_label = [[j for j in range(count) if j != i and y[j] == y[i]] for i in range(count)]
    value = build("smooth_ap", temperature=0.1)(z, y).item()
    assert value == approx(smooth_ap(z, by_label))
    assert differs(value, smooth_ap(z, grouped))


# --- 30. Circle: gradient through the weights; log-sum-exp without a maximum shift ---


def circle(s: Tensor, positive: Tensor, margin: float, gamma: float, constant: bool) -> Tensor:
    """Mean over anchors, from similarities (N, M), without a maximum shift."""
    fixed = s.detach() if constant else s
    pull = -gamma * (1 + margin - fixed).clamp(min=0) * (s - 1 + margin)
    push = gamma * (fixed + margin).clamp(min=0) * (s - margin)
    own = (
        ~torch.eye(len(s), dtype=torch.bool)
        if s.shape[0] == s.shape[1]
        else torch.ones_like(positive)
    )
    pulls = (pull.exp() * (positive & own)).sum(1)
    pushes = (push.exp() * ~positive).sum(1)
    return torch.log1p(pulls * pushes).mean()


@pytest.mark.parametrize("name", ["circle", "circle_class"])
def test_pitfall_30_the_weights_of_circle_are_constant_in_its_gradient(name: str) -> None:
    z, y = draw_batch(30)
    loss = build(name, gamma=8.0)
    batches = [leaf(z) for _ in range(3)]
    labels = y if name == "circle" else torch.arange(CLASSES)
    values = [loss(batches[0], y)]
    for batch, constant in zip(batches[1:], (True, False), strict=True):
        unit = F.normalize(batch)
        s = unit @ (unit if name == "circle" else F.normalize(loss.weights.detach())).T
        values.append(circle(s, y[:, None] == labels, 0.4, 8.0, constant))
    found, right, defective = (
        gradient_of(value, batch)[0] for value, batch in zip(values, batches, strict=True)
    )
    torch.testing.assert_close(values[0], values[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(values[0], values[2], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-10)
    assert (found - defective).norm() > 0.1 * found.norm()


@pytest.mark.parametrize("name", ["circle", "circle_class"])
def test_pitfall_30_circle_is_finite_where_its_exponentials_are_not(name: str) -> None:
    """Positives opposite and negatives on the anchor: exponents of 512 x 2.4 x 1.6 and 512 x 1.4 x
    0.6.
    """
    place = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    z, y = leaf(place[[0, 1, 0, 1]]), torch.tensor([0, 0, 1, 1])
    loss = build(name, 2, 2, torch.float32, gamma=512.0)
    if name == "circle_class":
        loss.weights.data = place.flip(0)
        z, y = leaf(place), torch.tensor([0, 1])
    pull, push = 512 * 2.4 * 1.6, 512 * 1.4 * 0.6
    twin = (
        math.log1p(math.exp(-push)) if name == "circle" else 0.0
    )  # the other negative is opposite and weighs nothing
    value = loss(z, y)
    assert math.isinf(torch.tensor(pull).exp().item())
    assert value.item() == pytest.approx(pull + push + twin, rel=1e-5)
    assert all(
        torch.isfinite(gradient).all() for gradient in gradient_of(value, z, *loss.parameters())
    )


# --- 31. Distance-weighted sampling: no upper cut-off; rows that underflow ---


def on_sphere(distances_to_first: list[float], dim: int, copies: int) -> tuple[Tensor, Tensor]:
    """Samples of class 0 at one place, as many as `copies`; one other of class 1 at each of the
    distances.
    """
    others = torch.zeros(len(distances_to_first), dim, dtype=torch.float64)
    for row, d in enumerate(distances_to_first):
        others[row, 0] = 1 - d**2 / 2
        others[row, 1 + row] = math.sqrt(1 - others[row, 0].item() ** 2)
    z = torch.cat([torch.eye(1, dim, dtype=torch.float64).expand(copies, dim), others])
    return z, torch.tensor([0] * copies + [1] * len(distances_to_first))


def drawn_for_class_0(z: Tensor, y: Tensor, seed: int) -> list[int]:
    """How often each sample of class 1 was drawn for a pair of class 0."""
    torch.manual_seed(seed)
    mined = miners["distance_weighted"]()(z, y)
    assert isinstance(mined, Triplets)
    rows = y[mined.anchor] == 0
    assert (mined.negative.sum(1) == 1).all()
    return mined.negative[rows].sum(0)[y == 1].tolist()


def log_weight(d: float, dim: int) -> float:
    d = max(d, 0.5)
    return (2 - dim) * math.log(d) - (dim - 3) / 2 * math.log(1 - d**2 / 4)


@pytest.mark.parametrize("dim", [8, 128, 512])
def test_pitfall_31_nothing_beyond_the_limit_is_drawn_while_there_is_something_within(
    dim: int,
) -> None:
    distances = [1.38, 1.41, 1.6, 1.99]
    assert log_weight(1.99, dim) > log_weight(1.38, dim) + 1, (
        "without the limit the farthest would be drawn"
    )
    z, y = on_sphere(distances, dim, copies=40)
    assert drawn_for_class_0(z, y, seed=31) == [40 * 39, 0, 0, 0]


@pytest.mark.parametrize("dim", [8, 512])
def test_pitfall_31_an_anchor_without_a_negative_within_the_limit_draws_evenly(dim: int) -> None:
    """Weights of 0 divided by their sum would be NaN."""
    z, y = on_sphere([1.45, 1.6, 1.8, 1.95], dim, copies=60)
    counts, pairs = drawn_for_class_0(z, y, seed=32), 60 * 59
    assert sum(counts) == pairs
    chi_square = sum((count - pairs / 4) ** 2 / (pairs / 4) for count in counts)
    assert chi_square < 16.3, "the 0.1 % quantile of three degrees of freedom"


def test_pitfall_31_negatives_are_drawn_in_proportion_to_their_weights() -> None:
    distances, dim = [0.3, 0.5, 0.7, 1.0, 1.3], 6
    z, y = on_sphere(distances, dim, copies=90)
    counts, pairs = drawn_for_class_0(z, y, seed=33), 90 * 89
    weights = [math.exp(log_weight(d, dim)) for d in distances]
    assert weights[0] == weights[1], "a distance below the cutoff counts as the cutoff"
    expected = [pairs * weight / sum(weights) for weight in weights]
    chi_square = sum(
        (count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)
    )
    assert chi_square < 18.5, "the 0.1 % quantile of four degrees of freedom"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pitfall_31_weights_do_not_underflow_in_many_dimensions(dtype: torch.dtype) -> None:
    """A near pair elsewhere in the batch is so heavy at D = 512 that beside it every other weight
    is 0.
    """
    dim, distances = 512, [1.25, 1.252, 1.3]
    z, y = on_sphere(distances, dim, copies=60)
    near = torch.zeros(2, dim, dtype=torch.float64)
    near[:, -1] = 1
    z, y = torch.cat([z, near]), torch.cat([y, torch.tensor([2, 3])])
    largest = log_weight(0.0, dim)
    beside_the_largest = [
        torch.tensor(log_weight(d, dim) - largest, dtype=torch.float32).exp().item()
        for d in distances
    ]
    assert beside_the_largest == [
        0,
        0,
        0,
    ], "a maximum over the whole batch leaves nothing of these rows"
    counts, pairs = drawn_for_class_0(z.to(dtype), y, seed=34), 60 * 59
    weights = [math.exp(log_weight(d, dim) - log_weight(distances[0], dim)) for d in distances]
    expected = [pairs * weight / sum(weights) for weight in weights]
    assert sum(counts) == pairs
    for count, mean in zip(counts, expected, strict=True):
        assert count == pytest.approx(mean, abs=5 * math.sqrt(mean) + 1)


# --- 32. Quadruplet's fourth sample without a class constraint ---


def quadruplet(
    z: Tensor,
    y: Tensor,
    allowed: Callable[[int, int, int], bool],
    margin: float,
    pair_margin: float,
) -> float:
    """All quadruplets (a, p, n, n') one by one; `allowed` says which labels of a, n and n' make
    one.
    """
    d = torch.cdist(
        F.normalize(z), F.normalize(z), compute_mode="donot_use_mm_for_euclid_dist"
    ).tolist()
    label, everyone = y.tolist(), range(len(y))
    near = [max(0.0, d[a][p] - d[a][n] + margin) for a, p in pairs_of(y) for n in others_of(y, a)]
    far = [
        max(0.0, d[a][p] - d[n][m] + pair_margin)
        for a, p in pairs_of(y)
        for n in others_of(y, a)
        for m in everyone
        if m != n and allowed(label[a], label[n], label[m])
    ]
    return sum(near) / len(near) + (sum(far) / len(far) if far else 0.0)


def of_three_classes(a: int, n: int, m: int) -> bool:
    return len({a, n, m}) == 3


def anything(a: int, n: int, m: int) -> bool:
    return True


def not_the_negatives(a: int, n: int, m: int) -> bool:
    return n != m


def not_the_anchors(a: int, n: int, m: int) -> bool:
    return a != m


@pytest.mark.parametrize("seed", range(4))
def test_pitfall_32_the_fourth_sample_is_of_a_third_class(seed: int) -> None:
    z, y = draw_batch(seed, [3, 2, 4, 1])
    value = build("quadruplet", margin=0.2, pair_margin=0.3)(z, y).item()
    assert value == approx(quadruplet(z, y, of_three_classes, 0.2, 0.3))
    for lax in (anything, not_the_negatives, not_the_anchors):
        assert differs(value, quadruplet(z, y, lax, 0.2, 0.3))


def test_pitfall_32_with_two_classes_there_is_no_quadruplet() -> None:
    z, y = draw_batch(32, [3, 4])
    value = build("quadruplet", margin=0.2, pair_margin=1.0)(z, y).item()
    assert value == approx(quadruplet(z, y, of_three_classes, 0.2, 1.0))
    assert value == approx(build("triplet_mean", margin=0.2)(z, y).item())
    assert differs(value, quadruplet(z, y, anything, 0.2, 1.0))


# --- 33. Cross-batch memory whose queue position is not saved; indices beyond a queue not full ---


def test_pitfall_33_the_place_in_the_queue_is_saved() -> None:
    """pytorch-metric-learning keeps it in a plain number: a memory that was saved and loaded is
    taken for empty, and its next batch replaces the newest.
    """
    theirs, loaded = (
        pml.CrossBatchMemory(pml.ContrastiveLoss(), embedding_size=DIM, memory_size=30)
        for _ in range(2)
    )
    ours, ours_loaded = (build("xbm_contrastive", warmup=0.0, memory=0.003) for _ in range(2))
    assert len(ours.labels) == 30
    past, labels = draw_batch(33)
    for loss in (theirs, ours):
        loss(past, labels)
    loaded.load_state_dict(theirs.state_dict())
    ours_loaded.load_state_dict(ours.state_dict())
    z, y = draw_batch(34)
    assert ours_loaded(z, y).item() == ours(z, y).item()
    assert differs(loaded(z, y).item(), theirs(z, y).item())


def test_pitfall_33_a_queue_that_is_not_full_has_no_further_places() -> None:
    """Batches that do not divide the queue, until it has wrapped around twice."""
    loss, past = build("xbm_multi_similarity", warmup=0.0, memory=0.001), 0
    assert len(loss.labels) == 10
    for number, size in enumerate([3, 3, 3, 3, 3, 3, 3]):
        z, y = draw_batch(number, [size])
        past += size
        loss(z, y + 5)
        assert loss.labels.count_nonzero() == min(past, 10)


# --- 34. Weights turned to half precision for good after one half-precision batch ---

HALF_PRECISION = """
import json, sys, torch
from assay.losses import losses
from pytorch_metric_learning import losses as pml

z, y = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3

def measure(loss):
    before = loss(z, y).item()
    start = [weight.detach().clone() for weight in loss.parameters()]
    half = z.bfloat16().requires_grad_()
    loss(half, y).backward()
    weights = list(loss.parameters())
    return {
        "weights": [str(weight.dtype) for weight in weights],
        "gradients": [str(weight.grad.dtype) for weight in weights],
        "kept": all(torch.equal(weight.float(), old) for weight, old in zip(weights, start)),
        "before": before,
        "after": loss(z, y).item(),
    }

results = {"theirs": measure(pml.NormalizedSoftmaxLoss(3, 8))}
for name in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    loss = losses[name]()
    loss.setup(8, 3)
    loss.prepare(10_000, 8)
    results[name] = measure(loss)
print(json.dumps(results))
"""


def test_pitfall_34_weights_stay_in_single_precision_after_a_half_precision_batch() -> None:
    """pytorch-metric-learning casts its weights in place to the type of the batch, and back: their
    last digits are gone.
    """
    with_weights = [name for name in BUILT_IN if list(build(name).parameters())]
    measured = run_script(HALF_PRECISION, with_weights)
    theirs = measured.pop("theirs")
    assert not theirs["kept"]
    assert theirs["after"] != theirs["before"]
    assert set(measured) == set(with_weights)
    for name, found in measured.items():
        assert set(found["weights"]) == set(found["gradients"]) == {"torch.float32"}, name
        assert found["kept"], name
        assert found["after"] == found["before"], name


@for_each("name", BUILT_IN)
def test_pitfall_34_double_precision_does_not_pass_through_single_precision(name: str) -> None:
    """Whole numbers and masks times a Python float become torch's default type: what is left of it
    shows if that changes.
    """
    z, y = draw_batch(34)
    loss, results = build(name), []
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            batch = leaf(z)
            value = loss(batch, y)
            results.append([value, *gradient_of(value, batch, *loss.parameters())])
        finally:
            torch.set_default_dtype(torch.float32)
    for single, double in zip(*results, strict=True):
        assert single.dtype == torch.float64
        torch.testing.assert_close(single, double, rtol=1e-13, atol=1e-15)
