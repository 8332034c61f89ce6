"""Heads trained as a stack: each learns what it learns alone, with the same bits in any stack."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import assay.run.training
from assay.data.packs import View
from assay.losses import losses
from assay.losses.adopt import adopt
from assay.losses.loss import Loss
from assay.methods import BuiltMethod, Method, methods, space_of
from assay.miners import miners
from assay.miners.miner import Miner
from assay.model import Architecture, Model
from assay.pairs import Mined, References, all_pairs
from assay.protocols import Optimiser, ResolvedBatch, ResolvedProtocol
from assay.records.run import Run
from assay.records.store import Store
from assay.registry import Paper
from assay.run import Training, compute
from assay.run.training import make_trainee
from assay.samplers import samplers
from assay.space import Space
from assay.train import (
    CannotBeTraced,
    Fit,
    HeadStack,
    OneNetwork,
    ResumeFile,
    Trainee,
    can_stack,
    fit,
)
from assay.train.stack import count_places
from heads import PROTOCOL, VIEW, place, runs_of, vectors

CPU = torch.device("cpu")
TRAINED = [name for name, method in methods.items() if method.loss is not None]
ALONE = (
    "margin_distance_weighted",
    "margin_distance_weighted_near",
    "quadruplet",
    "contrastive_sampled",
    "structured_clustering",
    "triplet_sampled",
    "rho_contrastive",
    "rho_triplet",
    "rho_margin",
    "rho_margin_near",
    "rho_snr",
    "xbm_contrastive",
    "xbm_triplet",
    "xbm_margin",
    "xbm_multi_similarity",
)
"""Methods that torch cannot stack, that choose by values, draw numbers or remember past batches:
their runs are trained alone.
"""

OTHER_HEADS = ("proxy_softmax",)
"""Methods whose head has dropout or no bias, or is trained before the trunk: none is stacked."""

STACKED = [name for name in TRAINED if name not in (*ALONE, *OTHER_HEADS)]
UNDETERMINED = {"prototypical": ("head.bias",), "triplet_semihard_squared": ("head.bias",)}
"""Weights that the loss does not determine: distances of raw embeddings do not depend on the bias,
and RMSprop makes steps of rounding errors.
"""


def trainees_of(runs: list[Run], view: View = VIEW) -> list[Trainee]:
    return [make_trainee(run, view) for run in runs]


def fit_alone(one: Trainee, protocol: ResolvedProtocol, batch: tuple[int, int]) -> Fit:
    return fit([one], OneNetwork(protocol, batch, CPU))[0]


def fit_stacked(
    trainees: Sequence[Trainee],
    protocol: ResolvedProtocol,
    batch: tuple[int, int],
    width: int | None = None,
    resume_file: ResumeFile | None = None,
) -> list[Fit]:
    return fit(trainees, HeadStack(trainees[0], protocol, batch, width=width), resume_file)


def differ(first: Tensor, second: Tensor) -> float:
    """Return how far apart two weights are, relative to the length of the second."""
    return ((first - second).norm() / second.norm().clamp(min=1e-12)).item()


def assert_same_losses(found: Fit, expected: Fit) -> None:
    assert found.status == expected.status
    assert [checkpoint.epoch for checkpoint in found.history] == [
        checkpoint.epoch for checkpoint in expected.history
    ]
    for one, other in zip(found.history, expected.history, strict=True):
        assert one.loss == (
            None if other.loss is None else pytest.approx(other.loss, rel=1e-4, abs=1e-6)
        )


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        assert differ(found[name], expected[name]) < 1e-4, name


def assert_same(found: Fit, expected: Fit) -> None:
    assert_same_losses(found, expected)
    for one, other in zip(found.history, expected.history, strict=True):
        assert one.validation == pytest.approx(other.validation, abs=1e-4)
    assert found.best.epoch == expected.best.epoch
    assert_same_weights(found.weights, expected.weights)


def assert_same_bytes(found: Fit, expected: Fit) -> None:
    assert (found.history, found.best, found.status) == (
        expected.history,
        expected.best,
        expected.status,
    )
    assert all(torch.equal(found.weights[key], expected.weights[key]) for key in expected.weights)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the stacks that `compute` has trained."""
    seen: list[int] = []

    def watched(trainees: Any, stepper: Any, *others: Any) -> Any:
        if isinstance(stepper, HeadStack):
            seen.append(len(trainees))
        return fit(trainees, stepper, *others)

    monkeypatch.setattr(assay.run.training, "fit", watched)
    return seen


