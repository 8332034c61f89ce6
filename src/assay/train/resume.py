"""Files that let a training outlive its process: its state, and the weights of each validation."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from assay.files import regular, write_atomically
from assay.hashing import canonical, digest, digest_bytes, digest_file
from assay.methods import BuiltMethod
from assay.model import Architecture, pack_model

SAVE_AFTER = 60.0
"""Seconds of training that a kill may cost, beside the time between two validations."""

SLOW_SAVE = 3.0
"""Seconds that saving may take; if it takes longer, the state is saved less often."""


@dataclass(frozen=True)
class SavedState:
    """The state of a training, or of a part of it.

    Args:
        tensors: by name, on the CPU.
        values: everything else, as JSON holds it.
    """

    tensors: Mapping[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: Mapping[str, "SavedState"], **values: Any) -> "SavedState":
        """Return the states of several parts as one, with further values."""
        tensors = {
            f"{name}/{inner}": tensor
            for name, one in parts.items()
            for inner, tensor in one.tensors.items()
        }
        return cls(tensors, {**values, **{name: one.values for name, one in parts.items()}})

    def part(self, name: str) -> "SavedState":
        """Return the state of one of the parts."""
        own = f"{name}/"
        tensors = {
            inner.removeprefix(own): tensor
            for inner, tensor in self.tensors.items()
            if inner.startswith(own)
        }
        return SavedState(tensors, self.values[name])


class CheckpointFolder:
    """A folder with the weights of every validation of a run, each a model file."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        self._folder, self._architecture = folder, architecture
        self.hashes: dict[str, str] = {}

    def path(self, epoch: int) -> Path:
        """Return the file with the weights of this epoch."""
        return self._folder / f"{epoch}.safetensors"

    def keep(self, epoch: int, weights: dict[str, Tensor]) -> None:
        """Write the weights of an epoch."""
        packed = pack_model(self._architecture, weights)
        write_atomically(self.path(epoch), packed)
        self.hashes[str(epoch)] = digest_bytes(packed)

    def resume(self, hashes: dict[str, str]) -> bool:
        """Go on from the files with these hashes; return whether all are there, unaltered."""
        self.hashes = dict(hashes)
        paths = [self.path(int(epoch)) for epoch in hashes]
        return all(path.exists() for path in paths) and [
            digest_file(path) for path in paths
        ] == list(hashes.values())


