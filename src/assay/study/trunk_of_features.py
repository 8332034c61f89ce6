"""Trunk and head as one model of images, where a head was trained on features of a known trunk.

The file of features names the trunk (`FeaturesOrigin`). A name can be wrong, and a file can be
forged: the weights are found by their hash in the cache, and where the images are on this machine
the features of some of them are computed again. What was found is said, not written: the card names
the trunk alone, so that it is the same on every machine that has it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.data.dataset import Labels, Samples
from assay.data.images import read_images
from assay.data.origin import FeaturesOrigin
from assay.errors import BadInput
from assay.features import FrozenTrunk
from assay.model import Architecture, Model, join_trunk
from assay.progress import Say
from assay.protocols import FirstStep
from assay.records.run import ModelCard
from assay.study.design import Design

SAME = 0.01
"""How far features may lie from those of another machine, as a part of their length."""

CHECKED_IMAGES = 8
"""Images of trainval whose features are computed again where the images are on this machine."""


def with_trunk_of_features(
    design: Design, card: ModelCard, model: Model, say: Say
) -> tuple[ModelCard, Model]:
    """Return card and model with the trunk whose features the head was trained on.

    Both stay as they are where the data are images, or the trunk of the features is not known. The
    model also stays where the trunk is not in the cache or does not give these features; `say` is
    called with what was found.
    """
    origin = design.conditions.trainval.origin
    if origin is None:
        return card, model
    seen, head = design.conditions.data.pretrained_on, card
    card = name_trunk(head, origin, seen, whole=False)
    try:
        whole = join_trunk(model, origin)
        checked = _check_by_images(design, origin)
    except BadInput as error:
        say(f"the model takes features of {origin.trunk}, which is not part of it: {error}")
        return card, model
    say(f"the model has the trunk {origin.trunk}, on whose features it was trained; {checked}")
    return name_trunk(head, origin, seen, whole=True), whole


def name_trunk(
    card: ModelCard, origin: FeaturesOrigin | None, pretrained_on: str | None, *, whole: bool
) -> ModelCard:
    """Return a card that names the trunk whose features the head was trained on, if it is known.

    `whole` says whether the model has this trunk, which was `pretrained_on` these data.
    """
    if origin is None:
        return replace(card, features=None, images=None)
    named = replace(card, features=origin.made_by)
    if not whole:
        return named
    return replace(named, weights=origin.weights, pretrained_on=pretrained_on, images=origin.images)


def _check_by_images(design: Design, origin: FeaturesOrigin) -> str:
    """Return whether images could be compared with the vectors, in words.

    Raise `BadInput` where the trunk gives other features of these images.
    """
    trainval, architecture = design.conditions.trainval, Architecture.of_features(origin)
    rows = np.unique(np.linspace(0, len(trainval.y) - 1, CHECKED_IMAGES).astype(int))
    root, ids = Path(origin.source), trainval.ids
    paths = [root / ids[row] for row in rows.tolist()]
    if not origin.source or not all(_is_inside(root, path) for path in paths):
        return "the file of features says so, and its images are not here to check it"

    def read(numbers: Labels, step: FirstStep) -> Samples:
        return read_images([paths[number] for number in numbers], step, origin.inputs)

    trunk = FrozenTrunk(architecture, origin.weights, design.conditions.device)
    found = trunk.as_taken(trunk.compute_read(read, np.arange(len(rows))))
    given = np.asarray(trainval.some(rows, architecture.first_step), dtype=np.float32)
    if (np.linalg.norm(found - given, axis=1) > SAME * np.linalg.norm(given, axis=1)).any():
        raise BadInput(f"it gives other features of the images in {root}, as they are now")
    return f"checked on {len(rows)} images"


def _is_inside(root: Path, path: Path) -> bool:
    """Return whether there is such a file, and it lies below the folder."""
    return path.is_file() and path.resolve().is_relative_to(root.resolve())
