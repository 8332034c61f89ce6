"""From samples to embeddings, by a network."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from typing import Protocol as Interface

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.data.augment import centre
from assay.data.dataset import Labels, Samples
from assay.devices import torch_threads
from assay.model import Architecture
from assay.progress import Progress
from assay.protocols import FirstStep, Similarity

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
    """Return outputs (N, dim) of a network as they are compared: for the cosine as unit vectors.

    For Hamming distance they stay numbers; the search takes their bits.
    """
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
    network: nn.Module,
    architecture: Architecture,
    read: Read,
    rows: Labels,
    device: torch.device,
    progress: Progress,
) -> Tensor:
    """Return the features of these samples by the trunk of an architecture, before any head."""

    def some(numbers: Labels, step: FirstStep) -> Samples:
        return read(rows[numbers], step)

    stage = f"features of {architecture.trunk}"
    return read_and_embed(
        network.to(device), some, len(rows), architecture, device, progress, stage
    )
