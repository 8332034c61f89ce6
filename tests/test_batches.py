"""Batches that are planned from the memory bank, and losses that are refreshed from it or see more
than embeddings.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.bank import Bank
from assay.data.packs import View
from assay.errors import BadInput
from assay.losses import losses
from assay.losses.loss import Loss, Seen
from assay.methods import BuiltMethod, Method, Space, assemble, plans, samplers
from assay.model import Architecture, Model
from assay.protocols import Optimiser, ResolvedProtocol
from assay.records.run import Checkpoint
from assay.registry import Paper
from assay.train import Batches, Fit, HeadStack, OneNetwork, ResumeFile, Trainee, can_stack, fit
from heads import CPU, PROTOCOL

SHAPE = (4, 3)
LONG = replace(PROTOCOL, dim=4, epochs=5, iterations=3, optimiser=Optimiser(lr=0.01))
"""Three steps of 12 samples an epoch; 36 samples, so that a pass is an epoch."""


def vectors(seed: int) -> View:
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(6), 6)
    return View(draw.normal(size=(36, 8)).astype(np.float32), y)


TRAIN, UNSEEN = vectors(1), vectors(2)


class Seer(Loss):
    """Pulls each class to where the last refresh had it, by features too, in batches of its own."""

    compares = "seen"
    bank_features = True
    paper: ClassVar[Paper] = Paper("none", 2000, "example.org")

    def __init__(self, *, every: float = 1.0, plan: bool = True) -> None:
        super().__init__()
        self.every, self.plan = every, plan

    def prepare(self, samples: int, features: int) -> None:
        self.register_buffer("targets", torch.zeros(samples, 4))
        self.register_buffer("mean", torch.zeros(features))
        self.targets: Tensor
        self.mean: Tensor

    def refresh(self, bank: Bank, draw: np.random.Generator) -> None:
        assert bank.x is not None
        means = torch.stack([bank.z[bank.y == label].mean(0) for label in range(6)])
        self.targets.copy_(means[bank.y] + 0.01 * torch.from_numpy(draw.normal(size=(1, 4))))
        self.mean.copy_(bank.x.mean(0))

    def batches(
        self, bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
    ) -> Any:
        size = batch[0] * batch[1]
        return draw.integers(0, len(bank.y), (count, size)) if self.plan else None

    def forward(self, seen: Seen) -> Tensor:
        made_up = seen.head(seen.x - self.mean)
        pull = (seen.z - self.targets[seen.rows]).square().sum(1)
        return (pull + made_up.square().sum(1)).mean() * (1 + seen.passes)


class Fickle(Seer):
    """Plans batches at every second refresh, and leaves the others to the sampler."""

    def batches(
        self, bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator
    ) -> Any:
        planned = super().batches(bank, batch, count, draw)
        self.turn += 1
        return planned if self.turn % 2 else None

    def prepare(self, samples: int, features: int) -> None:
        super().prepare(samples, features)
        self.register_buffer("turn", torch.zeros((), dtype=torch.int64))
        self.turn: Tensor


class Log(list[Any]):
    """Calls of the planners of these tests."""


@pytest.fixture
def log() -> Iterator[Log]:
    found = Log()

    @samplers("test_kept")
    @plans("kept")
    def kept(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Any:
        found.append(bank.z.clone())
        order = bank.z[:, 0].argsort(stable=True).numpy()
        return np.stack([np.roll(order, draw.integers(36))[: batch[0] * batch[1]]] * count)

    @samplers("test_fresh")
    @plans("fresh")
    def fresh(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Any:
        return kept(bank, batch, count, draw)

    yield found
    samplers.forget(__name__)


def new_model() -> Model:
    torch.manual_seed(0)
    return Model(Architecture("identity", 8, 0, 4))


def trainee(loss: Loss, sampler: str | None = None, **others: Any) -> Trainee:
    torch.manual_seed(1)
    loss.setup(4, 6)
    loss.prepare(36, 8)
    parts = BuiltMethod(loss, None, 0.01, 0.01, sampler)
    return Trainee(new_model(), parts, TRAIN, np.arange(36), UNSEEN, 5, **others)


def batches_of(one: Trainee, protocol: ResolvedProtocol = LONG) -> Batches:
    return Batches(one, one.model, protocol, SHAPE, CPU)


# --- When the bank is embedded, and who sees it ---


def test_a_kept_bank_is_embedded_once_and_takes_in_the_rows_of_each_batch(log: Log) -> None:
    one = trainee(losses["triplet"](), "test_kept")
    batches = batches_of(one)
    with torch.no_grad():
        expected = F.normalize(one.model(torch.from_numpy(TRAIN.x)), dim=1)
    for step in range(6):
        drawn = batches.draw()
        assert (one.y[drawn.rows] == drawn.labels).all()
        if step % 3 == 0:
            torch.testing.assert_close(log[-1], expected)
        given = torch.randn(12, 4, generator=torch.Generator().manual_seed(step)) * 3
        batches.take_in(drawn.rows, given)
        expected[torch.from_numpy(drawn.rows)] = F.normalize(given, dim=1)
    assert len(log) == 2 and batches.embedded == 36


def test_of_a_sample_twice_in_a_batch_the_last_embedding_stays(log: Log) -> None:
    """With any number of threads: writes of one row have no order of their own."""
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            batches = batches_of(trainee(losses["triplet"](), "test_kept"))
            batches.draw()
            rows = np.array([3, 5, 3, 3, 5])
            given = torch.eye(4)[[0, 1, 2, 3, 0]]
            batches.take_in(rows, given)
            for _ in range(3):
                batches.draw()
            assert torch.equal(log[-1][3], torch.eye(4)[3])
            assert torch.equal(log[-1][5], torch.eye(4)[0])
    finally:
        torch.set_num_threads(before)


def test_a_fresh_bank_is_embedded_again_each_so_many_steps(log: Log) -> None:
    for refresh, expected in ((None, 4), (2, 6), (5, 3)):
        log.clear()
        one = trainee(losses["triplet"](), "test_fresh")
        batches = batches_of(one, replace(LONG, refresh=refresh))
        for _ in range(12):
            batches.draw()
            with torch.no_grad():
                one.model.head.weight.copy_(one.model.head.weight.roll(1, 0))
        assert (len(log), batches.embedded) == (expected, 36 * expected)
        assert not torch.allclose(log[0], log[1], atol=0.1)


def test_a_loss_is_refreshed_before_the_first_step_and_each_so_many_passes() -> None:
    loss = Seer(every=2.0)
    batches = batches_of(trainee(loss))
    seen = []
    for _ in range(7):
        batches.draw()
        seen.append(loss.targets.clone())
    assert seen[0].any()
    same = [torch.equal(seen[step], seen[step + 1]) for step in range(6)]
    assert same == [True] * 5 + [False]  # the second refresh differs by its generator
    assert batches.embedded == 72


def test_batches_that_a_loss_plans_come_before_those_of_the_sampler(log: Log) -> None:
    planned = [
        batches_of(trainee(Seer(plan=plan), "test_kept")).draw().rows for plan in (True, False)
    ]
    assert len(set(planned[0].tolist())) < 12 == len(set(planned[1].tolist()))
    assert len(log) == 1


def test_a_loss_that_plans_no_more_leaves_the_batches_to_the_sampler(log: Log) -> None:
    """The sampler goes on where it was, and plans up to its own next time."""
    for sampler in (None, "test_kept"):
        batches, own = (batches_of(trainee(loss, sampler)) for loss in (Fickle(), Seer(plan=False)))
        drawn = [[one.draw().rows.tolist() for _ in range(9)] for one in (batches, own)]
        if sampler is None:
            assert drawn[0][3:6] == drawn[1][:3]
        assert all(len(set(rows)) == 12 for rows in drawn[0][3:6])
        assert any(len(set(rows)) < 12 for rows in drawn[0][:3] + drawn[0][6:])


def test_a_loss_that_says_what_a_refresh_does_says_when() -> None:
    class Never(Seer):
        def __init__(self) -> None:
            super().__init__(every=0)

    with pytest.raises(
        ValueError, match=r"^Never has `refresh` .* is never refreshed; set `every`"
    ):
        assemble(Method("never", Never, Space()), {}, LONG)


def test_rows_that_are_not_finite_are_zeros_in_the_bank(log: Log) -> None:
    one = trainee(losses["triplet"](), "test_kept")
    with torch.no_grad():
        one.model.head.bias.fill_(torch.nan)
    batches = batches_of(one)
    drawn = batches.draw()
    assert not log[0].any()
    for _ in range(2):
        batches.take_in(drawn.rows, torch.full((12, 4), torch.inf))
        batches.draw()
    batches.draw()
    assert torch.isfinite(log[1]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 12), dtype=np.int64),
        np.zeros(12, dtype=np.int64),
        np.zeros((3, 12)),
        np.full((3, 12), 36),
        np.full((3, 12), -1),
        np.zeros((3, 0), dtype=np.int64),
        np.zeros((3, 11), dtype=np.int64),
        [[0] * 12] * 3,
        None,
        torch.zeros(3, 12, dtype=torch.int64),
    ],
)
def test_a_plan_of_another_shape_or_of_other_rows_is_refused(log: Log, wrong: Any) -> None:
    samplers("test_wrong")(plans("kept")(lambda bank, batch, count, draw: wrong))
    said = (
        r"the sampler test_wrong (planned .*; a plan is a numpy array of 3 batches x 12 rows"
        r"|drew row -?\d+, and the training samples have rows 0 to 35)"
    )
    with pytest.raises(BadInput, match=said):
        batches_of(trainee(losses["triplet"](), "test_wrong")).draw()


def test_a_planner_cannot_change_labels_or_rows_of_the_training(log: Log) -> None:
    @samplers("test_greedy")
    @plans("kept")
    def greedy(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Any:
        bank.y.zero_()
        bank.z.zero_()
        return np.arange(36).reshape(3, 12)

    one = trainee(losses["triplet"](), "test_greedy")
    batches = batches_of(one)
    drawn = batches.draw()
    assert (drawn.labels == TRAIN.y[drawn.rows]).all() and len(set(drawn.labels.tolist())) == 2
    assert batches.state().tensors["bank"].any()


def test_a_sampler_that_draws_a_row_that_is_not_there_is_named(log: Log) -> None:
    def beyond(y: Any, batch: tuple[int, int], seed: int) -> Iterator[Any]:
        while True:
            yield np.array([0, len(y)])

    samplers("test_beyond")(beyond)
    with pytest.raises(BadInput, match=r"^the sampler test_beyond drew row 36, .* rows 0 to 35$"):
        batches_of(trainee(losses["triplet"](), "test_beyond")).draw()


def test_a_bank_is_kept_or_fresh() -> None:
    with pytest.raises(ValueError, match=r"kept or fresh, got 'stale'"):
        plans("stale")  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [-1.0, float("nan"), float("inf")])
def test_the_passes_between_two_refreshes_are_a_finite_number(every: float) -> None:
    class Odd(Seer):
        def __init__(self) -> None:
            super().__init__(every=every)

    with pytest.raises(ValueError, match=r"^Odd: every is a finite number of passes"):
        assemble(Method("odd", Odd), {}, LONG)


def test_a_loss_that_sees_all_is_given_features_rows_and_passes() -> None:
    found: list[Seen] = []

    class Look(Seer):
        def forward(self, seen: Seen) -> Tensor:
            found.append(seen)
            return super().forward(seen)

    one = trainee(Look(plan=False), epochs=2)
    fit([one], OneNetwork(LONG, SHAPE, CPU))
    assert [seen.passes for seen in found] == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])
    for seen in found:
        torch.testing.assert_close(seen.x, torch.from_numpy(TRAIN.x)[seen.rows])
        assert torch.equal(seen.y, torch.from_numpy(TRAIN.y)[seen.rows])
        torch.testing.assert_close(seen.z.norm(dim=1), torch.ones(12))


def test_a_loss_that_sees_all_refuses_to_be_given_less() -> None:
    with pytest.raises(ValueError, match=r"^Seer looks at features .*: call see"):
        Seer()(torch.zeros(2, 4), torch.tensor([0, 1]))


def test_gradients_of_a_loss_that_sees_all_reach_the_trunk_by_the_features() -> None:
    head = nn.Linear(8, 4)
    x = torch.randn(3, 8, requires_grad=True)
    loss = Seer()
    loss.prepare(36, 8)
    loss.see(Seen(head(x), torch.tensor([0, 1, 2]), x, torch.arange(3), 0.0, head)).backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


# --- After a kill, and in a stack ---


class Killed(BaseException):
    """A kill of the process in the middle of its work."""


WORLDS: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "a kept bank": (losses["triplet"], "test_kept", {}),
    "a fresh bank": (losses["triplet"], "test_fresh", {}),
    "a fresh bank within an epoch": (losses["triplet"], "test_fresh", {"refresh": 2}),
    "a fresh bank over several epochs": (losses["triplet"], "test_fresh", {"refresh": 7}),
    "a refreshed loss": (lambda: Seer(plan=False), None, {}),
    "a refreshed loss with a kept bank": (lambda: Seer(every=0.5, plan=False), "test_kept", {}),
    "batches of the loss": (lambda: Seer(every=1.5), None, {}),
    "batches of the loss now and then": (lambda: Fickle(every=1.5), None, {}),
    "batches of loss and sampler in turns": (lambda: Fickle(every=0.5), "test_kept", {}),
}


def run(
    name: str, path: Path | None = None, kill_at: int | None = None
) -> tuple[Fit, Model, dict[str, Tensor]]:
    make, sampler, changes = WORLDS[name]

    def on_epoch(epoch: int, loss: float, checkpoint: Checkpoint | None) -> None:
        if epoch == kill_at:
            raise Killed

    one = trainee(make(), sampler, on_epoch=on_epoch)
    protocol = replace(LONG, **changes)
    resume = None if path is None else ResumeFile(path, "key", after=0)
    [found] = fit([one], OneNetwork(protocol, SHAPE, CPU), resume)
    return found, one.model, dict(one.method.loss.state_dict())


def as_bytes(found: tuple[Fit, Model, dict[str, Tensor]]) -> list[Any]:
    fitted, model, of_loss = found
    tensors = (fitted.weights, model.state(), of_loss)
    return [
        fitted.history,
        *({name: one.numpy().tobytes() for name, one in own.items()} for own in tensors),
    ]


@pytest.mark.parametrize("name", WORLDS)
def test_a_training_with_a_bank_ends_as_if_it_had_not_been_killed(
    name: str, log: Log, tmp_path: Path
) -> None:
    expected = as_bytes(run(name))
    for epoch in (2, 3, 5):
        path = tmp_path / f"{epoch}.safetensors"
        with pytest.raises(Killed):
            run(name, path, kill_at=epoch)
        torch.manual_seed(999)
        assert as_bytes(run(name, path)) == expected, epoch


@pytest.mark.parametrize("sampler", ["test_kept", "test_fresh"])
def test_heads_with_a_bank_get_the_same_bytes_in_a_stack_as_alone(sampler: str, log: Log) -> None:
    protocol = replace(LONG, refresh=2)

    def three() -> list[Trainee]:
        return [replace(trainee(losses["contrastive"](), sampler), seed=seed) for seed in range(3)]

    together = three()
    assert all(can_stack(one, CPU) for one in together)
    stack = HeadStack(together[0], protocol, SHAPE, width=2)
    fits = fit(together, stack)
    for number, found in enumerate(fits):
        one = three()[number]
        [alone] = fit([one], HeadStack(one, protocol, SHAPE, width=1))
        assert found.history == alone.history
        assert all(torch.equal(found.weights[name], alone.weights[name]) for name in found.weights)
