"""What embeds images and queries for an index, whichever library computes it.

Torch is imported inside the functions that need it: a search by onnxruntime starts without.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from assay.data.dataset import Vectors
from assay.data.given import GivenSamples
from assay.errors import BadInput
from assay.hashing import digest_bytes
from assay.index.manifest import DamagedIndex, Manifest
from assay.progress import Progress, silent
from assay.protocols import SampleKind, Similarity

if TYPE_CHECKING:
    from assay.embedder import Embedder

Runtime = Literal["torch", "onnx"]
"""The library that computes embeddings."""

AS_GIVEN = "as_is"
"""Name of the model that takes vectors as they are."""


class Encoder(Protocol):
    """Turns samples into embeddings; `assay.embedder.Embedder` is one."""

    @property
    def called(self) -> str:
        """Name of the model in messages."""

    @property
    def similarity(self) -> Similarity:
        """How its embeddings are compared."""

    @property
    def takes(self) -> SampleKind:
        """Kind of samples that it takes: images or vectors."""

    @property
    def inputs(self) -> int:
        """Channels of the images, or width of the vectors, that it takes."""

    @property
    def dim(self) -> int:
        """Numbers of an embedding."""

    def embed_given(self, given: GivenSamples, progress: Progress = silent) -> Vectors:
        """Return embeddings (N, dim) of samples, of unit length where they are compared by cosine.

        Raise `BadInput` where the samples are not of the kind and width that it takes.
        """


def as_given(width: int, similarity: Similarity = "cosine") -> "Embedder":
    """Return the model that takes vectors of a width as they are."""
    import torch

    from assay.embedder import Embedder
    from assay.model import Architecture, Model

    architecture = Architecture("identity", width, 0, 0, similarity=similarity)
    return Embedder(Model(architecture).eval(), {"trunk": AS_GIVEN}, torch.device("cpu"))


def loaded_model(
    model: "str | Path | Embedder", inputs: int, device: str, weights_file: str | None = None
) -> "Embedder":
    """Return a model by its folder or name, for images of so many channels, or vectors of such a
    width.
    """
    from assay.embedder import Embedder, load

    if isinstance(model, Embedder):
        return model
    return as_given(inputs) if str(model) == AS_GIVEN else load(model, device, inputs, weights_file)


def print_of(embedder: "Embedder") -> str:
    """Return the SHA-256 of a model's weights and architecture, which its model folder has too."""
    from assay.model import pack_model

    if embedder.folder is not None:
        return str(embedder.card["sha256"])
    return digest_bytes(pack_model(embedder.model.architecture, embedder.model.state()))


def check_model(root: Path, manifest: Manifest, embedder: "Embedder") -> None:
    """Raise `BadInput` where a model is not the one that embedded the images of an index."""
    known = manifest.model
    if print_of(embedder) != known.print:
        raise BadInput(
            f"{root} was embedded by another model ({known.name}, {known.print[:12]}) than"
            f" {embedder.called} ({print_of(embedder)[:12]}), and vectors of two models cannot be"
            f" compared; give that model, or embed all images again: assay index {embedder.called}"
            f" IMAGES --out {root} --rebuild"
        )


def load_encoder(folder: Path, runtime: Runtime, device: str) -> Encoder:
    """Load the model of an index from its folder; raise `BadInput` for an unknown runtime."""
    if runtime == "torch":
        from assay.embedder import load

        model = load(folder, device)
        if model.card["sha256"] != folder.name:
            raise DamagedIndex(
                f"{folder} holds another model than the one that embedded the images"
            )
        return model
    if runtime != "onnx":
        raise BadInput(f"--runtime {runtime}: choose torch or onnx")
    from assay.index.export import load_onnx

    found = load_onnx(folder / "onnx")
    if found.print != folder.name:
        raise BadInput(
            f"{folder / 'onnx'} is an export of another model ({found.print[:12]}, not"
            f" {folder.name[:12]}); export it again: assay export INDEX --to onnx --force"
        )
    return found
