"""From `kind:path` to a data set."""

import os
from collections.abc import Callable
from pathlib import Path

from assay.data.dataset import Dataset
from assay.data.features import load_features
from assay.data.folder import load_folder
from assay.data.glyphs import load_glyphs
from assay.errors import BadInput
from assay.registry import Registry

Loader = Callable[[], Dataset] | Callable[[Path], Dataset]

datasets = Registry[Loader]("data set")
datasets.set("glyphs", load_glyphs)
datasets.set("folder:", load_folder)
datasets.set("features:", load_features)


def load(name: str) -> Dataset:
    """The data set called `name`: a plain name, or kind:path.

    >>> len(load("glyphs").class_names) > 300
    True
    """
    kind, colon, path = name.partition(":")
    loader = datasets[kind + colon]
    if not colon:
        return loader()  # type: ignore[call-arg]
    if not path:
        raise BadInput(f"{name} needs a path, for example {name}some/path")
    if not os.path.exists(path):  # noqa: PTH110 (a path too long for the file system is not there either)
        raise BadInput(f"{name}: there is no {path}")
    return loader(Path(path))  # type: ignore[call-arg]
