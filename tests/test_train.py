"""Training of one network: the checkpoint that is kept, when it ends, what it depends on, what is
frozen; and the PCA of the baseline.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor

from assay.data.packs import View
from assay.embedding import embed_samples
from assay.errors import BadInput
from assay.fitters import pca
from assay.losses import losses
from assay.losses.loss import Loss
from assay.methods import BuiltMethod
from assay.metrics import evaluate
from assay.miners import miners
from assay.model import Architecture, Model
from assay.pairs import Pairs, References, Triplets
from assay.protocols import Batch, Optimiser, Protocol, ResolvedAugment, ResolvedProtocol, resolve
from assay.registry import Paper
from assay.samplers import samplers
from assay.train import (
    Fit,
    ReadBatch,
    Trainee,
    Validator,
    groups_of,
    iterations_of,
    make_optimiser,
    optimiser_of,
    set_training,
    step,
)
from assay.train.optimisers import share_of_rate
from assay.trunks import trunk_facts
from heads import fit_one

CPU = torch.device("cpu")
SHAPE = (4, 4)
PROTOCOL = resolve(
    Protocol(
        "test.v1",
        dim=4,
        batch=Batch(SHAPE, SHAPE),
        optimiser=Optimiser(lr=0.01, weight_decay=0),
        iterations=3,
        epochs=6,
        validate_every=1,
        patience=100,
    ),
    "features",
    trunk_facts,
)


# --- Small worlds to train in ---


def vectors(classes: range, seed: int, per_class: int = 6, dim: int = 8) -> View:
    """Classes that differ in two directions, under noise that is larger in the others."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.array(classes), per_class)
    centres = np.random.default_rng(99).normal(size=(100, 2))
    x = draw.normal(size=(len(y), dim))
    x[:, :2] = centres[y] + 0.3 * draw.normal(size=(len(y), 2))
    return View(x.astype(np.float32), y)


def pictures(classes: range, seed: int) -> View:
    draw = np.random.default_rng(seed)
    y = np.repeat(np.array(classes), 5)
    return View(draw.integers(0, 256, size=(len(y), 16, 16, 1), dtype=np.uint8), y)


TRAIN, VALIDATION = vectors(range(10, 16), 1), vectors(range(20, 26), 2)


def new_model(seed: int = 0, trunk: str = "identity", inputs: int = 8) -> Model:
    torch.manual_seed(seed)
    return Model(Architecture(trunk, inputs, 0 if trunk == "identity" else 16, 4))


def built(
    loss: Loss, lr: float = 0.01, weights_lr: float = 0.01, miner: str | None = None
) -> BuiltMethod:
    return BuiltMethod(loss, miners[miner]() if miner else None, lr, weights_lr)


def train(
    loss: Loss,
    protocol: ResolvedProtocol = PROTOCOL,
    model: Model | None = None,
    seed: int = 0,
    **rates: Any,
) -> Fit:
    return fit_one(
        model or new_model(), built(loss, **rates), TRAIN, VALIDATION, protocol, SHAPE, seed
    )


