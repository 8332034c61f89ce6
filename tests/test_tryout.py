"""Methods, samplers and trunks that are tried before anything is announced; sound ones pass."""

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.errors import BadInput
from assay.methods import (
    HeadShape,
    Loss,
    Method,
    Pairs,
    Space,
    Trunk,
    adopt,
    fixed_pattern,
    methods,
    miners,
    samplers,
    trunks,
)
from assay.protocols import Protocol, customise, protocols
from assay.study import design_bench
from loops import for_each
from miniature import MINI, make_features

SMALL = customise(protocols["quick"], MINI)
HERE = rf"{Path(__file__).name}, line \d+"


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_features(tmp_path_factory.mktemp("tryout") / "mini.npz")


@pytest.fixture
def design(features: Path, as_before: None) -> Callable[..., Any]:
    """Design a bench of the method called mine, which tries it."""

    def run(*settings: str, protocol: Protocol = SMALL) -> Any:
        chosen = customise(protocol, settings)
        return design_bench(f"features:{features}", ["mine"], chosen, "cpu", ())

    return run


def add(forward: Callable[..., Any], space: Space | None = None, **more: Any) -> type[Loss]:
    """Register the method called mine, with a loss of this `forward`."""
    body = {"forward": forward, "__module__": __name__, **more}
    loss: type[Loss] = type("Mine", (Loss,), body)
    methods.add(Method("mine", loss, space=space or Space()))
    return loss


# --- losses that cannot be trained ---


