"""From `kind:path` to a data set."""

import os
from collections.abc import Callable
from pathlib import Path

from assay.data.cars import load_cars
from assay.data.cub import load_cub
from assay.data.dataset import Dataset, Items
from assay.data.features import load_features
from assay.data.folder import load_folder
from assay.data.glyphs import load_glyphs
from assay.data.inshop import load_inshop
from assay.data.landmarks import load_landmarks
from assay.data.omniglot import load_omniglot
from assay.data.sop import load_sop
from assay.data.table import load_table
from assay.errors import BadInput
from assay.registry import Registry

Loader = Callable[[], Dataset] | Callable[[Path], Dataset]

datasets = Registry[Loader]("data set")
datasets.set("glyphs", load_glyphs)
datasets.set("folder:", load_folder)
datasets.set("features:", load_features)
datasets.set("table:", load_table)
datasets.set("cub:", load_cub)
datasets.set("cars:", load_cars)
datasets.set("sop:", load_sop)
datasets.set("inshop:", load_inshop)
datasets.set("landmarks:", load_landmarks)
datasets.set("omniglot:", load_omniglot)


def load(name: str) -> Dataset:
    """The data set called `name`, a plain name or kind:path, every sample of which can be used.

    >>> len(load("glyphs").class_names) > 300
    True
    """
    dataset = inspect(name)
    check_usable(dataset.items, len(dataset.labels), f"; `assay data show {name}` names them")
    return dataset


def check_usable(items: Items, count: int, remedy: str = "") -> None:
    """Raise `BadInput` with the first problem among `count` samples, how many there are, and what
    else can be done.
    """
    problems = [problem for index in range(count) if (problem := items.problem(index))]
    if problems:
        raise BadInput(
            problems[0]
            + (f" ({len(problems):,} such samples{remedy})" if len(problems) > 1 else "")
        )


def inspect(name: str) -> Dataset:
    """The data set called `name` as it is, samples that cannot be used among the others: ask its
    items for the problems.
    """
    kind, colon, path = name.partition(":")
    loader = datasets[kind + colon]
    if not colon:
        return loader()  # type: ignore[call-arg]
    if not path:
        raise BadInput(f"{name} needs a path, for example {name}some/path")
    place = os.path.expanduser(path)  # noqa: PTH111 (which raises nothing where ~ is nobody's)
    if not os.path.exists(place):  # noqa: PTH110 (a path too long for the file system is not there either)
        raise BadInput(f"{name}: there is no {place}")
    return loader(Path(place))  # type: ignore[call-arg]