# --- Every method ---


@pytest.mark.parametrize("name", STACKED)
def test_heads_trained_together_are_those_trained_alone(name: str) -> None:
    runs = runs_of(name)
    together, apart = trainees_of(runs), trainees_of(runs)
    assert can_stack(together[0], CPU)
    found = fit_stacked(together, PROTOCOL, runs[0].batch)
    for fitted, one, other in zip(found, together, apart, strict=True):
        expected = fit_alone(other, PROTOCOL, runs[0].batch)
        (assert_same_losses if name in UNDETERMINED else assert_same)(fitted, expected)
        assert fitted.history[-1].loss != fitted.history[1].loss
        left_out = UNDETERMINED.get(name, ())
        last, others = (
            {key: weight for key, weight in of.model.state().items() if key not in left_out}
            for of in (one, other)
        )
        assert_same_weights(last, others)
        assert_same_weights(
            dict(one.method.loss.named_parameters()), dict(other.method.loss.named_parameters())
        )


@pytest.mark.parametrize("name", ALONE)
def test_these_methods_cannot_be_stacked(name: str) -> None:
    """Nor the second time: torch gives some warnings only once, and the bytes of a run depend on
    whether it is stacked.
    """
    runs = runs_of(name)
    for _ in range(2):
        with pytest.raises(CannotBeTraced):
            fit_stacked(trainees_of(runs), PROTOCOL, runs[0].batch)


@pytest.mark.parametrize("name", ALONE)
def test_runs_that_cannot_be_stacked_are_trained_as_if_that_had_not_been_tried(name: str) -> None:
    runs = runs_of(name)
    for found, run in zip(compute(runs, VIEW), runs, strict=True):
        assert_same_bytes(found, fit_alone(make_trainee(run, VIEW), PROTOCOL, run.batch))


def test_what_cannot_be_stacked_is_tried_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """With numbers that differ from run to run, and with equal ones."""
    made: list[int] = []

    class Counted(HeadStack):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made.append(1)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(assay.run.training, "HeadStack", Counted)
    compute(with_parameters("margin_distance_weighted", PROTOCOL, VIEW, settings=4), VIEW)
    assert len(made) == 2


@pytest.mark.parametrize("name", ["contrastive_sampled", "triplet"])
def test_the_same_seeds_give_the_same_bytes_whatever_the_global_generator_holds(name: str) -> None:
    """Pitfall 14."""
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        results.append(compute(runs_of(name), VIEW))
    for first, second in zip(*results, strict=True):
        assert_same_bytes(first, second)


def test_equal_heads_stay_equal_in_a_stack() -> None:
    runs = runs_of("triplet")
    twins = [trainees_of(runs)[0] for _ in range(2)]
    fit_stacked(twins, PROTOCOL, runs[0].batch)
    assert differ(twins[0].model.head.weight, twins[1].model.head.weight) < 1e-6


# --- The same bytes in any stack ---


def with_parameters(
    name: str, protocol: ResolvedProtocol, view: View, settings: int = 5
) -> list[Run]:
    """Return the folds of several trials, the first at the method's defaults, the others anywhere
    in its space.
    """
    draw, method = random.Random(0), methods[name]
    space = space_of(method, protocol)
    runs = []
    for number in range(settings):
        turned = {key: range_.at(draw.random()) for key, range_ in space.items()} if number else {}
        for run in runs_of(name, protocol, view, seed=10 * number):
            runs.append(replace(run, parameters={**run.parameters, **turned}))
    return runs


ODD = replace(
    PROTOCOL,
    dim=7,
    batch=ResolvedBatch(embedding=(5, 3), classification=(11, 1)),
    epochs=3,
    patience=1,
    optimiser=Optimiser(lr=3e-3, kind="adamw"),
)
"""Nothing in it fills a cache line or a vector register, and some heads stop early."""


OF_EACH_KIND = (
    "contrastive", "triplet_semihard", "margin_per_class", "multi_similarity_mined", "histogram",
    "normalized_softmax", "soft_triple", "dreml", "quadruplet", "contrastive_sampled",
    "proxy_softmax",
)  # fmt: skip
"""Methods with pairs, triplets, a miner, bins, weights for classes, a head of several parts, and
three that are trained alone.
"""


