"""Files of weights from elsewhere, fitted to a trunk."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.errors import BadInput, reason_of
from assay.trunks.trunk import GeneralisedMean, Photo, Trunk

WRAPPERS = ("state_dict", "model")
PREFIXES = ("module.", "backbone.")
COUNTER = "num_batches_tracked"
"""Batch normalisation counts batches only if it has no momentum; old files have no counters."""

StateDict = Mapping[str, Tensor]


def read_checkpoint(path: Path) -> StateDict:
    """Return the tensors of a .safetensors, .pth, .pt, .tar or .bin file by name.

    Nothing in the file is ever executed.
    """
    if not path.is_file():
        is_there = "it is not a file" if path.exists() else "there is no such file"
        raise BadInput(f"--weights {path}: {is_there}; give a file of weights")
    readers = {
        ".safetensors": _read_safetensors,
        ".pth": _read_torch,
        ".pt": _read_torch,
        ".tar": _read_torch,
        ".bin": _read_torch,
    }
    if path.suffix not in readers:
        raise BadInput(f"--weights {path}: a file of weights ends in {', '.join(readers)}")
    state: StateDict = _unwrap(readers[path.suffix](path))
    wrong = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if wrong or not state:
        raise BadInput(
            f"--weights {path} is no state dict:"
            f" {f'{wrong[0]!r} is no tensor' if wrong else 'it is empty'}"
        )
    return state


def body_of(trunk: Trunk) -> nn.Module:
    """Return the part of a trunk whose weights are saved and loaded."""
    return trunk.body if isinstance(trunk, Photo) else trunk


def expected(trunk: Trunk) -> dict[str, Tensor]:
    """Return the weights and running statistics that a file must hold.

    A learned pooling is not among them: it starts from its defaults.
    """
    body = body_of(trunk)
    pools = [name for name, module in body.named_modules() if isinstance(module, GeneralisedMean)]
    return {
        name: tensor
        for name, tensor in body.state_dict().items()
        if not name.endswith(COUNTER) and name.rpartition(".")[0] not in pools
    }


def fit_checkpoint(trunk: Trunk, state: StateDict, what: str) -> dict[str, Tensor]:
    """Return the state by the trunk's own names, in its shapes and types.

    `what` names the file in messages.
    """
    wanted = expected(trunk)
    named = _named(trunk, state, wanted)
    missing, unknown = wanted.keys() - named.keys(), named.keys() - wanted.keys()
    if missing:
        raise BadInput(
            f"{what} does not fit the trunk: it lacks"
            f" {_few(missing)}{f', and has {_few(unknown)}' if unknown else ''}"
        )
    if unknown:
        raise BadInput(f"{what} does not fit the trunk, which has no {_few(unknown)}")
    fitted = {name: _shaped(named[name], tensor) for name, tensor in wanted.items()}
    wrong = {
        name: (named[name], wanted[name])
        for name in wanted
        if fitted[name].shape != wanted[name].shape
    }
    for name, (given, tensor) in wrong.items():
        raise BadInput(
            f"{what} does not fit the trunk: {name} is {tuple(given.shape)}, not"
            f" {tuple(tensor.shape)}"
        )
    for name in wanted:
        if not torch.isfinite(fitted[name]).all():
            raise BadInput(
                f"{what}: {name} holds NaN or infinity, which gives no features; its training"
                " diverged or the file is damaged: give another file"
            )
    return {name: fitted[name].to(tensor.dtype).contiguous() for name, tensor in wanted.items()}


def _named(trunk: Trunk, state: StateDict, wanted: StateDict) -> dict[str, Tensor]:
    state = {_bare(name, wanted): tensor for name, tensor in state.items()}
    if not isinstance(trunk, Photo):
        return {name: tensor for name, tensor in state.items() if not name.endswith(COUNTER)}
    named = trunk.translate(state)
    unused = tuple(f"{part}." for part in trunk.classifier)
    return {
        name: tensor
        for name, tensor in named.items()
        if not name.endswith(COUNTER) and (name in wanted or not name.startswith(unused))
    }


def _bare(name: str, wanted: StateDict) -> str:
    while name not in wanted and name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name


def _shaped(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor; some files hold vectors of batch normalisation as (1, n)."""
    return tensor.squeeze(0) if tensor.shape == (1, *like.shape) and like.ndim == 1 else tensor


def _few(names: set[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


def _unwrap(content: Any) -> Any:
    while isinstance(content, Mapping):
        inside = next(
            (content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None
        )
        if inside is None:
            return content
        content = inside
    return {}


def _read_safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except (SafetensorError, OSError, MemoryError) as error:
        raise BadInput(
            f"--weights {path} is no safetensors file: {reason_of(error)}; fetch or save it again"
        ) from error


def _read_torch(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # many types, for damaged files and for files that run code
            raise BadInput(
                f"--weights {path} is damaged, or holds more than weights: objects whose loading"
                " runs code are refused; write it again with torch.save(model.state_dict(), ...)"
            ) from error
