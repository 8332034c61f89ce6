"""From a name or `kind:path` to a data set."""

import os
from pathlib import Path

from assay.data.dataset import Dataset, Items
from assay.data.sources import datasets
from assay.errors import BadInput
from assay.files import regular
from assay.progress import Progress, silent


def load(name: str, progress: Progress = silent) -> Dataset:
    """Load the data set called `name`, a plain name or kind:path; every sample can be used.

    `BadInput` where some samples cannot be used: `inspect` loads such a data set too.

    >>> len(load("glyphs").class_names) > 300
    True
    """
    dataset = inspect(name, progress)
    check_usable(dataset.items, len(dataset), f"; `assay data show {name}` names them")
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


def inspect(name: str, progress: Progress = silent) -> Dataset:
    """Load the data set called `name` as it is, with samples that cannot be used: `items.problem`
    says which and why.
    """
    kind, colon, path = name.partition(":")
    loader = datasets[kind + colon]
    if not colon:
        return loader(progress)  # type: ignore[call-arg, arg-type]
    if not path:
        raise BadInput(f"{name} needs a path, for example {name}some/path")
    place = os.path.expanduser(path)  # noqa: PTH111 (raises nothing where ~ names no user)
    if not os.path.exists(place):  # noqa: PTH110 (False for a path too long for the file system)
        raise BadInput(f"{name}: there is no {place}")
    try:
        regular(Path(place))
    except OSError as error:
        raise BadInput(f"{name}: {place} cannot be read: {error.strerror}") from None
    return loader(Path(place), progress)  # type: ignore[call-arg, arg-type]
