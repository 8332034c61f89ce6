"""From samples to embeddings, and the PCA that reduces the features of an untrained trunk. Shapes:
N samples, F features.
"""

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
from assay.devices import choose_device, torch_threads
from assay.errors import BadInput
from assay.hashing import derive
from assay.model import CARD, Architecture, Model, read_model_folder, untrained_model
from assay.progress import Progress, silent
from assay.protocols import FirstStep, ResolvedProtocol, SampleKind, Similarity
from assay.registry import UnknownName
from assay.trunks import find, weights

SMALL, BATCH, LARGE_BATCH = 64, 256, 32
"""Up to this side images go through the network by `BATCH`, larger ones by `LARGE_BATCH`."""

Read = Callable[[Labels, FirstStep], Samples]
"""Reads samples by their numbers."""


class Sliceable(Interface):
    """Samples by slices, such as those of a view."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Samples: ...


def batch_of(size: int) -> int:
    """Images that go through a network at once."""
    return BATCH if size <= SMALL else LARGE_BATCH


def embed_samples(
    network: nn.Module,
    x: Sliceable,
    size: int,
    device: torch.device,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Return the embeddings (N, dim) of the samples as they are compared, on the CPU; the network
    is left in evaluation mode.
    """
    return as_compared(outputs(network, x, size, device), similarity)


def as_compared(z_ND: Tensor, similarity: Similarity) -> Tensor:
    """Return outputs of a network as they are compared: unit vectors for the cosine, as they are
    for Euclidean distance.
    """
    return F.normalize(z_ND, dim=1) if similarity == "cosine" else z_ND


@torch.no_grad()
def outputs(network: nn.Module, x: Sliceable, size: int, device: torch.device) -> Tensor:
    """What the network says to the centres of the samples, in batches, on the CPU."""
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
    """Compute the network's outputs for `count` samples; read, decode and compute in parallel.

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
    """Compute the features of these samples by the trunk of a protocol, before any head.

    Random weights are drawn from the protocol's seed.
    """
    architecture = Architecture.whole(protocol, inputs, dim=0)
    torch.manual_seed(derive(protocol.seed, "model"))
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
        card: what it is and comes from.
        device: where it computes.
        folder: the model folder that it was loaded from; None: it is a pretrained trunk.
    """

    model: Model
    card: dict[str, Any]
    device: torch.device
    folder: Path | None = None

    @property
    def similarity(self) -> Similarity:
        """How its embeddings are compared: unit vectors by the cosine, others by Euclidean
        distance.
        """
        return self.model.architecture.similarity

    def embed(self, samples: Sequence[str | Path | Pixels] | Vectors) -> Vectors:
        """Return embeddings (N, dim) of image files, of pixels (height, width, 3), or of rows of
        features (N, width).

        They are unit vectors where `similarity` is cosine.
        """
        if find(self.model.architecture.trunk).takes == "vectors":
            return np.asarray(
                embed_samples(
                    self.model, self._vectors(samples), 0, self.device, self.similarity
                ).numpy()
            )
        channels = self.model.architecture.inputs
        return self.embed_read(
            lambda rows, step: read_images([samples[row] for row in rows], step, channels),
            len(samples),
        )

    def _vectors(self, samples: Any) -> Vectors:
        """The samples as rows of the width that the model takes."""
        width = self.model.architecture.inputs
        try:
            x: Vectors = np.asarray(samples, dtype=np.float32)
        except (ValueError, TypeError):
            x = np.empty(0, dtype=np.float32)
        if x.ndim != 2 or len(x) == 0 or x.shape[1] != width:
            raise BadInput(
                f"this model takes rows of {width} numbers, at least one; got {_shape(samples)}"
            )
        return x

    def embed_read(self, read: Read, count: int, progress: Progress = silent) -> Vectors:
        """Return embeddings (N, dim) of `count` samples that `read` gives, as they are compared."""
        if not count:
            raise BadInput("there is nothing to embed: no samples were given")
        z = read_and_embed(self.model, read, count, self.model.architecture, self.device, progress)
        return np.asarray(as_compared(z, self.similarity).numpy())


def check_kind(called: str, takes: SampleKind, inputs: int, given: SampleKind, found: int) -> None:
    """Raise `BadInput` where a model takes other samples than are given, or of another number of
    channels or numbers.
    """
    wide = {"vectors": "numbers", "images": "channels"}
    if (takes, inputs) != (given, found):
        raise BadInput(
            f"the model of {called} takes {takes} of {inputs} {wide[takes]}, "
            f"the data are {given} of {found} {wide[given]}; give --data of its kind"
        )


def _shape(samples: Any) -> str:
    return (
        f"shape {samples.shape}"
        if isinstance(samples, np.ndarray)
        else f"{type(samples).__name__} of {len(samples)}"
    )


def load(
    name: str | Path, device: str = "auto", inputs: int = 3, weights_file: str | Path | None = None
) -> Embedder:
    """A model folder, or a pretrained trunk by its name (`lite0`, any of timm's), whose features
    are the embedding.

    `inputs` is the number of channels that a trunk by name is to take, `weights_file` its weights
    where not its own.
    """
    on = torch.device(choose_device(device))
    folder = Path(name)
    if folder.is_dir():
        if weights_file:
            raise BadInput(
                f"--weights {weights_file}: {folder} is a model folder and has its own; leave"
                " it out"
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


def fit_pca(features_NF: Tensor, width: int) -> nn.Linear:
    """A linear layer that centres and projects onto the `width` directions of largest variance.

    Signs are fixed (the largest entry of a direction is positive), so that the same features give
    the same layer.
    """
    exact_NF = features_NF.double()
    mean_F = exact_NF.mean(0)
    directions_FF = torch.linalg.eigh(
        torch.cov(exact_NF.T, correction=0).reshape(len(mean_F), -1)
    ).eigenvectors
    chosen_WF = directions_FF.flip(1)[:, :width].T
    largest_W1 = chosen_WF.gather(1, chosen_WF.abs().argmax(1, keepdim=True))
    chosen_WF = chosen_WF * largest_W1.sign()
    layer = nn.Linear(len(mean_F), len(chosen_WF))
    with torch.no_grad():
        layer.weight.copy_(chosen_WF)
        layer.bias.copy_(-(chosen_WF @ mean_F))
    return layer
