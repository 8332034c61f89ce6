"""A training that was killed resumes from its last validation and gives the same bytes."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import assay.run.training
import assay.train.one_network
import assay.train.resume
from assay.data import load, splits
from assay.data.packs import View, write_pack
from assay.hashing import derive
from assay.losses import losses
from assay.losses.loss import Loss
from assay.methods import BuiltMethod, assemble, cross_batch_memory, defaults, methods
from assay.miners import miners
from assay.model import Architecture, Model
from assay.pairs import Mined, References
from assay.protocols import Optimiser, ResolvedAugment, ResolvedProtocol
from assay.records.run import Checkpoint, Run
from assay.records.store import Store
from assay.registry import Paper
from assay.run import Training
from assay.samplers import samplers
from assay.train import (
    CheckpointFolder,
    Fit,
    HeadStack,
    OneNetwork,
    ResumeFile,
    SavedState,
    Trainee,
    draw_batches,
    step,
)
from assay.train.resume import beside_weights
from heads import CPU, HERE, PROTOCOL, VIEW, fit_one, place, runs_of

SHAPE = (4, 4)
LONG = replace(PROTOCOL, dim=4, epochs=7, iterations=3, optimiser=Optimiser(lr=0.01))
WILD = ResolvedAugment(area=(0.5, 1.0), aspect=(0.8, 1.25), flip=0.5, rotation=20.0, shear=10.0)
ON_IMAGES = replace(LONG, trunk="conv", size=16, augment=WILD, epochs=4, iterations=2)


class Killed(BaseException):
    """A kill of the process in the middle of its work."""


# --- Trainings to kill ---


class Counting(Loss):
    """Counts its calls in a buffer; after some it trains the opposite, after others it is NaN."""

    paper: ClassVar[Paper] = Paper("none", 2000, "example.org")

    def __init__(self, *, worse_from: int = 10**6, bad_from: int = 10**6) -> None:
        super().__init__()
        self.worse_from, self.bad_from = worse_from, bad_from
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.calls: Tensor

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None = None, references: References | None = None
    ) -> Tensor:
        self.calls += 1
        value: Tensor = losses["triplet"](margin=0.3)(z, y) * (1 + 0.1 * self.calls)
        return value * (
            torch.nan if self.calls >= self.bad_from else -1 if self.calls >= self.worse_from else 1
        )


def first_well_then_badly() -> Loss:
    return Counting(worse_from=10)


class Secretive(Counting):
    """Counts its calls in an object that cannot be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.number = itertools.count(1)

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None = None, references: References | None = None
    ) -> Tensor:
        return super().forward(z, y) / next(self.number)