class ResumeFile:
    """A file that holds the state of a training, from which it resumes after a kill.

    A state that is corrupt or belongs to another training is ignored. If the disk is full, the
    state is lost and the training goes on.

    Args:
        path: of the file.
        key: of the training; a state with another key is ignored.
        checkpoints: folders of checkpoints, which must be there as the state says.
        after: seconds after which a state is worth saving.
        clock: seconds from any start.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        checkpoints: Sequence[CheckpointFolder] = (),
        after: float = SAVE_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._key, self._checkpoints, self._after = path, key, checkpoints, after
        self._clock = clock
        self._began = self._saved = clock()
        self._took = 0.0
        self.spent = 0.0
        """Seconds that the training had taken before it was killed; set by `load`."""

    def load(self) -> SavedState | None:
        """Return the saved state, None if there is none that can be used."""
        found = _read(self._path)
        if found is None or found.values["key"] != self._key:
            return None
        hashes = found.values["checkpoints"]
        pairs = zip(self._checkpoints, hashes, strict=True)
        if not all(folder.resume(own) for folder, own in pairs):
            return None
        self.spent = found.values["seconds"]
        return found.part("training")

    def save(self, state: Callable[[], SavedState]) -> None:
        """Save the state if it is time to."""
        start = self._clock()
        if start - self._saved < self._after * max(1.0, self._took / SLOW_SAVE):
            return
        values = {
            "key": self._key,
            "checkpoints": [folder.hashes for folder in self._checkpoints],
            "seconds": self.spent + start - self._began,
        }
        with suppress(OSError):
            _write(self._path, SavedState.join({"training": state()}, **values))
        self._saved = self._clock()
        self._took = self._saved - start


def _write(path: Path, state: SavedState) -> None:
    """Write tensors and values as one file, with the hashes of everything in its header."""
    hashes = {name: digest_bytes(_bytes_of(tensor)) for name, tensor in state.tensors.items()}
    content = {"values": state.values, "tensors": hashes}
    header = {"state": canonical(content), "digest": digest(content)}
    write_atomically(path, save(dict(state.tensors), metadata=header))


def _read(path: Path) -> SavedState | None:
    """Return the state in the file, None if there is none or the file was altered."""
    try:
        with safe_open(str(regular(path)), framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content: dict[str, Any] = json.loads(header["state"])
        hashes = {name: digest_bytes(_bytes_of(tensor)) for name, tensor in tensors.items()}
        intact = digest(content) == header["digest"] and hashes == content["tensors"]
        return SavedState(tensors, content["values"]) if intact else None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


# --- The parts of a training ---


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers by name, the tensors themselves."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def tensors_state(tensors: Mapping[str, Tensor]) -> SavedState:
    """Return a copy of the tensors."""
    return SavedState({name: _copy(tensor) for name, tensor in tensors.items()})


@torch.no_grad()
def restore_tensors(tensors: Mapping[str, Tensor], state: SavedState) -> None:
    """Copy saved values into the tensors, which keep their place and layout in memory."""
    for name, tensor in tensors.items():
        tensor.copy_(state.tensors[name])


def optimiser_state(optimiser: torch.optim.Optimizer) -> SavedState:
    """Return what the optimiser has gathered on each of its weights."""
    gathered = {
        f"{place}.{name}": _copy(value)
        for place, weight in enumerate(_weights(optimiser))
        for name, value in optimiser.state.get(weight, {}).items()
        if isinstance(value, Tensor)
    }
    return SavedState(gathered)


def restore_optimiser(optimiser: torch.optim.Optimizer, state: SavedState) -> None:
    """Give the optimiser what it had gathered, laid out in memory as its weights are."""
    weights = _weights(optimiser)
    for path, value in state.tensors.items():
        place, name = path.split(".", 1)
        weight = weights[int(place)]
        alike = name != "step" and value.shape == weight.shape
        optimiser.state[weight][name] = (
            torch.empty_like(weight).copy_(value).detach() if alike else value.clone()
        )


def random_state(device: torch.device, own: torch.Generator) -> SavedState:
    """Return the states of torch's generators: the process's, the GPU's, the training's own."""
    found = {"process": torch.get_rng_state(), "own": own.get_state()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_rng_state(device)
    return SavedState(found)


def restore_random_state(device: torch.device, own: torch.Generator, state: SavedState) -> None:
    """Set the generators to their saved states."""
    torch.set_rng_state(state.tensors["process"])
    own.set_state(state.tensors["own"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state.tensors["device"], device)


def beside_weights(method: BuiltMethod) -> str | None:
    """Return a hash of what loss and miner hold beside weights, and of the shapes of the weights.

    None if they hold an object other than numbers, words and functions of a module: it may change
    without any sign of it.
    """
    modules = {name: own_attributes(module) for name, module in method.loss.named_modules()}
    shapes = {name: list(tensor.shape) for name, tensor in weights_of(method.loss).items()}
    try:
        return digest([modules, shapes, own_attributes(method.miner) if method.miner else None])
    except (TypeError, ValueError):
        return None


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes of every module: its weights, buffers, parts and hooks, and whether it is training.
"""


def own_attributes(part: object) -> dict[str, Any]:
    """Return what a loss or miner holds beside weights and what every module has.

    A function of a module is given by its name. A function that was made inside another may hold
    anything, and is given as it is.
    """
    left_out = _OF_EVERY_MODULE if isinstance(part, nn.Module) else frozenset()
    return {
        name: f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, FunctionType) and "<" not in value.__qualname__
        else value
        for name, value in vars(part).items()
        if name not in left_out
    }


def _weights(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimiser.param_groups for weight in group["params"]]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