class Scripted(Loss):
    """A loss that calls `term` with the number of the iteration, from 1, embeddings and labels."""

    paper: ClassVar[Paper] = Paper("none", 2000, "example.org")
    normalise = False

    def __init__(self, term: Callable[[int, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.term, self.iterations = term, itertools.count(1)

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        mined: Pairs | Triplets | None = None,
        references: References | None = None,
    ) -> Tensor:
        return self.term(next(self.iterations), z, y)


def first_well_then_badly(until: int) -> Scripted:
    """Return the triplet loss, and after iteration `until` its opposite."""
    triplet = losses["triplet"](margin=0.5)
    return Scripted(lambda number, z, y: triplet(z, y) * (1 if number <= until else -1))


def constant(value: float = 0.0) -> Scripted:
    """Return a loss whose gradient is 0."""
    return Scripted(lambda number, z, y: z.sum() * 0 + value)


def validation_of(weights: dict[str, Tensor]) -> float:
    """Return MAP@R of the validation view under these weights, without a validator."""
    model = new_model()
    model.load_state_dict(weights)
    return evaluate(embed_samples(model, VALIDATION.x, 0, CPU), VALIDATION.y)["map_at_r"]


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def epochs(result: Fit) -> list[int]:
    return [checkpoint.epoch for checkpoint in result.history]


# --- Which checkpoint is kept ---


def test_training_improves_on_the_untrained_model() -> None:
    result = train(losses["triplet"](), replace(PROTOCOL, epochs=15))
    assert result.best.epoch > 0
    assert result.best.validation["map_at_r"] > result.history[0].validation["map_at_r"] + 0.05


def test_the_model_before_training_counts_as_a_checkpoint() -> None:
    """A head that already looks where the classes differ, and a loss that teaches it otherwise."""
    model = new_model()
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(4, 8) * torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    before = model.state()
    result = train(first_well_then_badly(until=0), model=model, lr=0.1)
    assert result.history[0].epoch == 0
    assert result.history[0].loss is None
    assert result.best is result.history[0]
    assert equal(result.weights, before)
    assert not equal(model.state(), before)


def test_the_best_checkpoint_is_that_of_the_highest_validation_map_at_r() -> None:
    result = train(first_well_then_badly(until=12), replace(PROTOCOL, epochs=10), lr=0.03)
    scores = [checkpoint.validation["map_at_r"] for checkpoint in result.history]
    assert 0 < result.best.epoch < 10
    assert result.best.validation["map_at_r"] == max(scores) > scores[-1]
    assert result.best == result.history[scores.index(max(scores))]


def test_the_weights_kept_are_those_of_the_best_checkpoint() -> None:
    """They are a copy, not the model that went on training: scored again they give the number in
    the history.
    """
    result = train(first_well_then_badly(until=12), replace(PROTOCOL, epochs=10), lr=0.03)
    assert validation_of(result.weights) == result.best.validation["map_at_r"]
    again = train(
        first_well_then_badly(until=12), replace(PROTOCOL, epochs=result.best.epoch), lr=0.03
    )
    assert equal(again.weights, result.weights)


def test_a_checkpoint_that_is_only_as_good_does_not_replace_the_first() -> None:
    result = train(constant(), replace(PROTOCOL, epochs=4), lr=1e-12)
    assert len({checkpoint.validation["map_at_r"] for checkpoint in result.history}) == 1
    assert result.best.epoch == 0


def test_the_validation_view_alone_decides_which_checkpoint_is_best() -> None:
    """Pitfall 11. Other validation labels change no weight in training, only the choice."""
    shuffled = View(VALIDATION.x, np.random.default_rng(5).permutation(VALIDATION.y))
    models = [new_model(), new_model()]
    results = [
        fit_one(model, built(losses["triplet"]()), TRAIN, view, PROTOCOL, SHAPE, 0)
        for model, view in zip(models, (VALIDATION, shuffled), strict=True)
    ]
    assert equal(models[0].state(), models[1].state())
    assert results[0].best.validation != results[1].best.validation


# --- When it ends ---


def test_patience_is_counted_in_epochs_since_the_best() -> None:
    result = train(constant(), replace(PROTOCOL, epochs=50, patience=3))
    assert epochs(result) == [0, 1, 2, 3]
    assert result.status == "finished"


def test_patience_is_looked_at_only_where_there_is_a_validation() -> None:
    result = train(constant(), replace(PROTOCOL, epochs=50, patience=3, validate_every=2))
    assert epochs(result) == [0, 2, 4]


def test_patience_starts_anew_with_a_better_checkpoint() -> None:
    result = train(
        first_well_then_badly(until=12), replace(PROTOCOL, epochs=40, patience=5), lr=0.03
    )
    assert result.best.epoch > 0
    assert result.history[-1].epoch == result.best.epoch + 5


def test_the_last_epoch_is_validated_even_between_two_validations() -> None:
    """Pitfall 19."""
    assert epochs(train(constant(), replace(PROTOCOL, epochs=5, validate_every=2))) == [0, 2, 4, 5]
    assert epochs(train(constant(), replace(PROTOCOL, epochs=2, validate_every=7))) == [0, 2]


def test_an_epoch_has_as_many_iterations_as_the_protocol_says() -> None:
    loss = constant()
    train(loss, replace(PROTOCOL, epochs=4, iterations=5))
    assert next(loss.iterations) == 4 * 5 + 1


def test_an_epoch_may_be_one_pass_over_the_training_fold() -> None:
    """36 samples; a rest that fills no batch is left out, and there is at least one step."""
    for batch, expected in {(4, 4): 2, (3, 4): 3, (6, 6): 1, (6, 20): 1}.items():
        loss, protocol = constant(), replace(PROTOCOL, epochs=4, iterations=None)
        fit_one(new_model(), built(loss), TRAIN, VALIDATION, protocol, batch, 0)
        assert next(loss.iterations) == 4 * expected + 1, batch
        assert iterations_of(protocol, len(TRAIN.y), batch) == expected, batch
        assert iterations_of(PROTOCOL, len(TRAIN.y), batch) == 3, batch


def test_a_pass_over_few_samples_is_filled_up_to_the_shortest_epoch() -> None:
    protocol = replace(PROTOCOL, iterations=None, shortest_epoch=50)
    steps = [iterations_of(protocol, samples, (8, 4)) for samples in (24, 1600, 1632, 45_000)]
    assert steps == [50, 50, 51, 1406]


@pytest.mark.parametrize("every", [1, 2])
def test_a_checkpoint_holds_the_mean_loss_since_the_one_before(every: int) -> None:
    counting = Scripted(lambda number, z, y: z.sum() * 0 + number)
    result = train(counting, replace(PROTOCOL, epochs=4, iterations=2, validate_every=every))
    expected = {1: [None, 1.5, 3.5, 5.5, 7.5], 2: [None, 2.5, 6.5]}[every]
    assert [checkpoint.loss for checkpoint in result.history] == expected


# --- Divergence ---


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_training_as_diverged(bad: float) -> None:
    triplet = losses["triplet"](margin=0.5)
    script = Scripted(lambda number, z, y: triplet(z, y) * (bad if number == 8 else 1))
    result = train(script, lr=0.03)
    assert result.status == "diverged"
    assert epochs(result) == [0, 1, 2]
    assert all(torch.isfinite(weight).all() for weight in result.weights.values())
    assert validation_of(result.weights) == result.best.validation["map_at_r"]


def test_divergence_keeps_the_best_checkpoint_that_came_before() -> None:
    triplet = losses["triplet"](margin=0.5)
    failing = Scripted(lambda number, z, y: triplet(z, y) * (math.nan if number == 8 else 1))
    result = train(failing, lr=0.03)
    finite = train(losses["triplet"](margin=0.5), replace(PROTOCOL, epochs=2), lr=0.03)
    assert result.best == finite.best
    assert result.best.epoch > 0
    assert equal(result.weights, finite.weights)


def test_divergence_between_two_validations_ends_the_training_in_that_epoch() -> None:
    """Also where the gradient is finite and only the value is not a number."""
    failing = Scripted(lambda number, z, y: z.sum() * 0 + (math.nan if number == 2 else 0))
    result = train(failing, replace(PROTOCOL, epochs=4, iterations=3, validate_every=4))
    assert result.status == "diverged"
    assert epochs(result) == [0]
    assert next(failing.iterations) <= 4


def test_embeddings_that_are_not_finite_end_the_training_as_diverged() -> None:
    """The loss is finite at every step; the step itself overflows."""
    result = train(Scripted(lambda number, z, y: z.sum()), replace(PROTOCOL, iterations=1), lr=1e38)
    assert result.status == "diverged"
    assert result.best.epoch == 0
    assert all(torch.isfinite(weight).all() for weight in result.weights.values())


# --- What it depends on ---


def test_the_same_seed_gives_the_same_bytes_whatever_the_global_generators_hold() -> None:
    """Pitfall 14."""

    def trained(name: str, miner: str | None, noise: int) -> Fit:
        model = new_model()
        torch.manual_seed(3)
        loss = losses[name]()
        loss.setup(4, 6)
        loss.prepare(len(TRAIN.y), 8)
        torch.manual_seed(noise)
        np.random.seed(noise)
        method = built(loss, miner=miner)
        return fit_one(model, method, TRAIN, VALIDATION, PROTOCOL, SHAPE, 7)

    cases = [*((name, None) for name in losses), ("multi_similarity", "multi_similarity")]
    for name, miner in cases:
        first, second = (trained(name, miner, noise) for noise in (1, 2))
        assert first.history == second.history, (name, miner)
        assert equal(first.weights, second.weights), (name, miner)


def test_another_seed_gives_another_training() -> None:
    first, second = (train(losses["triplet"](), seed=seed) for seed in (1, 2))
    assert first.history[0] == second.history[0]
    assert first.history[1:] != second.history[1:]


def train_on_images(noise: int = 0) -> tuple[Fit, Model]:
    """With augmentation and a trunk that has running statistics."""
    wild = ResolvedAugment(area=(0.5, 1.0), aspect=(0.8, 1.25), flip=0.5, rotation=20.0, shear=10.0)
    protocol = replace(PROTOCOL, trunk="conv", size=16, augment=wild, epochs=3, iterations=2)
    seen, unseen, model = pictures(range(4), 1), pictures(range(4, 8), 2), new_model(0, "conv", 1)
    torch.manual_seed(noise)
    return (
        fit_one(model, built(losses["contrastive"]()), seen, unseen, protocol, SHAPE, 3),
        model,
    )


def test_images_train_to_the_same_bytes_whatever_the_global_generators_hold() -> None:
    """Pitfall 14."""
    (first, model), (second, other) = train_on_images(noise=1), train_on_images(noise=2)
    assert first.history == second.history
    assert equal(first.weights, second.weights)
    assert equal(model.state(), other.state())


def test_batch_statistics_are_gathered_in_every_iteration_and_in_no_validation() -> None:
    state = train_on_images()[1].state()
    counts = {int(tensor) for name, tensor in state.items() if name.endswith("num_batches_tracked")}
    assert counts == {3 * 2}


def test_all_methods_see_the_same_batches() -> None:
    """Common random numbers: the batches depend on the seed, not on the method."""
    seen: list[list[tuple[Tensor, Tensor]]] = []
    for value in (0.0, 1.0):
        batches: list[tuple[Tensor, Tensor]] = []

        def remember(
            number: int, z: Tensor, y: Tensor, value: float = value, batches: list[Any] = batches
        ) -> Tensor:
            batches.append((z.detach().clone(), y.clone()))
            return z.sum() * 0 + value

        train(Scripted(remember))
        seen.append(batches)
    assert len(seen[0]) == 18
    for (z, y), (other_z, other_y) in zip(*seen, strict=True):
        assert torch.equal(z, other_z)
        assert torch.equal(y, other_y)


def test_labels_reach_the_loss_numbered_from_zero_and_with_their_samples() -> None:
    """Pitfall 39. Classes 10 .. 15 of the view are 0 .. 5 to the loss."""
    pairs: set[tuple[int, int]] = set()

    def look(number: int, z: Tensor, y: Tensor) -> Tensor:
        nearest = (z.detach()[:, None] - embedded).square().sum(2).argmin(1)
        pairs.update(zip(TRAIN.y[nearest.numpy()].tolist(), y.tolist(), strict=True))
        return z.sum() * 0

    model = new_model()
    with torch.no_grad():
        embedded = model(torch.from_numpy(TRAIN.x))
    train(Scripted(look), model=model)
    assert pairs == {(10 + number, number) for number in range(6)}


def test_batches_have_the_shape_asked_for() -> None:
    shapes = set()

    def look(number: int, z: Tensor, y: Tensor) -> Tensor:
        shapes.add((len(z), len(y.unique()), tuple(y.bincount()[y.unique()].tolist())))
        return z.sum() * 0

    fit_one(new_model(), built(Scripted(look)), TRAIN, VALIDATION, PROTOCOL, (3, 5), 0)
    assert shapes == {(15, 3, (5, 5, 5))}


def test_the_miner_feeds_the_loss_without_a_gradient() -> None:
    mined_by_loss: list[Pairs | Triplets | None] = []

    class Remembering(Scripted):
        def forward(
            self,
            z: Tensor,
            y: Tensor,
            mined: Pairs | Triplets | None = None,
            references: References | None = None,
        ) -> Tensor:
            mined_by_loss.append(mined)
            return z.sum() * 0

    parts = built(Remembering(lambda number, z, y: z.sum()), miner="multi_similarity")
    fit_one(new_model(), parts, TRAIN, VALIDATION, replace(PROTOCOL, epochs=1), SHAPE, 0)
    assert len(mined_by_loss) == 3
    assert all(isinstance(mined, Pairs) and mined.positive.any() for mined in mined_by_loss)


# --- Learning rates ---


def steps(lr: float, weights_lr: float) -> Iterator[float]:
    """Yield how far the head and then the class weights move in training."""
    torch.manual_seed(0)
    loss = losses["normalized_softmax"]()
    loss.setup(4, 6)
    weights = [weight.detach().clone() for weight in loss.parameters()]
    model = new_model()
    before = model.state()
    train(loss, replace(PROTOCOL, epochs=1), model, lr=lr, weights_lr=weights_lr)
    yield max((model.state()[name] - before[name]).abs().max().item() for name in before)
    yield max(
        (now - then).abs().max().item()
        for now, then in zip(loss.parameters(), weights, strict=True)
    )


def test_class_weights_have_a_learning_rate_of_their_own() -> None:
    head, weights = steps(lr=0.01, weights_lr=0.0)
    assert head > 1e-3
    assert weights == 0
    head, weights = steps(lr=0.0, weights_lr=0.01)
    assert head == 0
    assert weights > 1e-3


def test_a_learning_rate_ten_times_larger_takes_steps_ten_times_larger() -> None:
    """RMSprop: the first step of each weight is its learning rate times a constant."""
    _, slow = steps(lr=0.0, weights_lr=1e-5)
    _, fast = steps(lr=0.0, weights_lr=1e-4)
    assert fast == pytest.approx(10 * slow, rel=0.02)


def test_a_cosine_lets_every_learning_rate_fall_to_zero_over_all_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[list[float]] = []

    def watched(*arguments: Any) -> float:
        rates.append([group["lr"] for group in arguments[2].param_groups])
        return step(*arguments)

    monkeypatch.setattr("assay.train.one_network.step", watched)
    loss = losses["normalized_softmax"]()
    loss.setup(4, 6)
    optimiser = Optimiser(schedule="cosine")
    train(
        loss,
        replace(PROTOCOL, epochs=2, iterations=4, optimiser=optimiser),
        lr=0.01,
        weights_lr=0.1,
    )
    shares = [(1 + math.cos(math.pi * done / 8)) / 2 for done in range(8)]
    assert [rate for rate, _ in rates] == pytest.approx([0.01 * share for share in shares])
    assert [rate for _, rate in rates] == pytest.approx([0.1 * share for share in shares])


def test_a_constant_schedule_leaves_learning_rates_alone() -> None:
    assert {share_of_rate("constant", done, 8) for done in range(8)} == {1.0}


def test_a_fused_optimiser_steps_along_weights_of_any_layout() -> None:
    """Convolutions are kept in channels_last; a fused step goes by memory and not by strides."""
    protocol = replace(PROTOCOL, optimiser=Optimiser(kind="adamw"))
    models = [Model(Architecture("conv", 1, 16, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = optimiser_of(models[0], built(constant()), protocol)
    plain = torch.optim.AdamW(models[1].parameters(), lr=0.01, weight_decay=1e-4, foreach=False)
    x = torch.rand(8, 1, 16, 16)
    for model, optimiser in zip(models, (ours, plain), strict=True):
        model(x).square().mean().backward()
        optimiser.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_weight_decay_of_the_protocol_is_applied() -> None:
    model, still = new_model(), new_model()
    train(constant(), replace(PROTOCOL, optimiser=Optimiser(weight_decay=0.1)), model)
    assert model.head.weight.norm() < still.head.weight.norm()


def still(name: str) -> Loss:
    """Return a loss with weights whose gradients are 0: only decay moves them."""

    base: Any = losses[name]

    class Still(base):  # type: ignore[misc]
        def forward(self, z: Tensor, *_: Any) -> Tensor:
            return z.sum() * 0 + sum(
                (weight.sum() * 0 for weight in self.parameters()), start=z.new_zeros(())
            )

    torch.manual_seed(0)
    loss: Loss = Still()
    loss.setup(4, 6)
    return loss


def moved_by_decay(loss: Loss) -> dict[str, bool]:
    """Return which weights a training under this flat loss has moved, after checking that they
    moved towards 0.
    """
    before = {name: weight.detach().clone() for name, weight in loss.named_parameters()}
    train(loss, replace(PROTOCOL, optimiser=Optimiser(weight_decay=0.1)), weights_lr=0.01)
    after = dict(loss.named_parameters())
    assert all(after[name].norm() <= before[name].norm() for name in before)
    return {name: not torch.equal(after[name], before[name]) for name in before}


def test_the_boundary_of_margin_is_not_decayed() -> None:
    for name in ("margin", "margin_per_class"):
        assert moved_by_decay(still(name)) == {"beta": False}, name


def test_other_weights_of_a_loss_are_decayed() -> None:
    for name in ("normalized_softmax", "soft_triple", "proxy_anchor"):
        assert moved_by_decay(still(name)) == {"weights": True}, name


def test_a_loss_may_have_weights_of_both_kinds() -> None:
    class Both(Scripted):
        undecayed = ("kept",)

        def __init__(self) -> None:
            super().__init__(
                lambda number, z, y: z.sum() * 0 + (self.kept.sum() + self.shrunk.sum()) * 0
            )
            self.kept, self.shrunk = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))

    assert moved_by_decay(Both()) == {"kept": False, "shrunk": True}


def test_every_weight_is_trained_once_and_at_its_own_rate() -> None:
    protocol = replace(PROTOCOL, optimiser=Optimiser(lr=7.0, momentum=0.5, weight_decay=0.125))
    for name in losses:
        loss, model = losses[name](), new_model()
        loss.setup(4, 6)
        groups = optimiser_of(model, built(loss, lr=0.25, weights_lr=0.5), protocol).param_groups
        found = {
            id(weight): (group["lr"], group["weight_decay"], group["momentum"])
            for group in groups
            for weight in group["params"]
        }
        assert sum(len(group["params"]) for group in groups) == len(found), name
        expected = {id(weight): (0.25, 0.125, 0.5) for weight in model.parameters()}
        for weight_name, weight in loss.named_parameters():
            expected[id(weight)] = (0.5, 0.0 if weight_name in loss.undecayed else 0.125, 0.5)
        assert found == expected, name


# --- Kinds of optimiser ---

AS_TORCH_HAS_IT: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.8, weight_decay=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.999), weight_decay=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.999), weight_decay=0.1),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.8, weight_decay=0.1),
}