class Open(Counting):
    """Counts its calls in a plain number, which is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None = None, references: References | None = None
    ) -> Tensor:
        self.number += 1
        return super().forward(z, y) / self.number


def vectors(classes: range, seed: int) -> View:
    draw = np.random.default_rng(seed)
    y = np.repeat(np.array(classes), 6)
    x = draw.normal(size=(len(y), 8))
    x[:, :2] = np.random.default_rng(99).normal(size=(100, 2))[y] + 0.3 * draw.normal(
        size=(len(y), 2)
    )
    return View(x.astype(np.float32), y)


def pictures(classes: range, seed: int) -> View:
    y = np.repeat(np.array(classes), 5)
    return View(
        np.random.default_rng(seed).integers(0, 256, size=(len(y), 16, 16, 3), dtype=np.uint8), y
    )


@dataclass
class World:
    """A training that can be begun any number of times, each time from new objects."""

    loss: Callable[[], Loss] = losses["triplet"]
    protocol: ResolvedProtocol = LONG
    miner: Callable[[], Any] | None = None
    heard: list[int] = field(default_factory=list)

    def train(
        self, resume_file: ResumeFile | None = None, kill_at: int | None = None
    ) -> tuple[Fit, Model, Loss]:
        """Return the result, the model and the loss; raise `Killed` after epoch `kill_at`."""

        def on_epoch(epoch: int, loss: float, checkpoint: Checkpoint | None) -> None:
            self.heard.append(epoch)
            if epoch == kill_at:
                raise Killed

        on_images = self.protocol.trunk != "identity"
        seen, unseen = (
            (pictures if on_images else vectors)(range(6), 1),
            (pictures if on_images else vectors)(range(6, 11), 2),
        )
        torch.manual_seed(0)
        loss = self.loss()
        bare = Architecture(self.protocol.trunk, 3 if on_images else 8, 16 if on_images else 0, 0)
        model = Model(bare.with_head(loss.head(4)))
        loss.setup(4, 6)
        loss.prepare(len(seen.y), 8)
        torch.manual_seed(1)
        parts = BuiltMethod(loss, self.miner and self.miner(), 0.01, 0.01)
        self.heard.clear()
        found = fit_one(model, parts, seen, unseen, self.protocol, SHAPE, 5, on_epoch, resume_file)
        return found, model, loss


def optimised_by(kind: Any) -> ResolvedProtocol:
    return replace(LONG, optimiser=Optimiser(lr=0.01, kind=kind))


WORLDS = {
    "rmsprop": World(),
    "adam": World(protocol=optimised_by("adam")),
    "adamw": World(protocol=optimised_by("adamw")),
    "sgd": World(protocol=optimised_by("sgd")),
    "sgd without momentum": World(
        protocol=replace(LONG, optimiser=Optimiser(kind="sgd", momentum=0.0))
    ),
    "class weights": World(losses["normalized_softmax"]),
    "class weights, adam": World(losses["margin_per_class"], optimised_by("adam")),
    "random miner": World(losses["contrastive"], miner=lambda: miners["random"](of="pairs")),
    "distance-weighted miner": World(losses["margin"], miner=miners["distance_weighted"]),
    "rho miner": World(losses["snr_triplet"], miner=miners["rho"]),
    "a buffer in the loss": World(Counting),
    "a memory, its warm-up killed": World(lambda: losses["xbm_contrastive"](warmup=6.0)),
    "a memory, full at the first validation": World(
        lambda: losses["xbm_margin"](memory=32 / 36, warmup=16 / 36)
    ),
    "a memory that wraps around, with a miner": World(
        lambda: losses["xbm_multi_similarity"](memory=0.55, warmup=1.0), optimised_by("adam")
    ),
    "a memory smaller than a batch": World(lambda: losses["xbm_triplet"](memory=0.3, warmup=1.0)),
    "a memory of draws": World(
        lambda: cross_batch_memory(losses["triplet"], miner="distance_weighted")(warmup=0.5)
    ),
    "batch normalisation": World(losses["contrastive"], ON_IMAGES),
    "batch normalisation, adam": World(
        losses["contrastive"], replace(ON_IMAGES, optimiser=Optimiser(kind="adam"))
    ),
    "frozen batch normalisation": World(
        losses["contrastive"], replace(ON_IMAGES, frozen="batchnorm")
    ),
    "parts": World(lambda: losses["dreml"](meta_classes=2)),
    "the head first, dropout": World(losses["proxy_softmax"], ON_IMAGES),
    "the head first, dropout, adam, cosine": World(
        losses["proxy_softmax"],
        replace(ON_IMAGES, optimiser=Optimiser(kind="adam", schedule="cosine")),
    ),
    "the head first, dropout, vectors": World(losses["proxy_softmax"]),
    "every second epoch": World(protocol=replace(LONG, validate_every=2)),
    "cosine": World(
        protocol=replace(LONG, optimiser=Optimiser(lr=0.01, kind="adamw", schedule="cosine"))
    ),
    "cosine, class weights": World(
        losses["normalized_softmax"], replace(LONG, optimiser=Optimiser(schedule="cosine"))
    ),
    "one pass": World(protocol=replace(LONG, iterations=None)),
    "patience": World(first_well_then_badly, replace(LONG, patience=3, epochs=30)),
    "neighbouring classes": World(protocol=replace(LONG, sampler="offline_hard", refresh=5)),
    "mined triplets": World(
        protocol=replace(LONG, sampler="offline_triplets", refresh=4),
        miner=miners["listed_triplets"],
    ),
    "mined pairs on images": World(
        losses["contrastive"],
        replace(ON_IMAGES, sampler="offline_pairs", refresh=3),
        miners["listed_pairs"],
    ),
    "divergence": World(lambda: Counting(bad_from=17)),
    "a kept bank, every second epoch": World(
        protocol=replace(LONG, sampler="coreset", validate_every=2)
    ),
    "a kept bank, batch normalisation": World(
        losses["contrastive"], replace(ON_IMAGES, sampler="coreset")
    ),
    **{
        f"sampler {name}": World(losses["contrastive"], replace(LONG, sampler=name))
        for name in samplers
    },
}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Return whether all tensors are equal to the bit, NaN included."""
    return {name: tensor.numpy().tobytes() for name, tensor in first.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in second.items()
    }