@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow)
        for name in TRAINED
    ],
)
def test_a_run_is_the_same_alone_and_with_any_others(name: str) -> None:
    view = vectors(classes=17, dim=11)
    runs = with_parameters(name, ODD, view, settings=3)
    together = compute(runs, view)
    assert len({fitted.weights["head.weight"].numpy().tobytes() for fitted in together}) == len(
        runs
    )
    for chosen in ([7], [11, 2, 6, 0]):
        for number, fitted in zip(
            chosen, compute([runs[number] for number in chosen], view), strict=True
        ):
            assert_same_bytes(fitted, together[number])


@pytest.mark.parametrize("name", list(samplers))
def test_a_run_is_the_same_alone_and_with_any_others_under_any_sampler(
    name: str, groups: list[int]
) -> None:
    """Each head of a stack has a memory bank of its own, from which its batches are planned."""
    view = vectors(classes=17, dim=11)
    runs = with_parameters("contrastive", replace(ODD, sampler=name), view, settings=2)
    together = compute(runs, view)
    assert groups == [len(runs)]
    for chosen in ([5], [7, 2, 0]):
        for number, fitted in zip(
            chosen, compute([runs[number] for number in chosen], view), strict=True
        ):
            assert_same_bytes(fitted, together[number])


@pytest.mark.parametrize(
    "name", ["contrastive", "normalized_softmax", "margin_per_class", "arcface"]
)
def test_runs_with_other_parameters_are_one_stack_and_learn_what_they_would_alone(
    name: str, groups: list[int]
) -> None:
    runs = with_parameters(name, PROTOCOL, VIEW, settings=3)
    found = compute(runs, VIEW)
    assert groups == [12]
    for fitted, run in zip(found, runs, strict=True):
        assert_same(fitted, fit_alone(make_trainee(run, VIEW), PROTOCOL, run.batch))


def test_whole_numbers_and_choices_are_stacked_in_groups(groups: list[int]) -> None:
    runs = runs_of("histogram")
    runs += [replace(run, parameters={**run.parameters, "bins": 7}) for run in runs]
    compute(runs, VIEW)
    assert groups == [4, 4]


@pytest.mark.parametrize(
    "protocol", [replace(ODD, epochs=6), replace(ODD, epochs=7, validate_every=3, patience=3)]
)
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_runs_that_wait_for_a_place_are_the_same(protocol: ResolvedProtocol, schedule: Any) -> None:
    """Seven places become three and then fewer; runs begin while others are under way."""
    protocol = replace(protocol, optimiser=replace(protocol.optimiser, schedule=schedule))
    runs = with_parameters("normalized_softmax", protocol, VIEW)
    wide = fit_stacked(trainees_of(runs), protocol, runs[0].batch, width=len(runs))
    assert len({len(fitted.history) for fitted in wide}) > 1
    for width in (1, 2, 7):
        narrow = fit_stacked(trainees_of(runs), protocol, runs[0].batch, width=width)
        for one, other in zip(narrow, wide, strict=True):
            assert_same_bytes(one, other)


class Killed(BaseException):
    """A kill of the process."""


class KilledAfterTwo(ResumeFile):
    """A file after whose second state the process is killed."""

    saved = 0

    def save(self, state: Any) -> None:
        super().save(state)
        self.saved += 1
        if self.saved == 2:
            raise Killed


def test_a_stack_that_was_saved_with_other_places_goes_on_to_the_same(tmp_path: Path) -> None:
    protocol = replace(ODD, epochs=6)
    runs = with_parameters("normalized_softmax", protocol, VIEW)
    whole = fit_stacked(trainees_of(runs), protocol, runs[0].batch)
    for before, after in ((3, 7), (7, 3), (12, 2)):
        path = tmp_path / f"{before}-{after}.safetensors"
        with pytest.raises(Killed):
            fit_stacked(
                trainees_of(runs),
                protocol,
                runs[0].batch,
                before,
                KilledAfterTwo(path, "key", after=0),
            )
        resume_file = ResumeFile(path, "key", after=0)
        again = fit_stacked(trainees_of(runs), protocol, runs[0].batch, after, resume_file)
        for one, other in zip(again, whole, strict=True):
            assert_same_bytes(one, other)


def test_wide_heads_have_fewer_places() -> None:
    one = trainees_of(runs_of("contrastive"))[0]
    heads = {
        width: replace(one, model=Model(Architecture("identity", width, 0, 64)))
        for width in (384, 1280, 4096)
    }
    assert {width: count_places(head) for width, head in heads.items()} == {
        384: 16,
        1280: 9,
        4096: 8,
    }


