"""Models: their architecture, the weights they start with, and the folders they are saved in."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from assay.errors import BadInput
from assay.hashing import canonical
from assay.heads import HeadShape
from assay.model import (
    CARD,
    WEIGHTS,
    Architecture,
    Model,
    has_trunk_weights,
    pack_model,
    read_model_folder,
    untrained_model,
    with_trunk,
    write_model_folder,
)
from assay.protocols import Augment, FirstStep, Pooling, Protocol, resolve
from assay.trunks import trunk_facts
from assay.trunks.checkpoints import body_of
from assay.trunks.weights import resolve_weights

PROTOCOL = resolve(
    Protocol(
        "test.v1",
        trunk="conv",
        size=20,
        stored=24,
        resize="short",
        dim=5,
        augment=Augment(rotation=0.0, shear=0.0),
    ),
    "photo",
    trunk_facts,
)
ARCHITECTURES = {
    "plain": Architecture("conv", 3, 20, 5),
    "grey": Architecture("conv", 1, 28, 5),
    "with all there is": Architecture("conv", 3, 20, 5, "gem", True, "short", 24),
    "without a head": Architecture("conv", 3, 20, 0),
    "without a head, standardised": Architecture("conv", 3, 20, 0, "avg+max", True, "stretch", 24),
    "a head on vectors": Architecture("identity", 7, 0, 5, layer_norm=True),
    "nothing at all": Architecture("identity", 7, 0, 0),
}


def inputs_of(architecture: Architecture, count: int = 6) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    shape = (
        (architecture.inputs, architecture.size, architecture.size)
        if architecture.size
        else (architecture.inputs,)
    )
    return torch.rand(count, *shape, generator=draw)


def with_a_past(architecture: Architecture, seed: int = 0) -> Model:
    """Return a model whose running statistics are not those of a new one."""
    torch.manual_seed(seed)
    model = Model(architecture)
    with torch.no_grad():
        for _ in range(3):
            model.train()(inputs_of(architecture))
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape)
    return model.eval()


def embedded(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(x)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that is intact."""
    write_model_folder(
        tmp_path / "model", with_a_past(ARCHITECTURES["plain"]), {"made": "of stripes"}
    )
    return tmp_path / "model"


# --- Architecture ---


def test_embeddings_are_as_wide_as_the_architecture_says() -> None:
    for name, architecture in ARCHITECTURES.items():
        model = with_a_past(architecture)
        width = architecture.dim or model.trunk.features
        assert embedded(model, inputs_of(architecture)).shape == (6, width), name