@pytest.mark.parametrize("decay_own", [True, False])
@pytest.mark.parametrize("kind", AS_TORCH_HAS_IT)
def test_each_kind_of_optimiser_takes_the_steps_of_torchs_own(kind: Any, decay_own: bool) -> None:
    protocol = replace(
        PROTOCOL,
        optimiser=Optimiser(momentum=0.8, weight_decay=0.1, kind=kind, decay_own=decay_own),
    )
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(5, 3, generator=draw) for _ in range(3)]
    ours, theirs = ([weight.clone().requires_grad_() for weight in start] for _ in range(2))
    parts = built(losses["triplet"](), lr=0.03, weights_lr=0.07)
    groups = groups_of(ours[:2], {"weights": ours[2]}, parts, protocol)
    own = [make_optimiser(groups, protocol.optimiser)]
    group = {"params": theirs[2:], "lr": 0.07, **({} if decay_own else {"weight_decay": 0.0})}
    others = [
        AS_TORCH_HAS_IT[kind]([{"params": theirs[:2], "lr": 0.03}]),
        AS_TORCH_HAS_IT[kind]([group]),
    ]
    for _ in range(5):
        for weights, optimisers in ((ours, own), (theirs, others)):
            for number, weight in enumerate(weights):
                weight.grad = 0.3 * weight.detach() + number - 1
            for optimiser in optimisers:
                optimiser.step()
    for our, their, before in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-6, atol=1e-7)
        assert not torch.equal(our, before)