def fails(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    raise KeyError("slip")


def leaves(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    sys.exit(0)


def detached(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.detach().sum()


def many(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.sum(1)


def number(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.sum().item()


def infinite(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.sum() / 0


def divides_by_nothing(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.sum() * float("nan")


def twice(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    """Forget to detach what is kept for the next batch."""
    self.past = z.sum() + getattr(self, "past", 0.0)
    return self.past


UNSOUND: dict[str, tuple[Callable[..., Any], str]] = {
    "an exception": (fails, "KeyError: 'slip'"),
    "the end of the program": (leaves, "SystemExit: 0"),
    "no gradient": (detached, "ValueError: the loss has no gradient; use no .item()"),
    "a loss for each sample": (many, r"Mine gave shape \(64,\), but a loss is one number"),
    "a number": (number, "Mine gave a float, but a loss is one number in a tensor"),
    "infinity": (infinite, "its loss is -?inf on every batch of random vectors with its defaults"),
    "no number": (divides_by_nothing, "its loss is nan on every batch"),
    "a kept graph": (twice, "RuntimeError: Trying to backward through the graph a second time"),
}


@for_each("name", list(UNSOUND))
def test_a_loss_that_cannot_be_trained_is_refused_in_one_line_with_its_place(
    name: str, design: Callable[..., Any]
) -> None:
    forward, message = UNSOUND[name]
    methods.forget(__name__)
    add(forward)
    with pytest.raises(BadInput, match=rf"^mine.*{message}") as refused:
        design()
    assert str(refused.value).count("\n") == 0
    assert "nothing was begun" in str(refused.value)
    refused.match(HERE)


def test_a_miner_that_fails_is_refused(design: Callable[..., Any]) -> None:
    class Slips:
        paper, departures = None, ()

        def __call__(self, z: Any, y: Any) -> Any:
            return y[len(y)]

    miners("slips")(Slips)
    methods.add(Method("mine", methods["contrastive"].loss, space=Space(), miner="slips"))
    with pytest.raises(BadInput, match=rf"^mine fails on a batch.*IndexError.*{HERE}"):
        design()


def test_parameters_that_do_not_fit_into_memory_are_refused(design: Callable[..., Any]) -> None:
    def setup(self: Any, dim: int, classes: int) -> None:
        self.weights = nn.Parameter(torch.empty(10**15))

    add(divides_by_nothing, setup=setup)
    with pytest.raises(BadInput, match="Set a smaller dim, batch or parameter"):
        design()


def test_a_head_that_is_wider_than_the_protocol_says_is_refused(
    design: Callable[..., Any],
) -> None:
    """Its last numbers would be left out of the scores of a single model."""
    add(sound, head=lambda self, dim: HeadShape((dim, 1)))
    with pytest.raises(
        BadInput,
        match=r"^mine: its head has 9 numbers .* the protocol has dim=8",
    ):
        design()


# --- sound losses ---


def sound(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.square().sum()


def of_pairs(self: Any, z: Any, y: Any, pairs: Pairs, references: Any) -> Any:
    """Fail where a batch has no pair to pull together."""
    (anchor, positive) = pairs.positive.nonzero(as_tuple=True)
    assert len(anchor) > 0
    return (z[anchor] - z[positive]).square().sum()


def with_memory(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    """Compare with the batch before, of which the first batch has none."""
    past, self.past = getattr(self, "past", None), z.detach()
    return 0 * z.sum() if past is None else (z @ past.T).mean()


def first_overflows(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    self.steps = getattr(self, "steps", 0) + 1
    return z.sum() * (float("inf") if self.steps == 1 else 1.0)


def in_place(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
    return z.mul_(2).sum()


def by_classes(self: Any, z: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(z @ self.weights.T, y)


SOUND: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "any": (sound, {}),
    "pairs": (of_pairs, {"compares": "pairs"}),
    "memory": (with_memory, {}),
    "overflow in one batch": (first_overflows, {}),
    "in place": (in_place, {"normalise": False}),
    "one weight for each class": (by_classes, {"compares": "classes"}),
    "a narrower head": (sound, {"head": lambda self, dim: HeadShape((1,))}),
}


@for_each("name", list(SOUND))
def test_a_sound_loss_is_not_accused(name: str, design: Callable[..., Any]) -> None:
    forward, more = SOUND[name]
    methods.forget(__name__)
    add(forward, **more)
    for setting in ("dim=8", "dim=1", "batch.embedding=1x1", "batch.embedding=2x1"):
        if forward is not of_pairs or setting.startswith("dim"):
            design(setting)


def test_all_methods_of_assay_pass_under_every_shape_of_batch(features: Path) -> None:
    for settings in ((), ("batch.embedding=1x1",), ("dim=1",), ("batch.embedding=2x2",)):
        design_bench(f"features:{features}", ["all"], customise(SMALL, settings), "cpu", ())


def test_an_adopted_module_passes(design: Callable[..., Any]) -> None:
    methods.add(Method("mine", adopt(nn.MultiMarginLoss, dim=None, classes=None), space=Space()))
    with pytest.raises(BadInput, match="mine fails"):  # it takes 8 classes, the batch has others
        design("dim=2")
    design("dim=16")


def test_random_numbers_of_the_process_are_left_alone(design: Callable[..., Any]) -> None:
    def draws(self: Any, z: Any, y: Any, mined: Any, references: Any) -> Any:
        return z.sum() * random.random() * float(np.random.rand()) * torch.rand(())

    add(draws)

    def state() -> list[Any]:
        numpys: Any = np.random.get_state()
        return [random.getstate(), torch.get_rng_state().tolist(), list(numpys[1])]

    before = state()
    design()
    assert state() == before


def test_nothing_is_written_for_a_loss_that_fails(
    assay: Callable[..., Any], as_before: None, features: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from assay.methods import Loss, Method, Space, methods\n"
        "class Mine(Loss):\n"
        "    def forward(self, z, y, mined=None, references=None):\n"
        "        return z.no_such_thing()\n"
        "methods.add(Method('mine', Mine, space=Space()))\n"
    )
    words = ["--data", f"features:{features}", "--import", tmp_path / "mine.py"]
    expected = r"assay: mine fails on a batch .*AttributeError.*mine\.py, line 4\)"
    for command in (
        ["bench", "--methods", "triplet,mine"],
        ["bench", "--methods", "triplet,mine", "--dry-run"],
        ["sweep", "--methods", "mine", "--vary", "dim=4,8"],
        ["train", "--method", "mine"],
    ):
        code, out, err = assay(*command, *words, "--out", tmp_path / "store")
        assert (code, out, err.count("\n")) == (2, "", 1), command
        assert re.search(expected, err)
        assert not (tmp_path / "store").exists()


def test_a_metric_that_looks_at_more_references_than_there_are_is_refused(
    design: Callable[..., Any],
) -> None:
    add(sound)
    for field, name, most in (
        ("metrics", "recall_at_40", "the test half has 39"),
        ("metrics", "recall_at_" + "9" * 20, "the test half has 39"),
        ("training_metrics", "map_at_20", "the training samples of a fold has 19"),
    ):
        with pytest.raises(BadInput, match=f"{field}={name}: .* a query in {most} to choose from"):
            design(f"{field}={name}")
    design("metrics=recall_at_39")


# --- samplers and trunks ---


def test_a_sampler_that_wrongly_declares_a_fixed_pattern_is_found_before_the_announcement(
    design: Callable[..., Any],
) -> None:
    @samplers("mixed")
    @fixed_pattern
    def mixed(y: Any, batch: Any, seed: int) -> Any:
        draw = np.random.default_rng(seed)
        while True:
            yield draw.permutation(len(y))[: batch[0] * batch[1]]

    add(sound)
    with pytest.raises(BadInput, match="the sampler mixed declares a fixed pattern"):
        design("sampler=mixed")


SAMPLERS: dict[str, tuple[Any, str]] = {
    "outside": (
        lambda y, batch, seed: iter([np.array([len(y)])]),
        "drew row 20, and the training samples have rows 0 to 19",
    ),
    "failing": (lambda y, batch, seed: iter([1 / 0]), "ZeroDivisionError"),
    "leaving": (lambda y, batch, seed: iter([sys.exit(0)]), "SystemExit: 0"),
    "short": (lambda y, batch, seed: iter([np.arange(4)]), "short has ended; it must draw"),
}


@for_each("name", list(SAMPLERS))
def test_a_sampler_that_fails_is_refused(name: str, design: Callable[..., Any]) -> None:
    samplers(name)(SAMPLERS[name][0])
    methods.forget(__name__)
    add(sound)
    with pytest.raises(
        BadInput, match=rf"the sampler {name}.*{SAMPLERS[name][1]}|{SAMPLERS[name][1]}"
    ):
        design(f"sampler={name}")


def test_a_trunk_that_fails_or_lies_about_its_width_is_refused(design: Callable[..., Any]) -> None:
    class Vectors(Trunk):
        takes = "vectors"

        def __init__(self, inputs: int) -> None:
            super().__init__(inputs)
            self.features = inputs

    class Fails(Vectors):
        def forward(self, x: Any) -> Any:
            return x @ x

    class Leaves(Vectors):
        def forward(self, x: Any) -> Any:
            sys.exit(0)

    class Lies(Vectors):
        def forward(self, x: Any) -> Any:
            return x[:, :3]

    trunks("fails")(Fails)
    trunks("leaves")(Leaves)
    trunks("lies")(Lies)
    add(sound)
    with pytest.raises(BadInput, match=rf"the trunk 'fails' fails on one blank.*{HERE}"):
        design("trunk=fails")
    with pytest.raises(BadInput, match=rf"the trunk 'leaves' fails on one blank.*{HERE}"):
        design("trunk=leaves")
    with pytest.raises(BadInput, match=r"gives features of shape \(1, 3\).*\(1, 12\)"):
        design("trunk=lies")