def test_features_are_standardised_before_the_head_where_that_is_wanted() -> None:
    model = with_a_past(Architecture("identity", 7, 0, 5, layer_norm=True))
    x = 10 * inputs_of(model.architecture) + 3
    standard = (x - x.mean(1, keepdim=True)) / (
        x.var(1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(
        embedded(model, x), standard @ model.head.weight.detach().T + model.head.bias.detach()
    )
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]


def test_a_frozen_trunk_leaves_a_head_on_vectors() -> None:
    frozen = replace(PROTOCOL, frozen="trunk", layer_norm=True)
    assert Architecture.under(frozen, 64, HeadShape((5,))) == Architecture(
        "identity", 64, 0, 5, layer_norm=True
    )
    assert Architecture.under(frozen, 64, HeadShape((4, 5))).parts == (4, 5)


def test_the_architecture_is_that_of_the_protocol() -> None:
    found = Architecture.under(
        replace(PROTOCOL, pooling="gem", layer_norm=True), 3, HeadShape((5,))
    )
    assert found == Architecture("conv", 3, 20, 5, "gem", True, "short", 24)
    assert found.first_step == FirstStep("short", 24)
    assert Architecture.under(PROTOCOL, 3).dim == 0
    assert Architecture("conv", 3, 20, 5).first_step == FirstStep("square", 20)


def test_the_random_state_decides_on_the_weights() -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(untrained_model(ARCHITECTURES["plain"], "none").state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_the_state_is_a_copy() -> None:
    model = with_a_past(ARCHITECTURES["plain"])
    state = model.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert not any(tensor.requires_grad for tensor in state.values())


# --- The trunk before the head ---


@pytest.mark.parametrize(
    "change", [{}, {"layer_norm": True}, {"pooling": "gem", "dim": 9}, {"dim": 1}]
)
def test_a_head_on_frozen_features_and_its_trunk_are_one_model(change: dict[str, Any]) -> None:
    declared = Protocol("p.v1", trunk="lite0", size=64, stored=70, dim=5)
    protocol = resolve(replace(declared, **change), "photo", trunk_facts)
    trunk = untrained_model(
        Architecture.under(replace(protocol, frozen="nothing"), 3), protocol.weights
    ).trunk
    head = with_a_past(Architecture.under(protocol, trunk.features, HeadShape((protocol.dim,))))
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    model = with_trunk(head, protocol, 3)
    with torch.no_grad():
        by_hand = head(trunk.eval()(x))
    torch.testing.assert_close(embedded(model, x), by_hand, atol=1e-6, rtol=1e-5)
    assert (model.architecture.trunk, model.architecture.size, model.architecture.dim) == (
        "lite0",
        64,
        protocol.dim,
    )
    assert model.architecture.first_step == FirstStep("square", 70)
    assert model.architecture.layer_norm == protocol.layer_norm


def test_a_whole_model_can_be_kept_and_read_without_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Protocol("p.v1", trunk="lite0", size=64, dim=5, layer_norm=True)
    protocol = resolve(declared, "photo", trunk_facts)
    model = with_trunk(
        with_a_past(Architecture.under(protocol, 1280, HeadShape((5,)))), protocol, 3
    )
    write_model_folder(tmp_path / "model", model, {})
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("assay.trunks.weights.load_weights", None)
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(embedded(read_model_folder(tmp_path / "model")[0], x), embedded(model, x))


# --- Folders ---


def test_a_folder_gives_back_the_model(tmp_path: Path) -> None:
    for name, architecture in ARCHITECTURES.items():
        model = with_a_past(architecture)
        card = {"method": "triplet", "scores": {"map_at_r": 0.5}}
        write_model_folder(tmp_path / name, model, card)
        torch.manual_seed(99)
        found, about = read_model_folder(tmp_path / name)
        assert found.architecture == architecture, name
        x = inputs_of(architecture)
        assert torch.equal(embedded(found, x), embedded(model, x)), name
        assert {key: about[key] for key in card} == card, name
        assert Architecture(**about["architecture"]) == architecture, name


def test_a_folder_holds_the_weights_and_a_card_for_people(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted([WEIGHTS, CARD])
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    assert card["made"] == "of stripes"
    assert card["architecture"]["trunk"] == "conv"


def test_the_same_model_is_the_same_bytes() -> None:
    first, second = (with_a_past(ARCHITECTURES["with all there is"]) for _ in range(2))
    assert pack_model(first.architecture, first.state()) == pack_model(
        second.architecture, second.state()
    )


def test_a_folder_of_another_format_is_refused_with_the_version_that_reads_it(folder: Path) -> None:
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    for other in (None, card["format"] - 1, card["format"] + 1):
        (folder / CARD).write_text(json.dumps({**card, "format": other}))
        with pytest.raises(BadInput, match=r"model.json has .*this version of Assay reads format"):
            read_model_folder(folder)


def change_weights(change: Any) -> Any:
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def foreign(state: dict[str, Tensor], metadata: dict[str, str] | None) -> Any:
    return lambda folder: (folder / WEIGHTS).write_bytes(save(state, metadata=metadata))


STATE = with_a_past(ARCHITECTURES["plain"]).state()
SAYS = {"architecture": canonical(ARCHITECTURES["plain"])}
CORRUPT = {
    "weights cut short": change_weights(lambda content: content[:-10]),
    "weights cut in the header": change_weights(lambda content: content[:20]),
    "empty weights": change_weights(lambda _: b""),
    "text for weights": change_weights(lambda _: b"not a model at all"),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "no card": lambda folder: (folder / CARD).unlink(),
    "a card cut short": lambda folder: (folder / CARD).write_text('{"architecture": '),
    "an empty card": lambda folder: (folder / CARD).write_text(""),
    "a card that is a number": lambda folder: (folder / CARD).write_text("3"),
    "a card that is no text": lambda folder: (folder / CARD).write_bytes(b"\xff\xfe\x00"),
    "weights of anything else": foreign({"weight": torch.ones(3)}, None),
    "weights that say something else": foreign({"weight": torch.ones(3)}, {"format": "pt"}),
    "an architecture that is no JSON": foreign(STATE, {"architecture": "conv"}),
    "an architecture that is a list": foreign(STATE, {"architecture": "[1, 2]"}),
    "an architecture of another program": foreign(STATE, {"architecture": '{"layers": 12}'}),
    "an unknown trunk": foreign(
        STATE, {"architecture": canonical(replace(ARCHITECTURES["plain"], trunk="no-such-trunk"))}
    ),
    "an unknown pooling": foreign(
        STATE, {"architecture": canonical({**vars(ARCHITECTURES["plain"]), "pooling": "best"})}
    ),
    "a missing weight": foreign(
        {name: tensor for name, tensor in STATE.items() if name != "head.bias"}, SAYS
    ),
    "a weight too many": foreign({**STATE, "extra": torch.ones(2)}, SAYS),
    "a weight of another shape": foreign({**STATE, "head.weight": torch.ones(5, 63)}, SAYS),
}


def test_a_corrupt_folder_is_refused_by_its_name(folder: Path, tmp_path: Path) -> None:
    for number, (how, corrupt) in enumerate(CORRUPT.items()):
        copy = shutil.copytree(folder, tmp_path / f"copy{number}")
        corrupt(copy)
        with pytest.raises(BadInput, match="make the model again in another folder") as raised:
            read_model_folder(copy)
        assert str(copy) in str(raised.value), how


def exchange(name: str, change: Any) -> Any:
    """Return a change of the card of a model folder."""

    def edit(folder: Path) -> None:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        (folder / CARD).write_text(json.dumps({**card, name: change(card[name])}))

    return edit


def flip_the_last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


EXCHANGED = {
    "another weight": (change_weights(flip_the_last_bit), "sha256"),
    "another head": (
        foreign({**STATE, "head.weight": STATE["head.weight"].flip(0)}, SAYS), "sha256",
    ),
    "another hash": (exchange("sha256", lambda own: own[::-1]), "sha256"),
    "another size": (exchange("architecture", lambda own: {**own, "size": 24}), "architecture"),
    "no architecture": (exchange("architecture", lambda _: None), "architecture"),
}  # fmt: skip


@pytest.mark.forgery("the command", what="weights of a model folder: {}")
@pytest.mark.parametrize("how", EXCHANGED)
def test_weights_that_do_not_belong_to_the_card_are_refused(folder: Path, how: str) -> None:
    alter, named = EXCHANGED[how]
    alter(folder)
    with pytest.raises(
        BadInput,
        match=(
            rf"^{folder / WEIGHTS} is not the file that {CARD} was written with: it has another"
            rf" {named}, .*; restore the model folder from a copy, or make it again$"
        ),
    ):
        read_model_folder(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["head.bias", "trunk.blocks.1.2.running_var"])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, name: str, value: float) -> None:
    model = with_a_past(ARCHITECTURES["plain"])
    with torch.no_grad():
        model.state_dict()[name][-1] = value
    write_model_folder(tmp_path / "model", model, {})
    with pytest.raises(BadInput, match=rf"model.safetensors: {name} holds NaN or infinity, .*;"):
        read_model_folder(tmp_path / "model")


@pytest.mark.parametrize("pooling", ["avg", "gem"])
def test_a_trunk_is_known_by_the_hash_of_its_weights(
    pooling: Pooling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A learned pooling is no part of the hash, and has to be as it is built."""
    known = resolve_weights("lite0", "pretrained")
    assert known is not None
    model = untrained_model(Architecture("lite0", 3, 32, 5, pooling), known.digest)
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "empty"))
    assert has_trunk_weights(model, known.digest)
    assert not has_trunk_weights(model, "0" * 64)
    state = model.trunk.state_dict()
    learned = [name for name in state if name.endswith("exponent")]
    assert len(learned) == (pooling == "gem")
    for name in ("body.conv_stem.weight", "body.bn1.running_var", *learned):
        before = state[name].clone()
        state[name].mul_(1.001)
        assert not has_trunk_weights(model, known.digest), name
        state[name].copy_(before)
    assert has_trunk_weights(model, known.digest)


def test_anything_but_a_model_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("a file")
    for name in ("nothing", "folder", "file"):
        with pytest.raises(BadInput, match=f"{name}/model.json .*make the model again"):
            read_model_folder(tmp_path / name)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    model = with_a_past(ARCHITECTURES["plain"])
    with pytest.raises(TypeError):
        write_model_folder(tmp_path / "model", model, {"cannot be written": object()})
    assert list(tmp_path.iterdir()) == []


def test_the_layout_of_weights_in_memory_is_not_in_the_file(tmp_path: Path) -> None:
    """channels_last is a matter of speed: the file has the numbers in their plain order."""
    model = with_a_past(ARCHITECTURES["plain"])
    assert all(tensor.is_contiguous() for tensor in model.state().values())
    convolution = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    first = next(tensor for tensor in model.state().values() if tensor.ndim == 4)
    np.testing.assert_array_equal(first.numpy(), convolution.weight.detach().numpy())


class OnGpu(Tensor):
    """A tensor that torch compares with none on the CPU, like one on a GPU."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.equal and not all(isinstance(one, cls) for one in given):
            raise RuntimeError("Expected all tensors to be on the same device")
        found = super().__torch_function__(function, types, given, named or {})
        return found.as_subclass(Tensor) if function is Tensor.cpu else found


def test_a_trunk_is_known_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    known = resolve_weights("lite0", "pretrained")
    assert known is not None
    model = untrained_model(Architecture("lite0", 3, 32, 5, "gem"), known.digest)
    body = body_of(model.trunk)
    state = {name: one.detach().as_subclass(OnGpu) for name, one in body.state_dict().items()}
    with pytest.raises(RuntimeError, match="same device"):
        torch.equal(next(iter(state.values())), torch.ones(1))
    monkeypatch.setattr(body, "state_dict", lambda: state)
    assert has_trunk_weights(model, known.digest)
    state["conv_stem.weight"] += 1
    assert not has_trunk_weights(model, known.digest)