@pytest.mark.parametrize("kind", AS_TORCH_HAS_IT)
def test_every_kind_of_optimiser_learns(kind: Any) -> None:
    protocol = replace(PROTOCOL, epochs=20, optimiser=Optimiser(kind=kind, weight_decay=0))
    result = train(losses["triplet"](margin=0.3), protocol, lr=0.5 if kind == "sgd" else 0.01)
    assert result.best.validation["map_at_r"] > result.history[0].validation["map_at_r"] + 0.05


def test_the_weights_of_a_loss_need_not_decay() -> None:
    loss = still("normalized_softmax")
    before = loss.weights.detach().clone()
    model = new_model()
    head = model.head.weight.detach().clone()
    train(loss, replace(PROTOCOL, optimiser=Optimiser(weight_decay=0.1, decay_own=False)), model)
    assert torch.equal(loss.weights, before)
    assert model.head.weight.norm() < head.norm()


def test_a_weight_that_is_not_there_cannot_be_kept_from_decay() -> None:
    class Mistaken(Scripted):
        undecayed = ("betta",)

    loss = Mistaken(lambda number, z, y: z.sum())
    loss.beta = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(
        ValueError, match=r"Mistaken\.undecayed names 'betta', but its weights are beta"
    ):
        groups_of([], dict(loss.named_parameters()), built(loss), PROTOCOL)


