"""A task on its way to a process on another machine, which must do it as one on this
machine would.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.files import DRAFT, cache_folder
from assay.workers import Task
from assay.workers.process import search_path
from assay.workers.program import answer, settle_in


@dataclass(frozen=True)
class Parcel:
    """A packed task with the circumstances it is to be done in.

    Args:
        task: packed.
        host: where it was packed.
        folder: where relative paths start from.
        cache: the cache folder.
        path: where modules are looked for.
        marks: files that whoever shares this machine's disks can see.
        source: hash of the code that the task's results depend on; None: the task is not one of
            Assay's own.
    """

    task: bytes
    host: str
    folder: str
    cache: str
    path: tuple[str, ...]
    marks: tuple[str, ...]
    source: str | None

    @classmethod
    def empty(cls, marks: Sequence[Path]) -> "Parcel":
        """The circumstances of this process, for tasks to be put into."""
        return cls(
            task=b"",
            host=socket.gethostname(),
            folder=str(Path.cwd()),
            cache=str(cache_folder().absolute()),
            path=tuple(search_path()),
            marks=tuple(map(str, marks)),
            source=None,
        )

    def holding(self, task: Task) -> "Parcel":
        """The same circumstances with the task in them; raises what packing raises."""
        ours = type(task).__module__.startswith("assay.")
        return replace(
            self, task=bytes(ForkingPickler.dumps(task)), source=_own_source() if ours else None
        )


def deliver(parcel: Parcel) -> tuple[bool, Any]:
    """Do the task of the parcel in this process: whether it succeeded, and what it gave or the
    error to raise in the driver.
    """
    _settle_in()
    sys.path[:] = [*parcel.path, *(own for own in sys.path if own not in parcel.path)]
    os.environ["ASSAY_CACHE"] = parcel.cache
    if Path(parcel.folder).is_dir():
        os.chdir(parcel.folder)
    try:
        for mark in parcel.marks:
            _check_shared(mark, parcel.host)
        if parcel.source is not None:
            _check_source(parcel.source, parcel.host)
    except BadInput as error:
        return False, error
    return answer(parcel.task)


@contextmanager
def marked(folders: Sequence[Path]) -> Iterator[list[Path]]:
    """A file in each folder while inside, by which a process elsewhere can tell that it sees the
    same folder.

    They are called as drafts are, so that what a killed driver leaves behind in a store goes when
    the store is driven again.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.NamedTemporaryFile(dir=_made(folder), prefix=DRAFT))
            for folder in folders
        ]
        yield [Path(file.name) for file in files]


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be made ({error.strerror}); the nodes of a cluster need one that all"
            " can write to"
        ) from None
    return folder.absolute()


@lru_cache(maxsize=1)
def _settle_in() -> None:
    settle_in()


@lru_cache(maxsize=1)
def _own_source() -> str:
    from assay.run import own_source  # torch comes with it, which others' tasks may do without

    return own_source()


@lru_cache
def _check_shared(mark: str, host: str) -> None:
    """Raise `BadInput` where this machine does not see what the driver's machine does; asked once
    in a process.
    """
    if not Path(mark).exists():
        raise BadInput(
            f"{socket.gethostname()} does not see the folder {Path(mark).parent} of {host}, which"
            " drives the bench: give --out and set ASSAY_CACHE to folders on a disk that all nodes"
            " share under the same path (docs/cluster.md)"
        )


@lru_cache
def _check_source(source: str, host: str) -> None:
    """Raise `BadInput` where runs of this machine would come from other code than their keys say;
    asked once in a process.
    """
    if _own_source() != source:
        raise BadInput(
            f"{socket.gethostname()} has another version of Assay than {host}, which drives the"
            " bench: install the same one on all nodes, or one on a disk that they share"
        )