class Watched(HeadStack):
    """Notes with how many places each step is taken."""

    def step(self, batches: Any) -> dict[int, float]:
        losses = super().step(batches)
        self.widths = [*getattr(self, "widths", []), self.places]
        return losses


def test_rows_that_have_ended_cost_nothing_once_half_of_them_have() -> None:
    protocol = replace(ODD, epochs=8)
    runs = with_parameters("normalized_softmax", protocol, VIEW, settings=4)
    trainees = trainees_of(runs)
    stack = Watched(trainees[0], protocol, runs[0].batch)
    fit(trainees, stack)
    widths = stack.widths
    assert widths[0] == 16
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] <= 8


# --- Heads do not disturb each other ---


def test_a_head_that_stops_early_does_not_disturb_the_others() -> None:
    protocol = replace(PROTOCOL, epochs=9, patience=2, optimiser=Optimiser(lr=3e-3))
    runs = runs_of("normalized_softmax", protocol)
    expected = [fit_alone(one, protocol, runs[0].batch) for one in trainees_of(runs)]
    lengths = [len(fitted.history) for fitted in expected]
    assert min(lengths) < max(lengths)
    assert any(fitted.history[-1].epoch == fitted.best.epoch + 2 < 9 for fitted in expected)
    found = fit_stacked(trainees_of(runs), protocol, runs[0].batch)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_training_ends_when_all_have_stopped() -> None:
    protocol = replace(
        PROTOCOL, epochs=50, patience=2, optimiser=Optimiser(lr=1e-12, weight_decay=0)
    )
    runs = runs_of("triplet", protocol)
    trainees = trainees_of(runs)
    stack = Watched(trainees[0], protocol, runs[0].batch)
    assert [fitted.history[-1].epoch for fitted in fit(trainees, stack)] == [2] * 4
    assert len(stack.widths) == 2 * protocol.iterations


@pytest.mark.parametrize("name", ["triplet", "normalized_softmax", "margin_per_class"])
def test_a_head_that_diverges_does_not_disturb_the_others(name: str) -> None:
    """Only the second head trains on a class with infinite numbers."""
    view = View(
        np.concatenate([VIEW.x, np.full((6, 10), np.inf, dtype=np.float32)]),
        np.append(VIEW.y, [99] * 6),
    )
    runs = runs_of(name)

    def with_a_bad_head() -> list[Trainee]:
        made = [replace(one, view=view) for one in trainees_of(runs)]
        replaced = made[1].train.copy()
        replaced[:6] = np.arange(len(VIEW.y), len(view.y))
        made[1] = replace(made[1], train=replaced)
        return made

    found = fit_stacked(with_a_bad_head(), PROTOCOL, runs[0].batch)
    expected = [fit_alone(one, PROTOCOL, runs[0].batch) for one in with_a_bad_head()]
    assert [fitted.status for fitted in found] == ["finished", "diverged", "finished", "finished"]
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_a_head_that_starts_without_finite_embeddings_does_not_disturb_the_others() -> None:
    def with_a_bad_head() -> list[Trainee]:
        made = trainees_of(runs)
        with torch.no_grad():
            made[2].model.head.bias.fill_(torch.inf)
        return made

    runs = runs_of("contrastive")
    found = fit_stacked(with_a_bad_head(), PROTOCOL, runs[0].batch)
    assert [fitted.status for fitted in found] == ["finished", "finished", "diverged", "finished"]
    assert len(found[2].history) == 1
    for number in (0, 1, 3):
        assert_same(found[number], fit_alone(with_a_bad_head()[number], PROTOCOL, runs[0].batch))


def test_the_weights_kept_are_a_copy_and_not_a_part_of_the_stack() -> None:
    runs = runs_of("triplet")
    trainees = trainees_of(runs)
    found = fit_stacked(trainees, PROTOCOL, runs[0].batch)
    before = [fitted.weights["head.weight"].clone() for fitted in found]
    with torch.no_grad():
        for one in trainees:
            one.model.head.weight.zero_()
    assert all(
        torch.equal(fitted.weights["head.weight"], kept)
        for fitted, kept in zip(found, before, strict=True)
    )
    assert differ(before[0], before[1]) > 1e-3


