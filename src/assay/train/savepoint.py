"""Files by which a training outlives its process: its state, and the weights of every validation
where those are wanted.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from assay.files import write_atomically
from assay.hashing import canonical, digest, digest_bytes, digest_file
from assay.model import Architecture, pack_model
from assay.train.state import State

SAVE_AFTER = 60.0
"""Seconds of training that a kill may cost, beside what lies between two validations."""

LONG = 3.0
"""Seconds that saving may take; where it takes longer it is done as much less often."""


class CheckpointFolder:
    """A folder with the weights of every validation of a run, each a model of its own."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        self._folder, self._architecture = folder, architecture
        self.hashes: dict[str, str] = {}

    def path(self, epoch: int) -> Path:
        """Where the weights of this epoch lie."""
        return self._folder / f"{epoch}.safetensors"

    def keep(self, epoch: int, weights: dict[str, Tensor]) -> None:
        """Add the weights of an epoch."""
        packed = pack_model(self._architecture, weights)
        write_atomically(self.path(epoch), packed)
        self.hashes[str(epoch)] = digest_bytes(packed)

    def take_up(self, hashes: dict[str, str]) -> bool:
        """Go on with those of these hashes; False where one of them is not there as it was."""
        self.hashes = dict(hashes)
        paths = [self.path(int(epoch)) for epoch in hashes]
        return all(path.exists() for path in paths) and [
            digest_file(path) for path in paths
        ] == list(hashes.values())


class Savepoint:
    """A file in which a training leaves its state from time to time, and finds it again after a
    kill.

    A state that is spoilt, or of something else, counts for nothing. A disk that is full costs the
    savepoint, not the training.

    Args:
        path: of the file.
        key: of what is trained; a state with another one is not taken up.
        shelves: what is kept of every validation, which must be there as the state says.
        after: seconds after which a state is worth its file.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        shelves: Sequence[CheckpointFolder] = (),
        after: float = SAVE_AFTER,
    ) -> None:
        self._path, self._key, self._shelves, self._after = path, key, shelves, after
        self._began = self._saved = time.monotonic()
        self._took = 0.0
        self.spent = 0.0

    def load(self) -> State | None:
        """The state that was left here; `spent` is then how long it took to get there."""
        found = _read(self._path)
        if found is None or found.said["key"] != self._key:
            return None
        kept = found.said["kept"]
        if not all(
            checkpoint_folder.take_up(hashes)
            for checkpoint_folder, hashes in zip(self._shelves, kept, strict=True)
        ):
            return None
        self.spent = found.said["seconds"]
        return found.part("training")

    def save(self, state: Callable[[], State]) -> None:
        """Leave the state here, if it is time to."""
        start = time.monotonic()
        if start - self._saved < self._after * max(1.0, self._took / LONG):
            return
        kept = [checkpoint_folder.hashes for checkpoint_folder in self._shelves]
        seconds = self.spent + start - self._began
        with suppress(OSError):
            _write(
                self._path,
                State.of({"training": state()}, key=self._key, kept=kept, seconds=seconds),
            )
        self._saved = time.monotonic()
        self._took = self._saved - start


def _write(path: Path, state: State) -> None:
    """One file: the tensors, and in its header what is said with the hashes of all of it."""
    tensors = {name: _bytes_of(tensor) for name, tensor in state.tensors.items()}
    said = {
        "said": state.said,
        "tensors": {name: digest_bytes(content) for name, content in tensors.items()},
    }
    write_atomically(
        path, save(dict(state.tensors), metadata={"state": canonical(said), "digest": digest(said)})
    )


def _read(path: Path) -> State | None:
    """The state in the file, None where there is none or it is not as it was written."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content: dict[str, Any] = json.loads(header["state"])
        hashes = {name: digest_bytes(_bytes_of(tensor)) for name, tensor in tensors.items()}
        sound = digest(content) == header["digest"] and hashes == content["tensors"]
        return State(tensors, content["said"]) if sound else None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data
