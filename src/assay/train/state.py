"""The state of a training as tensors and plain data, so that it can be written down and taken up
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from assay.hashing import digest
from assay.methods import Parts


@dataclass(frozen=True)
class State:
    """What something must know to go on where it was.

    Args:
        tensors: by name, on the CPU.
        said: the rest, as JSON holds it.
    """

    tensors: Mapping[str, Tensor]
    said: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Mapping[str, "State"], **said: Any) -> "State":
        """The states of several parts as one, and what is to be said beside them."""
        tensors = {
            f"{name}/{inner}": tensor
            for name, one in parts.items()
            for inner, tensor in one.tensors.items()
        }
        return cls(tensors, {**said, **{name: one.said for name, one in parts.items()}})

    def part(self, name: str) -> "State":
        """The state of one of the parts."""
        own = f"{name}/"
        tensors = {
            inner.removeprefix(own): tensor
            for inner, tensor in self.tensors.items()
            if inner.startswith(own)
        }
        return State(tensors, self.said[name])


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, the tensors themselves."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def state_of_tensors(tensors: Mapping[str, Tensor]) -> State:
    """A copy of them."""
    return State({name: _copy(tensor) for name, tensor in tensors.items()})


@torch.no_grad()
def restore_tensors(tensors: Mapping[str, Tensor], state: State) -> None:
    """Put the values back into the tensors, which keep their place and layout."""
    for name, tensor in tensors.items():
        tensor.copy_(state.tensors[name])


def state_of_optimisers(optimisers: Sequence[torch.optim.Optimizer]) -> State:
    """What each has gathered on each of its weights."""
    gathered = {
        f"{number}.{place}.{name}": _copy(value)
        for number, optimiser in enumerate(optimisers)
        for place, weight in enumerate(_weights(optimiser))
        for name, value in optimiser.state.get(weight, {}).items()
        if isinstance(value, Tensor)
    }
    return State(gathered)


def restore_optimisers(optimisers: Sequence[torch.optim.Optimizer], state: State) -> None:
    """Give each what it had gathered, laid out in memory as its weights are."""
    weights = [_weights(optimiser) for optimiser in optimisers]
    for path, value in state.tensors.items():
        number, place, name = path.split(".", 2)
        weight = weights[int(number)][int(place)]
        alike = name != "step" and value.shape == weight.shape
        optimisers[int(number)].state[weight][name] = (
            torch.empty_like(weight).copy_(value).detach() if alike else value.clone()
        )


def state_of_chance(device: torch.device, own: torch.Generator | None = None) -> State:
    """Where torch's generators stand: that of the process, that of the GPU, and one of the
    training's own.
    """
    found = {"process": torch.get_rng_state()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_rng_state(device)
    if own is not None:
        found["own"] = own.get_state()
    return State(found)


def restore_chance(device: torch.device, state: State, own: torch.Generator | None = None) -> None:
    """Set the generators to where they stood."""
    torch.set_rng_state(state.tensors["process"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state.tensors["device"], device)
    if own is not None:
        own.set_state(state.tensors["own"])


def beside_weights(parts: Parts) -> str | None:
    """Hash of what loss and miner hold beside their weights, and of those weights' shapes; None
    where it cannot be told.

    Numbers, words and functions of a module can be compared. Any other object may change without
    anybody seeing it.
    """
    modules = {name: _own(module, leave_out=_TORCHS) for name, module in parts.loss.named_modules()}
    shapes = {name: list(tensor.shape) for name, tensor in weights_of(parts.loss).items()}
    try:
        return digest([modules, shapes, _own(parts.miner) if parts.miner else None])
    except (TypeError, ValueError):
        return None


_TORCHS = frozenset(vars(nn.Module()))
"""Attributes that every module has: its weights, buffers, parts and hooks, and whether it is
training.
"""


def own_attributes(loss: nn.Module) -> dict[str, Any]:
    """What a loss holds beside weights, buffers, parts and what every module has."""
    return _own(loss, leave_out=_TORCHS)


def _own(part: object, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    return {name: _named(value) for name, value in vars(part).items() if name not in leave_out}


def _named(value: object) -> object:
    """A function of a module by its name, anything else as it is; one that was made inside another
    may hold what it likes.
    """
    if isinstance(value, FunctionType) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    return value


def _weights(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimiser.param_groups for weight in group["params"]]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
