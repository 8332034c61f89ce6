"""The check of a graph against torch. Shapes: N samples, D dims."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from assay.data.dataset import Vectors
from assay.data.given import GivenSamples, find_samples
from assay.embedder import Embedder
from assay.embedding import normalise_for
from assay.errors import BadInput, in_one_line
from assay.index.encoder import print_of
from assay.index.export.record import GRAPH, Agreement, Preprocessing
from assay.index.export.runtime import AT_ONCE, OnnxEmbedder, centre, open_session
from assay.index.samples import FILES_OF_VECTORS, find_vectors
from assay.model import Model
from assay.neighbours import nearest
from assay.progress import Progress, silent
from assay.protocols import FirstStep, Similarity

BATCHES = (1, 2, 7, AT_ONCE)
"""How many samples are computed at a time in the check, each way: a size that the graph was given
by mistake is found.
"""

FEW = 14
"""Samples of the small batches of the check."""

MOST_SAMPLES = 64
"""Samples of the check."""

TOLERANCE = 1e-4
"""Largest difference between two numbers of unit vectors. Right exports differed by about a
hundredth of it or less.
"""

LEAST_COSINE = 0.9
"""Cosine to torch's embedding below which weights of 8 bits are refused."""

REPEATS = 5
"""Measurements of a time, of which the shortest counts."""

MADE_UP = "drawings of glyphs and noise"
NOISE = "vectors of noise"


class Comparable(nn.Module):
    """A model from pixels (N, S, S, C) of 8 bits, or vectors (N, inputs), to what is compared."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings (N, dim), of unit length where they are compared by cosine."""
        if x.ndim == 4:
            x = x.permute(0, 3, 1, 2).float() / 255
        return normalise_for(self.model(x), self.model.architecture.similarity)


def samples_to_check(
    embedder: Embedder, check_on: str | None, progress: Progress = silent
) -> GivenSamples:
    """Return samples to check a graph on: those that are given, or made-up ones."""
    architecture = embedder.model.architecture
    if check_on is not None and embedder.takes == "vectors" and check_on.endswith(FILES_OF_VECTORS):
        return _spread(find_vectors(Path(check_on)))
    if check_on is not None:
        return _spread(find_samples(check_on, embedder.takes, architecture.inputs, progress))
    draw = np.random.default_rng(0)
    if embedder.takes == "vectors":
        rows = draw.standard_normal((MOST_SAMPLES, architecture.inputs), dtype=np.float32)
        return replace(find_samples(rows, "vectors", architecture.inputs), called=NOISE)
    side, half = architecture.first_step.side, MOST_SAMPLES // 2
    glyphs = find_samples("glyphs", "images", 1, progress)
    drawn = _spread(glyphs, half).read(np.arange(half), FirstStep("square", side))
    noise = draw.integers(0, 256, (half, side, side, 3), dtype=np.uint8)
    pictures = [*np.repeat(np.asarray(drawn), 3, axis=3), *noise]
    return replace(find_samples(pictures, "images", architecture.inputs), called=MADE_UP)


def _spread(given: GivenSamples, most: int = MOST_SAMPLES) -> GivenSamples:
    """Return up to `most` of the samples, spread over all."""
    return given.some(np.unique(np.linspace(0, given.count - 1, most).round().astype(np.int64)))


def check(
    embedder: Embedder, about: Preprocessing, graph: bytes, samples: GivenSamples, z_ND: Vectors
) -> Agreement:
    """Return how near a graph is to torch; raise `RuntimeError` where it is not near enough.

    Args:
        embedder: the model.
        about: what the graph takes and gives.
        graph: the ONNX file.
        samples: what to embed.
        z_ND: their embeddings by torch.
    """
    runtime = _opened(embedder, about, graph)
    for many in BATCHES:
        few = samples if many == AT_ONCE else _first(samples, FEW)
        try:
            found = runtime.embed_in_batches(few, many)
        except BadInput:
            raise
        except Exception as error:  # onnxruntime's errors have no class in common
            raise RuntimeError(
                f"the graph of the trunk {about_trunk(embedder)} fails on {many} samples at a time,"
                f" so nothing was written: {reason_in(error)}"
            ) from error
        difference = largest_difference(z_ND[: few.count], found, embedder.similarity)
        if not difference <= TOLERANCE:  # NaN is not
            raise RuntimeError(
                f"the graph of the trunk {about_trunk(embedder)} gives other embeddings than torch"
                f" on {samples.called}, {many} at a time: they differ by {difference:.2g}, more"
                f" than {TOLERANCE:g}, so nothing was written; use its model folder with torch"
            )
    return agreement(embedder, runtime, samples, z_ND, found)


