"""From a model folder, or the name of a trunk, to an `Embedder`: a model ready for use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.data.dataset import Vectors
from assay.data.given import Given, GivenSamples, find_samples
from assay.devices import choose_device
from assay.embedding import normalise_for, read_and_embed
from assay.errors import BadInput
from assay.model import Architecture, Model, read_model_folder, size_of, untrained_model
from assay.progress import Progress, silent
from assay.protocols import SampleKind, Similarity
from assay.records.run import CARD
from assay.registry import UnknownName
from assay.trunks import find, weights


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
        """How its embeddings are compared: cosine (of unit vectors), euclidean, or hamming."""
        return self.model.architecture.similarity

    @property
    def takes(self) -> SampleKind:
        """Kind of samples that it takes: images or vectors."""
        return find(self.model.architecture.trunk).takes

    @property
    def inputs(self) -> int:
        """Channels of the images, or width of the vectors, that it takes."""
        return self.model.architecture.inputs

    @property
    def dim(self) -> int:
        """Numbers of an embedding."""
        return size_of(self.model.architecture).dim

    @property
    def called(self) -> str:
        """Name of the model in messages."""
        return str(self.folder or self.card.get("trunk") or "this architecture")

    def embed(self, samples: Given) -> Vectors:
        """Return embeddings (N, dim), unit vectors where `similarity` is cosine.

        Where it is hamming they are the network's numbers, of which the bits z > 0 are compared;
        `numpy.packbits(z > 0, axis=1)` packs them.

        Args:
            samples: the path of an image, a folder of images or of class folders, `kind:path` of
                `assay list datasets`, Pillow's image, uint8 pixels (height, width, 3) or (N,
                height, width, 3), a list of paths, images or pixels, or rows of features (N,
                width).
        """
        inputs = self.model.architecture.inputs
        return self.embed_given(find_samples(samples, self.takes, inputs))

    def check(self, given: GivenSamples) -> None:
        """Raise `BadInput` unless there are samples of the kind and width that the model takes."""
        inputs = self.model.architecture.inputs
        check_kind(self.called, self.takes, inputs, given.kind, given.inputs)
        if not given.count:
            raise BadInput("no samples were given, so there is nothing to embed")

    def embed_given(self, given: GivenSamples, progress: Progress = silent) -> Vectors:
        """Return embeddings (N, dim) of samples that were found."""
        self.check(given)
        architecture = self.model.architecture
        z = read_and_embed(self.model, given.read, given.count, architecture, self.device, progress)
        return np.asarray(normalise_for(z, self.similarity).numpy())


def check_kind(called: str, takes: SampleKind, inputs: int, given: SampleKind, found: int) -> None:
    """Raise `BadInput` unless the samples are of the kind and width that the model takes."""
    wide = {"vectors": "numbers", "images": "channels"}
    if (takes, inputs) != (given, found):
        other = "" if (takes, given) == ("vectors", "images") else f" of {found} {wide[given]}"
        raise BadInput(
            f"the model of {called} takes {takes} of {inputs} {wide[takes]}, the data are"
            f" {given}{other}; give data of the kind that the model takes"
        )


def _no_model(folder: Path) -> BadInput:
    """Return the error for a folder that is no model: of models, a store, or anything else."""
    cards = [*folder.glob(f"models/*/{CARD}"), *folder.glob(f"*/{CARD}")]
    inside = sorted(card.parent for card in cards)
    if inside:
        return BadInput(
            f"{folder} is not a model folder, but holds {len(inside)}: give one of them, such as"
            f" {inside[0]}"
        )
    if (folder / "format.json").exists():
        return BadInput(
            f"{folder} is a run store without a model so far; run its bench to its end, and give a"
            f" folder of {folder / 'models'}"
        )
    return BadInput(
        f"{folder} is not a model folder (no {CARD} in it); `assay train --out {folder}` makes one"
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
    if not name or not isinstance(name, str | Path):
        raise BadInput(
            f"the model is given as {name!r}; give a model folder, or the name of a trunk"
        )
    on = torch.device(choose_device(device))
    folder = Path(name)
    if folder.is_dir():
        if weights_file:
            raise BadInput(
                f"--weights {weights_file}: {folder} is a model folder, which has its own weights;"
                " leave out --weights"
            )
        if not (folder / CARD).exists():
            raise _no_model(folder)
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