# --- Frozen batch normalisation ---

ON_IMAGES = replace(PROTOCOL, trunk="conv", size=16, epochs=2, iterations=3)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def with_a_past(seed: int = 0) -> Model:
    """Return a convolutional model whose running statistics are those of other images."""
    model = new_model(seed, "conv", 1)
    model.train()
    with torch.no_grad():
        for _ in range(40):
            model(1.5 * torch.rand(16, 1, 16, 16))
    return model


def trained_on_images(frozen: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return weights and statistics before and after training."""
    model = with_a_past()
    before = model.state()
    protocol = replace(ON_IMAGES, frozen=frozen)
    fit_one(
        model,
        built(losses["contrastive"]()),
        pictures(range(4), 1),
        pictures(range(4, 8), 2),
        protocol,
        SHAPE,
        3,
    )
    return before, model.state()


def test_frozen_batch_normalisation_keeps_its_statistics_and_trains_its_weights() -> None:
    before, after = trained_on_images("batchnorm")
    statistics = [name for name in before if name.endswith(STATISTICS)]
    assert len(statistics) == 4 * 3
    for name in before:
        assert torch.equal(before[name], after[name]) == (name in statistics), name


@pytest.mark.parametrize("frozen", ["nothing", None])
def test_batch_normalisation_that_is_not_frozen_gathers_statistics(frozen: Any) -> None:
    before, after = trained_on_images(frozen)
    for name in before:
        assert not torch.equal(before[name], after[name]), name


def read(x: Tensor, y: Tensor) -> ReadBatch:
    return ReadBatch(x, y, torch.arange(len(y)), 0.0)


@pytest.mark.parametrize("frozen", ["batchnorm", "nothing"])
def test_a_step_uses_the_running_statistics_only_if_they_are_frozen(frozen: Any) -> None:
    model, protocol = with_a_past(), replace(ON_IMAGES, frozen=frozen)
    x, seen = torch.rand(16, 1, 16, 16), []
    with torch.no_grad():
        by_running_statistics = model.eval()(x)
    look = Scripted(lambda number, z, y: seen.append(z.detach().clone()) or z.sum())
    set_training(model, protocol)
    optimiser = optimiser_of(model, built(look), protocol)
    step(model, built(look), optimiser, read(x, torch.arange(16) // 4), protocol, CPU)
    assert torch.allclose(seen[0], by_running_statistics, atol=1e-5) == (frozen == "batchnorm")


@pytest.mark.parametrize(
    "kind", [torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm]
)
def test_every_kind_of_batch_normalisation_is_frozen_and_nothing_else(kind: Any) -> None:
    model = new_model()
    model.trunk.extra = torch.nn.Sequential(kind(3), torch.nn.Dropout(0.5), torch.nn.LayerNorm(3))
    set_training(model, replace(PROTOCOL, frozen="batchnorm"))
    assert [part.training for part in model.trunk.extra] == [False, True, True]
    assert model.training
    set_training(model, replace(PROTOCOL, frozen="nothing"))
    assert all(part.training for part in model.trunk.extra)


def test_training_mode_comes_back_after_every_validation() -> None:
    """The validator leaves the network in evaluation mode; what is frozen stays so."""
    modes: list[tuple[bool, bool]] = []
    model = with_a_past()
    norm = next(part for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d))
    look = Scripted(
        lambda number, z, y: modes.append((model.training, norm.training)) or z.sum() * 0
    )
    for frozen in ("nothing", "batchnorm"):
        protocol = replace(ON_IMAGES, frozen=frozen)
        fit_one(
            model,
            built(look),
            pictures(range(4), 1),
            pictures(range(4, 8), 2),
            protocol,
            SHAPE,
            3,
        )
    assert modes == [(True, True)] * 6 + [(True, False)] * 6


# --- Precision and compilation ---


def test_autocast_is_off_on_the_cpu_even_if_asked_for() -> None:
    """Pitfall 34. And the same bytes come out."""
    seen: set[torch.dtype] = set()

    def look(number: int, z: Tensor, y: Tensor) -> Tensor:
        seen.add(z.dtype)
        return (z.square().sum(1) - 1).square().mean()

    results = [
        train(Scripted(look), replace(PROTOCOL, autocast=autocast)) for autocast in (False, True)
    ]
    assert seen == {torch.float32}
    assert results[0].history == results[1].history
    assert equal(results[0].weights, results[1].weights)
    assert {weight.dtype for weight in results[1].weights.values()} == {torch.float32}


def test_autocast_on_a_gpu_covers_the_network_and_neither_miner_nor_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a GPU: what is asked of torch, and what is computed inside of it."""
    inside, asked = [], []

    class Autocast:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            asked.append((arguments, named))

        def __enter__(self) -> None:
            inside.append(1)

        def __exit__(self, *_: Any) -> None:
            inside.pop()

    class Device:
        type = "cuda"

    class Network(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert inside
            return model(x)

    model = new_model()
    loss = Scripted(lambda number, z, y: z.sum() if not inside else z.sum() * math.nan)
    monkeypatch.setattr(torch, "autocast", Autocast)
    monkeypatch.setattr(Tensor, "to", lambda tensor, *_, **__: tensor)
    for autocast in (True, False):
        value, _ = step(
            Network(),
            built(loss),
            optimiser_of(model, built(loss), PROTOCOL),
            read(torch.ones(4, 8), torch.arange(4)),
            replace(PROTOCOL, autocast=autocast),
            Device(),
        )
        assert math.isfinite(value)
    assert asked == [
        (("cuda", torch.bfloat16), {"enabled": True}),
        (("cuda", torch.bfloat16), {"enabled": False}),
    ]


class Compiled(torch.nn.Module):
    """As torch's: wraps the model, shares its weights. Keeps the mode of the model in each call."""

    def __init__(self, model: Model, modes: list[bool]) -> None:
        super().__init__()
        self._orig_mod, self._modes = model, modes

    def forward(self, x: Tensor) -> Tensor:
        self._modes.append(self._orig_mod.training)
        return self._orig_mod(x)


@pytest.fixture
def modes_of_compiled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Modes of compiled models, one a call."""
    modes: list[bool] = []
    monkeypatch.setattr(torch, "compile", lambda model: Compiled(model, modes))
    return modes


@pytest.mark.parametrize("wanted", [True, False])
def test_a_network_is_compiled_where_the_protocol_wants_it(
    wanted: bool, modes_of_compiled: list[bool]
) -> None:
    model = new_model()
    result = train(losses["triplet"](), replace(PROTOCOL, compile=wanted, epochs=2), model)
    assert len(modes_of_compiled) == (2 * 3 + 3 if wanted else 0)
    assert set(result.weights) == {"head.weight", "head.bias"}
    plain = train(losses["triplet"](), replace(PROTOCOL, epochs=2))
    assert equal(result.weights, plain.weights)
    assert result.history == plain.history


def test_a_compiled_network_is_in_training_mode_in_every_step(
    modes_of_compiled: list[bool],
) -> None:
    """Validation sets the wrapper to evaluation: what counts is the mode of the modules within."""
    train(losses["triplet"](), replace(PROTOCOL, compile=True, epochs=2, iterations=2))
    assert modes_of_compiled == [False, True, True, False, True, True, False]


# --- The validator by itself ---


class Scored(torch.nn.Module):
    """A network whose validation score is set: `right` pairs of samples find each other first."""

    def __init__(self) -> None:
        super().__init__()
        self.right = 0

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(len(x)) // 2 * 0.3
        wrong = torch.arange(len(x)) >= 2 * self.right
        angle = torch.where(
            wrong, torch.arange(len(x)) % (len(x) // 2) * 0.3 + 1e-3 * torch.arange(len(x)), angle
        )
        return torch.stack([angle.cos(), angle.sin()], dim=1)


def validator_of(protocol: ResolvedProtocol) -> tuple[Validator, Scored]:
    view, network = View(np.zeros((20, 8), dtype=np.float32), np.arange(20) // 2), Scored()
    parts, rows = built(constant()), np.arange(len(view.y))
    trainee = Trainee(new_model(), parts, view, rows, view, seed=0)
    return Validator(trainee, network, protocol, CPU), network


def end_epochs(validator: Validator, network: Scored, scores: list[int]) -> None:
    for epoch, right in enumerate(scores, start=1):
        network.right = right
        validator.after(epoch, [float(epoch)])


def test_the_validator_keeps_the_first_among_equals() -> None:
    validator, network = validator_of(PROTOCOL)
    end_epochs(validator, network, [4, 7, 7, 5, 7])
    scores = [checkpoint.validation["map_at_r"] for checkpoint in validator.fit.history]
    assert scores[2] == scores[3] == scores[5] == max(scores)
    assert validator.fit.best is validator.fit.history[2]


def test_the_validator_is_done_when_patience_runs_out_and_ignores_later_epochs() -> None:
    validator, network = validator_of(replace(PROTOCOL, patience=2))
    end_epochs(validator, network, [4, 3])
    assert not validator.done
    validator.after(3, [1.0])
    assert validator.done
    network.right = 10
    validator.after(4, [math.nan])
    assert [checkpoint.epoch for checkpoint in validator.fit.history] == [0, 1, 2, 3]
    assert validator.fit.status == "finished"


def test_the_validator_validates_every_so_many_epochs_and_after_the_last() -> None:
    validator, network = validator_of(replace(PROTOCOL, validate_every=3, epochs=7))
    end_epochs(validator, network, [1, 2, 3, 4, 5, 6, 7])
    assert [checkpoint.epoch for checkpoint in validator.fit.history] == [0, 3, 6, 7]
    assert [checkpoint.loss for checkpoint in validator.fit.history] == [None, 2.0, 5.0, 7.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_validator_ends_with_a_divergence_as_soon_as_a_loss_is_not_finite(bad: float) -> None:
    validator, network = validator_of(replace(PROTOCOL, validate_every=5))
    network.right = 9
    validator.after(1, [1.0, bad, 2.0])
    assert (validator.done, validator.fit.status) == (True, "diverged")
    assert [checkpoint.epoch for checkpoint in validator.fit.history] == [0]


# --- The PCA of the baseline ---


def fitted_pca(features: Tensor, width: int) -> torch.nn.Linear:
    return pca(features, torch.zeros(len(features), dtype=torch.long), width)


@pytest.mark.parametrize(
    ("count", "features", "width"), [(50, 6, 3), (50, 6, 6), (8, 20, 5), (30, 1, 1)]
)
def test_pca_is_that_of_scikit_learn_up_to_sign(count: int, features: int, width: int) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, features)) @ np.diag(np.linspace(3, 1, features)) + 5
    expected = PCA(width, svd_solver="full").fit_transform(x)
    with torch.no_grad():
        found = fitted_pca(torch.from_numpy(x).float(), width)(torch.from_numpy(x).float()).numpy()
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-4)


def test_pca_has_orthonormal_directions_whose_largest_entry_is_positive() -> None:
    layer = fitted_pca(torch.randn(40, 7, generator=torch.Generator().manual_seed(0)), 4)
    weight = layer.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(4), atol=1e-6, rtol=0)
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_pca_of_the_same_features_is_the_same_layer() -> None:
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    first, second = (fitted_pca(x, 4).state_dict() for _ in range(2))
    assert equal(first, second)


def test_pca_components_come_in_the_order_of_their_variance() -> None:
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 5.0, 2.0, 4.0, 3.0]
    )
    with torch.no_grad():
        variances = fitted_pca(x, 5)(x).var(0).tolist()
    assert variances == sorted(variances, reverse=True)


def test_embeddings_that_are_not_finite_before_any_training_are_a_divergence() -> None:
    model = new_model()
    with torch.no_grad():
        model.head.bias.fill_(torch.inf)
    result = train(losses["triplet"](), model=model)
    assert result.status == "diverged"
    assert epochs(result) == [0]
    assert result.best.validation["map_at_r"] == 0


def test_a_sampler_that_ends_is_named() -> None:
    @samplers("short")
    def short(y: NDArray[np.int64], batch: tuple[int, int], seed: int) -> Iterator[Any]:
        """Draw two batches."""
        yield from itertools.islice(samplers["balanced"](y, batch, seed), 2)

    try:
        with pytest.raises(BadInput, match="the sampler short has ended"):
            train(losses["triplet"](), replace(PROTOCOL, sampler="short", iterations=3))
    finally:
        del samplers._parts["short"], samplers._origins["short"]