def test_vectors_that_cannot_be_written_to_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are memory-mapped; torch warns of such arrays, once in a process."""
    plain = torch.from_numpy

    def checked(array: Any) -> Tensor:
        assert array.flags.writeable
        return plain(array)

    monkeypatch.setattr(torch, "from_numpy", checked)
    x = VIEW.x.copy()
    x.setflags(write=False)
    protocol = replace(PROTOCOL, epochs=1, iterations=1)
    runs = runs_of("triplet", protocol)
    view = View(x, VIEW.y)
    fit_stacked(trainees_of(runs, view), protocol, runs[0].batch)


# --- What is stacked with what ---


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("normalized_softmax", [2, 2]), ("margin_per_class", [2, 2]), ("triplet", [4])],
)
def test_heads_whose_class_weights_differ_in_shape_are_stacked_in_groups(
    name: str, sizes: list[int], groups: list[int]
) -> None:
    """18 classes in 4 folds: two train on 13 of them, two on 14."""
    view = vectors(classes=18)
    runs = runs_of(name, view=view)
    found = compute(runs, view)
    assert groups == sizes
    for one, run in zip(found, runs, strict=True):
        assert_same(one, fit_alone(make_trainee(run, view), run.protocol, run.batch))
    assert groups == sizes


def test_heads_whose_epochs_differ_in_length_are_stacked_in_groups(groups: list[int]) -> None:
    """One pass: two folds train on 78 vectors, six batches of twelve, two on 84, seven."""
    protocol, view = (
        replace(
            PROTOCOL, iterations=None, batch=ResolvedBatch(embedding=(6, 2), classification=(6, 2))
        ),
        vectors(classes=18),
    )
    runs = runs_of("triplet", protocol, view)
    found = compute(runs, view)
    assert groups == [2, 2]
    for one, run in zip(found, runs, strict=True):
        assert_same(one, fit_alone(make_trainee(run, view), run.protocol, run.batch))


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_every_kind_of_optimiser_steps_in_a_stack_as_alone(kind: Any, groups: list[int]) -> None:
    protocol = replace(PROTOCOL, optimiser=Optimiser(lr=1e-3, kind=kind, decay_own=False))
    runs = runs_of("normalized_softmax", protocol)
    found = compute(runs, VIEW)
    assert groups == [4]
    for one, run in zip(found, runs, strict=True):
        assert_same(one, fit_alone(make_trainee(run, VIEW), run.protocol, run.batch))


def test_features_may_be_standardised_before_the_head() -> None:
    protocol = replace(PROTOCOL, layer_norm=True)
    uneven = View(VIEW.x * np.linspace(1, 5, len(VIEW.y), dtype=np.float32)[:, None] + 3, VIEW.y)
    for name in ("triplet", "normalized_softmax"):
        runs = runs_of(name, protocol)
        found = fit_stacked(trainees_of(runs, uneven), protocol, runs[0].batch)
        for one, other in zip(found, trainees_of(runs, uneven), strict=True):
            assert isinstance(other.model.norm, nn.LayerNorm)
            assert_same(one, fit_alone(other, protocol, runs[0].batch))


@pytest.mark.parametrize("name", ["triplet", "normalized_softmax"])
def test_another_sampler_may_put_the_classes_in_any_order(
    name: str, as_before: None, groups: list[int]
) -> None:
    @samplers("shuffled")
    def shuffled(y: Any, batch: tuple[int, int], seed: int) -> Iterator[Any]:
        draw = np.random.default_rng(seed)
        return (draw.permutation(rows) for rows in samplers["balanced"](y, batch, seed))

    protocol = replace(PROTOCOL, sampler="shuffled")
    runs = runs_of(name, protocol)
    for found, run in zip(compute(runs, VIEW), runs, strict=True):
        assert_same(found, fit_alone(make_trainee(run, VIEW), protocol, run.batch))
    assert set(groups) == {4}


class Weird(Loss):
    """A user's loss that depends on how often it was called, which a trace would not see."""

    paper: ClassVar[Paper] = Paper("none", 2000, "example.org")

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.calls = scale, itertools.count(1)

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None = None, references: References | None = None
    ) -> Tensor:
        return (
            (z * torch.arange(1.0, z.shape[1] + 1)).square().sum(1).mean()
            * self.scale
            / next(self.calls)
        )


class Descendant(losses["triplet"]):
    """A user's subclass of one of Assay's losses."""


class Drawn(nn.Module):
    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        return z.square().mean()


class Whim(Miner):
    """A user's own miner."""

    def mine(self, z: Tensor, y: Tensor, references: References) -> Mined:
        return all_pairs(y, references)


class Remembering(losses["triplet"]):
    """A loss that writes into a buffer, in a module of Assay's."""

    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(3))