def assert_same(found: tuple[Fit, Model, Loss], expected: tuple[Fit, Model, Loss]) -> None:
    """Compare the history, the best weights, and the weights at the end of training."""
    assert found[0].history == expected[0].history
    assert (found[0].best, found[0].status) == (expected[0].best, expected[0].status)
    assert equal(found[0].weights, expected[0].weights)
    assert equal(found[1].state(), expected[1].state())
    assert equal(dict(found[2].state_dict()), dict(expected[2].state_dict()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "partial" / "state.safetensors"


def resume_file(path: Path, key: str = "key") -> ResumeFile:
    return ResumeFile(path, key, after=0)


def kill(world: World, path: Path, at: int) -> None:
    with pytest.raises(Killed):
        world.train(resume_file(path), kill_at=at)


# --- The same bytes ---


@pytest.mark.parametrize("name", WORLDS)
def test_a_training_killed_at_any_validation_ends_as_if_it_had_not_been(
    name: str, path: Path
) -> None:
    world = WORLDS[name]
    expected = world.train()
    validated = [checkpoint.epoch for checkpoint in expected[0].history[1:]]
    assert len(validated) >= 2
    for number, epoch in enumerate(validated):
        path.unlink(missing_ok=True)
        kill(world, path, at=epoch)
        torch.manual_seed(999)
        assert_same(world.train(resume_file(path)), expected)
        saved = validated[number - 1] if number else 0
        assert not world.heard or world.heard[0] == saved + 1


def test_the_trainings_that_should_end_early_do() -> None:
    assert WORLDS["divergence"].train()[0].status == "diverged"
    patient = WORLDS["patience"].train()[0]
    assert patient.history[-1].epoch == patient.best.epoch + 3 < 30


@pytest.mark.parametrize("name", ["random miner", "batch normalisation"])
def test_a_training_may_be_killed_again_and_again(name: str, path: Path) -> None:
    world = WORLDS[name]
    expected = world.train()
    for checkpoint in expected[0].history[1:]:
        kill(world, path, at=checkpoint.epoch)
    assert_same(world.train(resume_file(path)), expected)


def test_a_kill_between_validations_costs_what_came_after_the_last_one(path: Path) -> None:
    world = WORLDS["every second epoch"]
    kill(world, path, at=5)
    assert_same(world.train(resume_file(path)), world.train())


def test_saving_changes_nothing(path: Path) -> None:
    for name in ("random miner", "batch normalisation"):
        path.unlink(missing_ok=True)
        assert_same(WORLDS[name].train(resume_file(path)), WORLDS[name].train())
        assert path.exists()


def test_every_method_of_assay_changes_nothing_but_weights() -> None:
    """Otherwise its trainings would never be saved."""
    for name in (name for name, method in methods.items() if method.loss is not None):
        built = assemble(methods[name], defaults(methods[name], LONG), LONG)
        built.loss.setup(4, 6)
        built.loss.prepare(16, 8)
        before = beside_weights(built)
        z, y = torch.randn(12, 4, requires_grad=True), torch.arange(12) // 4
        built.loss(z, y, built.miner(z.detach(), y) if built.miner else None).backward()
        assert before is not None, name
        assert beside_weights(built) == before, name


@pytest.mark.parametrize("loss", [Secretive, Open])
def test_a_training_whose_loss_changes_in_other_ways_begins_anew(
    loss: type[Loss], path: Path
) -> None:
    world = World(loss)
    kill(world, path, at=5)
    assert not path.exists()
    assert_same(world.train(resume_file(path)), world.train())


def test_skipped_batches_read_no_image() -> None:
    class Guarded:
        channels = 3

        def __len__(self) -> int:
            return 30

        def __getitem__(self, rows: Any) -> Any:
            read.append(len(rows))
            return np.zeros((len(rows), 16, 16, 3), dtype=np.uint8)

    read: list[int] = []
    labels = np.repeat(np.arange(6), 5)
    view = View(Guarded(), labels)  # type: ignore[arg-type]
    model = Model(Architecture("conv", 3, 16, 4))
    parts = BuiltMethod(losses["triplet"](), None, 0.01, 0.01)
    network = OneNetwork(ON_IMAGES, SHAPE, CPU)
    network.open(1, 2000)
    network.add(0, Trainee(model, parts, view, np.arange(30), view, seed=3), done=1000)
    drawn_after = next(draw_batches(labels, ON_IMAGES.sampler, SHAPE, 3, start=1000))
    y = drawn_after[1]
    assert read == []
    network.step({0: drawn_after})
    assert read == [16]
    drawn = samplers["balanced"](np.repeat(np.arange(6), 5), SHAPE, derive(3, "batches"))
    assert y.tolist() == (next(itertools.islice(drawn, 1000, None)) // 5).tolist()


# --- When a state is saved ---


def test_a_state_is_saved_when_enough_seconds_have_passed(path: Path) -> None:
    clock = [100.0]
    point, saved = ResumeFile(path, "key", after=60, clock=lambda: clock[0]), []

    def state() -> Any:
        saved.append(clock[0])
        return SavedState({})

    for now in (130, 159.9, 160, 219, 221):
        clock[0] = now
        point.save(state)
    assert saved == [160, 221]


def test_saving_that_takes_long_is_done_less_often(path: Path) -> None:
    clock = [0.0]
    point, saved = ResumeFile(path, "key", after=60, clock=lambda: clock[0]), []

    def slow() -> Any:
        saved.append(clock[0])
        clock[0] += 2 * assay.train.resume.SLOW_SAVE
        return SavedState({})

    for now in (60, 130, 180, 190):
        clock[0] = now
        point.save(slow)
    assert saved == [60, 190]


def test_the_seconds_before_a_kill_are_counted(path: Path) -> None:
    clock = [0.0]
    first = ResumeFile(path, "key", clock=lambda: clock[0])
    clock[0] = 70.0
    first.save(lambda: SavedState({}))
    second = ResumeFile(path, "key", clock=lambda: clock[0])
    assert second.load() is not None
    assert second.spent == 70
    clock[0] = 170.0
    second.save(lambda: SavedState({}))
    third = ResumeFile(path, "key", clock=lambda: clock[0])
    assert third.load() is not None
    assert third.spent == 170


# --- Corrupt states ---


def flip(path: Path, where: Callable[[int], int]) -> None:
    content = bytearray(path.read_bytes())
    content[where(len(content))] ^= 1
    path.write_bytes(bytes(content))


CORRUPTIONS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"not a state" * 100),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "a bit of a tensor": lambda path: flip(path, lambda length: length - 20),
    "a digit of the history": lambda path: path.write_bytes(
        path.read_bytes().replace(b'\\"epoch\\":1', b'\\"epoch\\":2', 1)
    ),
    "another file": lambda path: path.write_bytes(torch.zeros(3).numpy().tobytes()),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def test_a_corrupt_state_is_ignored(path: Path) -> None:
    world = World()
    expected = world.train()
    kill(world, path, at=4)
    intact = path.read_bytes()
    for name, corrupt in CORRUPTIONS.items():
        path.write_bytes(intact)
        corrupt(path)
        assert path.is_dir() or path.read_bytes() != intact, name
        assert resume_file(path).load() is None, name
        assert_same(world.train(resume_file(path)), expected)


def test_the_state_of_another_training_is_ignored(path: Path) -> None:
    world = World()
    kill(world, path, at=4)
    assert resume_file(path, "another key").load() is None
    assert resume_file(path).load() is not None


def test_a_state_is_a_safetensors_file_with_its_hashes(path: Path) -> None:
    kill(World(), path, at=4)
    with safe_open(str(path), framework="pt") as file:
        assert set(file.metadata()) == {"state", "digest"}
        assert "training/model0/model/head.weight" in file.keys()  # noqa: SIM118


def test_a_state_is_used_only_if_its_checkpoints_are_intact(tmp_path: Path, path: Path) -> None:
    architecture, weights = (
        Architecture("identity", 8, 0, 4),
        Model(Architecture("identity", 8, 0, 4)).state(),
    )

    def again() -> tuple[CheckpointFolder, ResumeFile]:
        checkpoint_folder = CheckpointFolder(tmp_path / "kept", architecture)
        return checkpoint_folder, ResumeFile(path, "key", [checkpoint_folder], after=0)

    checkpoint_folder, point = again()
    checkpoint_folder.keep(0, weights)
    checkpoint_folder.keep(2, weights)
    point.save(lambda: SavedState({}))
    other, point = again()
    assert point.load() is not None
    assert other.hashes == checkpoint_folder.hashes
    flip(checkpoint_folder.path(2), lambda length: length - 3)
    assert again()[1].load() is None
    checkpoint_folder.path(2).unlink()
    assert again()[1].load() is None


# --- A full disk ---


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_loses_the_state_and_not_the_training(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assay.train.resume, "write_atomically", no_space)
    world = World()
    assert_same(world.train(resume_file(path)), world.train())
    assert not path.exists()


def test_a_state_that_does_not_fit_on_the_disk_leaves_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    kill(world, path, at=3)
    before = path.read_bytes()
    monkeypatch.setattr(assay.train.resume, "write_atomically", no_space)
    kill(world, path, at=5)
    assert path.read_bytes() == before


def test_a_run_that_cannot_be_placed_says_where_and_why(
    task: "Task", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assay.run.training, "_write", no_space)
    with pytest.raises(
        OSError,
        match=r"a run of \w+ is computed but cannot be placed in .*No space left.*make room",
    ) as raised:
        task()
    assert raised.value.errno == errno.ENOSPC
    assert not any(task.store.has_run(run.key) for run in task.runs)


# --- Runs in a store ---


@dataclass(frozen=True)
class Task:
    """Runs and a store to compute them in."""

    runs: tuple[Run, ...]
    store: Store
    view: Path
    keep: Any = "best"

    def __call__(self) -> None:
        Training(self.runs, str(self.store.root), str(self.view), keep=self.keep, save_after=0)()

    def content(self) -> dict[str, bytes]:
        """Return all files of the runs but `timing.json`."""
        root = self.store.root
        files = [
            path
            for path in sorted((root / "runs").rglob("*"))
            if path.is_file() and path.name != "timing.json"
        ]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    def elsewhere(self, root: Path) -> "Task":
        return replace(self, store=Store.create(root))


IN_STORE = replace(PROTOCOL, epochs=4)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    place(tmp_path / "view", VIEW)
    return Task(
        tuple(runs_of("triplet", IN_STORE)), Store.create(tmp_path / "store"), tmp_path / "view"
    )


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """A function that sets after how many saved states the process is killed."""
    whole, left = ResumeFile.save, [10**6]

    def save(self: ResumeFile, state: Any) -> None:
        whole(self, state)
        left[0] -= 1
        if not left[0]:
            raise Killed

    monkeypatch.setattr(ResumeFile, "save", save)
    return lambda number: left.__setitem__(0, number)


def partial_files(store: Store) -> list[str]:
    """Return the names of files of unfinished runs, without the shares of tasks under way."""
    return sorted(
        path.name
        for path in (store.root / "partial").rglob("*")
        if path.is_file() and path.suffix != ".share"
    )


@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("triplet", "all"),
        ("normalized_softmax", "best"),
        ("contrastive_sampled", "best"),
        ("quadruplet", "all"),
        ("dreml", "all"),
        ("proxy_softmax", "all"),
    ],
)
def test_heads_killed_at_any_validation_give_the_same_files(
    name: str, keep: str, task: Task, tmp_path: Path, dying: Callable[[int], None]
) -> None:
    """Stacks of four, and methods that cannot be stacked and are trained fold by fold."""
    task = replace(task, runs=tuple(runs_of(name, IN_STORE)), keep=keep)
    whole = task.elsewhere(tmp_path / "whole")
    whole()
    for number in (1, 3):
        again = task.elsewhere(tmp_path / f"store{number}")
        dying(number)
        with pytest.raises(Killed):
            again()
        assert "state.safetensors" in partial_files(again.store)
        assert not (again.store.root / "runs").exists()
        dying(10**6)
        again()
        assert again.content() == whole.content()
        assert partial_files(again.store) == []


