"""From a name or `kind:path` to a data set."""

import os
from pathlib import Path

from assay.data.dataset import Dataset, Items, without_broken
from assay.data.sources import datasets
from assay.errors import BadInput, reason_of
from assay.files import regular
from assay.progress import Progress, silent

SKIP = ", or pass --skip-broken"
"""What else can be done about broken samples, where the data set may be changed."""

TABLES = {".csv": "table:", ".parquet": "table:", ".pq": "table:", ".npz": "features:"}
"""Kinds of data sets by the ending of their file."""


def load(name: str, progress: Progress = silent, skip: str = SKIP) -> Dataset:
    """Load the data set called `name`, a plain name or kind:path; every sample can be used.

    `BadInput` where some samples cannot be used, with what else can be done in `skip`: `inspect`
    loads such a data set too.

    >>> len(load("glyphs").class_names) > 300
    True
    """
    dataset = inspect(name, progress)
    named = f"; `assay data show {name}` names them"
    check_usable(dataset.items, len(dataset), named, "" if dataset.official else skip)
    return dataset


def load_without_broken(name: str, progress: Progress = silent) -> Dataset:
    """Load the data set called `name` without the files that cannot be used, which its notes name.

    It is the data set that would be there had these files been removed.
    """
    return without_broken(inspect(name, progress))


def check_usable(items: Items, count: int, remedy: str = "", skip: str = SKIP) -> None:
    """Raise `BadInput` with the first problem among `count` samples, how many there are, and what
    else can be done.
    """
    problems = [problem for index in range(count) if (problem := items.problem(index))]
    if problems:
        raise BadInput(
            problems[0]
            + (f" ({len(problems):,} such samples{remedy})" if len(problems) > 1 else "")
            + skip
        )


def inspect(name: str, progress: Progress = silent) -> Dataset:
    """Load the data set called `name` as it is, with samples that cannot be used: `items.problem`
    says which and why.
    """
    kind, colon, path = name.partition(":")
    if kind + colon not in datasets:
        check_kind_of(name)
    loader = datasets[kind + colon]
    if not colon:
        return loader(progress)  # type: ignore[call-arg, arg-type]
    if not path:
        raise BadInput(f"{name} needs a path, for example {name}some/path")
    place = os.path.expanduser(path)  # noqa: PTH111 (raises nothing where ~ names no user)
    try:
        regular(Path(place))
    except FileNotFoundError:
        raise BadInput(f"{name}: there is no {place}") from None
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise BadInput(
            f"{name} cannot be read: {reason}; give the path of a file or folder that can"
        ) from None
    return loader(Path(place), progress)  # type: ignore[call-arg, arg-type]


def check_kind_of(name: str) -> None:
    """Raise `BadInput` where a file or folder of this name is there, and only its kind is missing:
    it says which kind.
    """
    if not name:
        raise BadInput("no data are named; give a name or kind:path of `assay list datasets`")
    path = Path(os.path.expanduser(name))  # noqa: PTH111 (raises nothing where ~ names no user)
    if not os.path.exists(path):  # noqa: PTH110 (False for a path too long for the file system)
        return
    kind = "folder:" if path.is_dir() else TABLES.get(path.suffix.lower())
    what = "folder" if path.is_dir() else "file"
    if kind is None:
        raise BadInput(
            f"{name} is a file of no kind of data set; give folder: with a folder of class folders,"
            " table: with a .csv or .parquet, or features: with an .npz"
        )
    raise BadInput(f"{name} is a {what}: write its kind before it, {kind}{name}")