Remembering.__module__ = "assay.losses.remembering"


class HeadFirst(losses["triplet"]):
    """A loss after whose first epoch the optimiser begins anew, in a module of Assay's."""

    head_first = 1


HeadFirst.__module__ = "assay.losses.head_first"


def head(trunk: str = "identity") -> Model:
    return Model(Architecture(trunk, 3, 0 if trunk == "identity" else 16, 4))


def to_train(loss: Loss, miner: Any = None, trunk: str = "identity") -> Trainee:
    parts = BuiltMethod(loss, miner, 0.01, 0.01)
    return Trainee(head(trunk), parts, VIEW, np.arange(4), VIEW, seed=0)


def test_a_head_on_vectors_with_a_loss_and_a_miner_of_assay_can_be_stacked() -> None:
    assert can_stack(to_train(losses["triplet"]()), CPU)
    assert can_stack(to_train(losses["multi_similarity"](), miners["multi_similarity"]()), CPU)


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        (Weird, None),
        (Descendant, None),
        (adopt(Drawn), None),
        (losses["triplet"], Whim),
        (Remembering, None),
        (HeadFirst, None),
    ],
)
def test_losses_and_miners_of_users_and_losses_that_remember_or_begin_anew_are_not_stacked(
    loss: Any, miner: Any
) -> None:
    assert not can_stack(to_train(loss(), miner and miner()), CPU)


@pytest.mark.parametrize("name", OTHER_HEADS)
def test_heads_of_another_form_are_not_stacked(name: str) -> None:
    runs = runs_of(name)
    assert not can_stack(make_trainee(runs[0], VIEW), CPU)
    for found, run in zip(compute(runs, VIEW), runs, strict=True):
        assert_same_bytes(found, fit_alone(make_trainee(run, VIEW), PROTOCOL, run.batch))


def test_trunks_on_images_and_gpus_are_not_stacked() -> None:
    assert not can_stack(to_train(losses["triplet"](), trunk="conv"), CPU)
    assert not can_stack(to_train(losses["triplet"]()), torch.device("cuda"))


def test_a_loss_of_a_user_is_called_for_every_step_of_every_fold(
    as_before: None, groups: list[int]
) -> None:
    methods.add(Method("weird", Weird, space=Space()))
    runs = runs_of("weird")
    found = compute(runs, VIEW)
    assert groups == []
    for one, run in zip(found, runs, strict=True):
        other = compute([run], VIEW)[0]
        assert one.history == other.history
        assert one.history[2].loss < one.history[1].loss / 1.5  # type: ignore[operator]


# --- Runs that are in the store already ---


def content(store: Store, runs: list[Run]) -> list[dict[str, bytes]]:
    names = ("model.safetensors", "history.jsonl", "result.json", "config.json")
    return [{name: (store.run(run.key) / name).read_bytes() for name in names} for run in runs]


@pytest.mark.parametrize(
    ("name", "there"),
    [("triplet", (0,)), ("contrastive_sampled", (0, 1, 2)), ("normalized_softmax", (1, 3))],
)
def test_what_a_run_gives_does_not_depend_on_which_runs_are_there(
    name: str, there: tuple[int, ...], tmp_path: Path
) -> None:
    view = vectors(classes=18)  # folds of two shapes
    place(tmp_path / "view", view)
    runs = runs_of(name, replace(PROTOCOL, epochs=1), view)
    store = Store.create(tmp_path / "store")
    task = Training(tuple(runs), str(store.root), str(tmp_path / "view"))
    torch.manual_seed(1)
    task()
    whole = content(store, runs)
    assert len({part["model.safetensors"] for part in whole}) == 4
    stamps = [(store.run(runs[number].key) / "result.json").stat().st_mtime_ns for number in there]
    for number in set(range(4)) - set(there):
        store.run(runs[number].key).rename(tmp_path / f"gone{number}")
    torch.manual_seed(2)
    task()
    assert content(store, runs) == whole
    assert [
        (store.run(runs[number].key) / "result.json").stat().st_mtime_ns for number in there
    ] == stamps


def test_runs_that_are_all_there_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path / "view", VIEW)
    store = Store.create(tmp_path / "store")
    task = Training(
        tuple(runs_of("triplet", replace(PROTOCOL, epochs=1))),
        str(store.root),
        str(tmp_path / "view"),
    )
    task()
    monkeypatch.setattr(assay.run.training, "compute", None)
    task()
