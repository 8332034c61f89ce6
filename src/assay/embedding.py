"""From samples to embeddings, and from a model folder or the name of a trunk to an `Embedder`."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.augment import centre
from assay.data.dataset import Labels, Pixels, Samples, Vectors
from assay.data.images import read_images
from assay.devices import choose_device, seed_torch, torch_threads
from assay.errors import BadInput
from assay.hashing import derive
from assay.model import Architecture, Model, read_model_folder, untrained_model
from assay.progress import Progress, silent
from assay.protocols import FirstStep, ResolvedProtocol, SampleKind, Similarity
from assay.records.run import CARD
from assay.registry import UnknownName
from assay.trunks import find, weights

SMALL, BATCH, LARGE_BATCH = 64, 256, 32
"""Images with sides of up to `SMALL` pixels go through the network `BATCH` at a time, larger images
`LARGE_BATCH` at a time.
"""

Read = Callable[[Labels, FirstStep], Samples]
"""Reads samples by their numbers."""


class Sliceable(Interface):
    """Samples that can be sliced, such as those of a view."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Samples: ...


def batch_of(size: int) -> int:
    """Return how many images go through a network at a time."""
    return BATCH if size <= SMALL else LARGE_BATCH


def embed_samples(
    network: nn.Module,
    x: Sliceable,
    size: int,
    device: torch.device,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Return the embeddings (N, dim) of the samples as they are compared, on the CPU.

    The network is left in evaluation mode.
    """
    return normalise_for(outputs(network, x, size, device), similarity)


def normalise_for(z: Tensor, similarity: Similarity) -> Tensor:
    """Return outputs (N, dim) of a network as they are compared: for the cosine as unit vectors."""
    return F.normalize(z, dim=1) if similarity == "cosine" else z


@torch.no_grad()
def outputs(network: nn.Module, x: Sliceable, size: int, device: torch.device) -> Tensor:
    """Return the network's outputs for the centres of the samples, in batches, on the CPU."""
    network.eval()
    count = batch_of(size)
    parts = [
        network(centre(x[start : start + count], size).to(device)).cpu()
        for start in range(0, len(x), count)
    ]
    return torch.cat(parts)


def read_and_embed(
    network: nn.Module,
    read: Read,
    count: int,
    architecture: Architecture,
    device: torch.device,
    progress: Progress,
    stage: str = "embedding",
) -> Tensor:
    """Return the network's outputs for `count` samples; read, decode and compute in parallel.

    A few batches are in memory at a time. Each batch is computed by one thread, so that the result
    does not depend on the number of threads. `stage` is the stage that `progress` reports.
    """
    network.eval()
    many = batch_of(architecture.size)

    @torch.no_grad()
    def one(start: int) -> Tensor:
        torch.set_num_threads(1)
        x = read(np.arange(start, min(start + many, count)), architecture.first_step)
        z: Tensor = network(centre(x, architecture.size).to(device)).cpu()
        return z

    parts = []
    with torch_threads(1), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for part in pool.map(one, range(0, count, many)):
            parts.append(part)
            progress(stage, min(len(parts) * many, count), count)
    return torch.cat(parts)


def trunk_features(
    protocol: ResolvedProtocol,
    read: Read,
    rows: Labels,
    inputs: int,
    device: torch.device,
    progress: Progress,
) -> Tensor:
    """Return the features of these samples by the trunk of a protocol, before any head.

    Random weights are drawn from the protocol's seed.
    """
    architecture = Architecture.whole(protocol, inputs, dim=0)
    seed_torch(derive(protocol.seed, "model"))
    model = untrained_model(architecture, protocol.weights).to(device)

    def some(numbers: Labels, step: FirstStep) -> Samples:
        return read(rows[numbers], step)

    stage = f"features of {protocol.trunk}"
    return read_and_embed(model.trunk, some, len(rows), architecture, device, progress, stage)


@dataclass(frozen=True)
class Embedder:
    """A model ready for use.

    Args:
        model: the network.
        card: facts about it, such as the data and method that it was trained with.
        device: device that it computes on.
        folder: the model folder that it was loaded from; None: it is a pretrained trunk.
    """

    model: Model
    card: dict[str, Any]
    device: torch.device
    folder: Path | None = None

    @property
    def similarity(self) -> Similarity:
        """How its embeddings are compared: cosine (of unit vectors) or euclidean."""
        return self.model.architecture.similarity

    def embed(self, samples: Sequence[str | Path | Pixels] | Vectors) -> Vectors:
        """Return embeddings (N, dim) of image files, of pixels (height, width, 3), or of features.

        Features are rows (N, width). The embeddings are unit vectors where `similarity` is cosine.
        """
        if find(self.model.architecture.trunk).takes == "vectors":
            x = self._rows(samples)
            z = embed_samples(self.model, x, 0, self.device, self.similarity)
            return np.asarray(z.numpy())
        channels = self.model.architecture.inputs
        return self.embed_read(
            lambda rows, step: read_images([samples[row] for row in rows], step, channels),
            len(samples),
        )

    def _rows(self, samples: Any) -> Vectors:
        """Return features as an array of the width that the model takes, or raise `BadInput`."""
        width = self.model.architecture.inputs
        try:
            x: Vectors = np.asarray(samples, dtype=np.float32)
        except (ValueError, TypeError):
            x = np.empty(0, dtype=np.float32)
        if x.ndim != 2 or len(x) == 0 or x.shape[1] != width:
            got = (
                f"shape {samples.shape}"
                if isinstance(samples, np.ndarray)
                else f"{type(samples).__name__} of {len(samples)}"
            )
            raise BadInput(f"this model takes rows of {width} numbers, at least one; got {got}")
        return x

    def embed_read(self, read: Read, count: int, progress: Progress = silent) -> Vectors:
        """Return embeddings (N, dim) of `count` samples that `read` reads."""
        if not count:
            raise BadInput("no samples were given, so there is nothing to embed")
        z = read_and_embed(self.model, read, count, self.model.architecture, self.device, progress)
        return np.asarray(normalise_for(z, self.similarity).numpy())


def check_kind(called: str, takes: SampleKind, inputs: int, given: SampleKind, found: int) -> None:
    """Raise `BadInput` unless the samples are of the kind and width that the model takes."""
    wide = {"vectors": "numbers", "images": "channels"}
    if (takes, inputs) != (given, found):
        raise BadInput(
            f"the model of {called} takes {takes} of {inputs} {wide[takes]}, the data are {given}"
            f" of {found} {wide[given]}; give data of the kind that the model takes"
        )


def load(
    name: str | Path, device: str = "auto", inputs: int = 3, weights_file: str | Path | None = None
) -> Embedder:
    """Load a model folder, or a pretrained trunk whose features are the embedding.

    Args:
        name: a model folder, or the name of a trunk: `lite0`, any name of timm's.
        device: auto, cpu or cuda.
        inputs: number of channels of the images that a trunk by name is to take.
        weights_file: weights of a trunk by name, instead of its own.

    >>> model = load("lite0")
    >>> model.embed([np.zeros((40, 40, 3), dtype=np.uint8)]).shape
    (1, 1280)
    """
    on = torch.device(choose_device(device))
    folder = Path(name)
    if folder.is_dir():
        if weights_file:
            raise BadInput(
                f"--weights {weights_file}: {folder} is a model folder, which has its own weights;"
                " leave out --weights"
            )
        if not (folder / CARD).exists():
            raise BadInput(
                f"{folder} is not a model folder (no {CARD} in it); `assay train --out {folder}`"
                " makes one"
            )
        model, card = read_model_folder(folder)
        return Embedder(model.to(on), card, on, folder)
    try:
        kind = find(str(name))
    except UnknownName as error:
        raise BadInput(f"{name} is neither a model folder nor a trunk: {error}") from None
    found = (
        weights.add_file(str(name), Path(weights_file))
        if weights_file
        else weights.resolve_weights(str(name), "pretrained")
    )
    if found is None:
        raise BadInput(
            f"the trunk {name!r} has no pretrained weights to embed with; train a model first, or"
            " use lite0"
        )
    model = untrained_model(Architecture(str(name), inputs, kind.side or 0, 0), found.digest)
    return Embedder(
        model.to(on),
        {"trunk": str(name), "pretrained_on": found.pretrained_on, "weights": found.digest},
        on,
    )