def test_a_stack_with_runs_that_wait_resumes(
    task: Task, tmp_path: Path, dying: Callable[[int], None]
) -> None:
    """Twenty runs for sixteen places: some have ended, some are under way, some have not begun."""
    protocol = replace(
        PROTOCOL,
        epochs=6,
        patience=1,
        optimiser=Optimiser(lr=3e-3, kind="adamw", schedule="cosine"),
    )
    runs = [
        run for seed in range(5) for run in runs_of("normalized_softmax", protocol, seed=10 * seed)
    ]
    task = replace(task, runs=tuple(runs), keep="all")
    whole = task.elsewhere(tmp_path / "whole")
    whole()
    for number in (1, 3, 5):
        again = task.elsewhere(tmp_path / f"store{number}")
        dying(number)
        with pytest.raises(Killed):
            again()
        dying(10**6)
        again()
        assert again.content() == whole.content()


def test_resumed_heads_do_not_begin_again(
    task: Task, dying: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    whole = HeadStack.step
    monkeypatch.setattr(
        HeadStack, "step", lambda *arguments: (steps.append(1), whole(*arguments))[1]
    )
    dying(3)
    with pytest.raises(Killed):
        task()
    assert len(steps) == 3 * 4
    task()
    assert len(steps) == 4 * 4


def test_the_state_of_other_runs_is_not_used(
    task: Task, tmp_path: Path, dying: Callable[[int], None]
) -> None:
    """Only two of the four are asked for now: another stack, which sums in another order."""
    dying(2)
    with pytest.raises(Killed):
        task()
    dying(10**6)
    fewer = replace(task, runs=task.runs[2:])
    alone = fewer.elsewhere(tmp_path / "alone")
    fewer()
    alone()
    assert fewer.content() == alone.content()


def test_a_state_kept_without_checkpoints_does_not_serve_a_run_with_them(
    task: Task, dying: Callable[[int], None]
) -> None:
    dying(2)
    with pytest.raises(Killed):
        task()
    dying(10**6)
    replace(task, keep="all")()
    assert [list(task.store.checkpoints(run.key)) for run in task.runs] == [[0, 1, 2, 3, 4]] * 4


def test_the_driver_removes_states_of_finished_runs(
    task: Task, dying: Callable[[int], None]
) -> None:
    dying(1)
    with pytest.raises(Killed):
        task()
    unfinished = partial_files(task.store)
    with task.store.driving():
        assert partial_files(task.store) == unfinished == ["state.safetensors"]
    kept = {
        path: path.read_bytes()
        for path in (task.store.root / "partial").rglob("*")
        if path.is_file()
    }
    dying(10**6)
    task()
    for path, content in kept.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    with task.store.driving():
        assert partial_files(task.store) == []


def test_the_driver_keeps_states_of_runs_that_lack_checkpoints(
    task: Task, dying: Callable[[int], None]
) -> None:
    task()
    dying(2)
    with pytest.raises(Killed):
        replace(task, keep="all")()
    before = partial_files(task.store)
    with task.store.driving():
        assert partial_files(task.store) == before
    dying(10**6)
    replace(task, keep="all")()
    assert [list(task.store.checkpoints(run.key)) for run in task.runs] == [[0, 1, 2, 3, 4]] * 4


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_resume import on_images
on_images(Path(sys.argv[2]), Path(sys.argv[3]))()
"""


def on_images(store: Path, view: Path) -> Task:
    """Return one long run of a network with batch normalisation and a miner that draws numbers."""
    protocol = replace(ON_IMAGES, weights="none", frozen="nothing", epochs=30)
    parameters = defaults(methods["triplet_sampled"], protocol)
    run = Run(protocol, "view", "triplet_sampled", "source", parameters, (5, 3), 1, 7, HERE)
    return Task((run,), Store.create(store), view)


def kill_when_saved(store: Path, view: Path) -> None:
    """Start the run in a process of its own and kill it as soon as its state is there."""
    state = Store.create(store).partial(on_images(store, view).runs[0].key) / "state.safetensors"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(store), str(view)]
    ) as process:
        deadline = time.monotonic() + 120
        while not state.exists():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_resumes(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainval, _ = splits.of(load(f"folder:{mini_folder}"), ON_IMAGES)
    write_pack(tmp_path / "view", trainval, ON_IMAGES.first_step)
    kill_when_saved(tmp_path / "killed", tmp_path / "view")
    steps: list[int] = []
    monkeypatch.setattr(
        assay.train.one_network, "step", lambda *arguments: (steps.append(1), step(*arguments))[1]
    )
    killed, whole = (on_images(tmp_path / name, tmp_path / "view") for name in ("killed", "whole"))
    killed()
    after_the_kill = len(steps)
    whole()
    assert after_the_kill < len(steps) - after_the_kill == 30 * 2
    assert killed.content() == whole.content()
    assert partial_files(killed.store) == []
