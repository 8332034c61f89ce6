"""Embeddings by onnxruntime, without torch, which takes longer to start than a search.

Shapes: N samples, D dims.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.dataset import Pixels, Samples, Vectors
from assay.data.given import GivenSamples
from assay.errors import BadInput, reason_of
from assay.files import read_bytes
from assay.hashing import digest_bytes
from assay.index.export.record import EXPORT, EXPORT_AGAIN, FOLDER, GRAPH, Export, Preprocessing
from assay.progress import Progress, silent
from assay.protocols import SampleKind, Similarity

AT_ONCE = 32
"""Samples that one thread computes at a time."""

LARGEST_GRAPH = 1 << 31
"""Bytes of the largest ONNX file that is one file."""


@dataclass(frozen=True)
class OnnxEmbedder:
    """A model that onnxruntime computes, on the CPU.

    Each batch is computed by one thread, so that the result does not depend on the number of them.

    Args:
        session: onnxruntime's, of the graph.
        about: what the graph takes and gives.
        called: name of the model in messages.
        print: SHA-256 of the weights and the architecture of the model that was exported.
    """

    session: Any
    about: Preprocessing
    called: str
    print: str

    @property
    def similarity(self) -> Similarity:
        """How its embeddings are compared."""
        return self.about.similarity

    @property
    def takes(self) -> SampleKind:
        """Kind of samples that it takes: images or vectors."""
        return self.about.takes

    @property
    def inputs(self) -> int:
        """Channels of the images, or width of the vectors, that it takes."""
        return self.about.inputs

    @property
    def dim(self) -> int:
        """Numbers of an embedding."""
        return self.about.dim

    def embed_given(self, given: GivenSamples, progress: Progress = silent) -> Vectors:
        """Return embeddings (N, dim) of samples that were found."""
        if (self.takes, self.inputs) != (given.kind, given.inputs):
            from assay.embedder import check_kind  # takes torch, which a search does without

            check_kind(self.called, self.takes, self.inputs, given.kind, given.inputs)
        if not given.count:
            raise BadInput("no samples were given, so there is nothing to embed")
        return self.embed_in_batches(given, AT_ONCE, progress)

    def embed_in_batches(
        self, given: GivenSamples, many: int, progress: Progress = silent
    ) -> Vectors:
        """Return embeddings (N, dim) of samples, of which `many` are computed at a time."""

        def one(start: int) -> Vectors:
            rows = np.arange(start, min(start + many, given.count))
            return self.compute(centre(given.read(rows, self.about.first_step), self.about.crop))

        if given.count <= many:
            return one(0)
        parts = []
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for part in pool.map(one, range(0, given.count, many)):
                parts.append(part)
                progress("embedding", min(len(parts) * many, given.count), given.count)
        return np.concatenate(parts)

    def compute(self, x: Vectors | Pixels) -> Vectors:
        """Return embeddings (N, dim) of pixels (N, crop, crop, inputs) or of vectors, at once."""
        (z,) = self.session.run([self.about.output_name], {self.about.input_name: x})
        return np.asarray(z, dtype=np.float32)


def centre(x: Samples, size: int) -> Vectors | Pixels:
    """Cut out the central square of each image, as `assay.data.augment.centre` does for torch."""
    if isinstance(x, np.ndarray) and (x.ndim == 2 or x.shape[1:3] == (size, size)):
        return x
    shapes = np.array([image.shape[:2] for image in x], dtype=np.int64)
    corners = np.rint((shapes - size) / 2).astype(np.int64).tolist()
    return np.stack(
        [
            image[top : top + size, left : left + size]
            for image, (top, left) in zip(x, corners, strict=True)
        ]
    )


def load_onnx(folder: Path) -> OnnxEmbedder:
    """Load the model of an export; raise `BadInput` where there is none, or it was altered."""
    if not (folder / EXPORT).is_file():
        root = folder.parents[2] if folder.name == FOLDER and len(folder.parents) > 2 else "MODEL"
        raise BadInput(
            f"{folder} holds no export (no {EXPORT}); make it: assay export {root} --to onnx"
        )
    export = Export.read_from(folder)
    about = Preprocessing.read_from(folder)
    contents = {}
    for name in (GRAPH, Preprocessing.file):
        try:
            contents[name] = read_bytes(folder / name, LARGEST_GRAPH)
        except OSError as error:
            raise BadInput(
                f"{folder / name} cannot be read: {reason_of(error)}{EXPORT_AGAIN}"
            ) from None
        known = export.files.get(name)
        if known is None or digest_bytes(contents[name]) != known.sha256:
            raise BadInput(
                f"{folder / name} is not the file that {EXPORT} was written with: one of the two"
                f" was altered{EXPORT_AGAIN}"
            )
    return OnnxEmbedder(
        open_session(contents[GRAPH], folder / GRAPH), about, str(folder), export.print
    )


def open_session(graph: bytes, called: Path | str) -> Any:
    """Return onnxruntime's session of a graph, which computes with one thread on the CPU."""
    try:
        import onnxruntime
    except ImportError:
        raise BadInput(
            "computing with an ONNX file needs onnxruntime: pip install 'assay-dml[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; they need not be printed too
    # weights of 8 bits become float32 when the file is opened, not again for each image
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        raise BadInput(
            f"{called} cannot be used by onnxruntime {onnxruntime.__version__}"
            f" ({reason_of(error)}); update onnxruntime, or export the model again"
        ) from None