def check_int8(
    embedder: Embedder, about: Preprocessing, graph: bytes, samples: GivenSamples, z_ND: Vectors
) -> Agreement:
    """Return how near a graph of 8 bits is to torch; raise `RuntimeError` where it is of no use."""
    runtime = _opened(embedder, about, graph)
    found = agreement(embedder, runtime, samples, z_ND, runtime.embed_given(samples))
    if not found.least_cosine >= LEAST_COSINE:
        raise RuntimeError(
            f"with weights of 8 bits the trunk {about_trunk(embedder)} gives embeddings with a"
            f" cosine down to {found.least_cosine:.3f} to those of torch on {samples.called}, below"
            f" {LEAST_COSINE}, so nothing was written; leave out --quantise"
        )
    return found


def about_trunk(embedder: Embedder) -> str:
    """Return the name of the trunk, as it stands in messages."""
    return repr(embedder.model.architecture.trunk)


def _opened(embedder: Embedder, about: Preprocessing, graph: bytes) -> OnnxEmbedder:
    return OnnxEmbedder(open_session(graph, GRAPH), about, embedder.called, print_of(embedder))


def _first(samples: GivenSamples, count: int) -> GivenSamples:
    return replace(samples, count=min(count, samples.count))


def largest_difference(z_ND: Vectors, other_ND: Vectors, similarity: Similarity) -> float:
    """Return the largest difference of two numbers, in units of the mean length of a row."""
    if z_ND.shape != other_ND.shape:
        return float("inf")
    length = 1.0 if similarity == "cosine" else float(np.linalg.norm(z_ND, axis=1).mean())
    return float(np.abs(z_ND - other_ND).max() / (length or 1.0))


def agreement(
    embedder: Embedder,
    runtime: OnnxEmbedder,
    samples: GivenSamples,
    z_ND: Vectors,
    other_ND: Vectors,
) -> Agreement:
    """Return how near embeddings of onnxruntime are to those of torch, and how fast they come."""
    z, other = torch.from_numpy(z_ND), torch.from_numpy(other_ND)
    cosine = torch.cosine_similarity(z, other, dim=1).clamp(max=1)
    same = 1.0
    if samples.count > 1:
        itself = np.arange(samples.count)
        first, second = (
            nearest(one, z_ND, 1, itself, similarity=embedder.similarity)[:, 0]
            for one in (z_ND, other_ND)
        )
        same = float((first == second).float().mean())
    return Agreement(
        difference=largest_difference(z_ND, other_ND, embedder.similarity),
        least_cosine=float(cosine.min()),
        mean_cosine=float(cosine.mean()),
        same_nearest=same,
        speed=_speed(embedder, runtime, samples),
    )


def _speed(embedder: Embedder, runtime: OnnxEmbedder, samples: GivenSamples) -> float:
    """Return how many times as fast as torch onnxruntime embeds a sample, by one thread each."""
    x = centre(samples.read(np.arange(1), runtime.about.first_step), runtime.about.crop)
    network, tensor = Comparable(embedder.model).eval(), torch.from_numpy(np.array(x))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            torch_time = _shortest(lambda: network(tensor))
    finally:
        torch.set_num_threads(threads)
    return torch_time / _shortest(lambda: runtime.compute(x))


def _shortest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def reason_in(error: BaseException) -> str:
    """Return on one line what the exporter says, from the error that it began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = in_one_line(error)
    return said if len(said) < 400 else f"{said[:400]}..."
