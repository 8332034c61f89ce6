"""Paths of data: files stay inside the folder of the data set, and what is made of them goes into
the cache.
"""

from collections.abc import Sequence
from pathlib import Path

from assay.errors import BadInput
from assay.files import usable_cache


def writable_cache() -> Path:
    """Return the cache folder, ready to be written to; `BadInput` where it cannot be."""
    try:
        return usable_cache()
    except OSError as error:
        raise BadInput(str(error)) from None


def check_inside(root: Path, paths: Sequence[Path]) -> None:
    """Raise `BadInput`, naming the link, where one of the files below `root` really lies outside
    of it.

    Folders are resolved once each, and no file is opened. A file that is not there is no link.
    """
    home = root.resolve()
    for folder in sorted({path.parent for path in paths}):
        if not _target(folder).is_relative_to(home):
            link = folder  # the highest folder on the way that lies outside is the one to remove
            while link.parent != link and not _target(link.parent).is_relative_to(home):
                link = link.parent
            raise _leads_out(root, link)
    for path in paths:
        if path.is_symlink() and not _target(path).is_relative_to(home):
            raise _leads_out(root, path)


def _target(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:
        raise BadInput(
            f"{path} is a link that leads round in a circle; put the file itself there"
        ) from None


def _leads_out(root: Path, link: Path) -> BadInput:
    return BadInput(
        f"{link} leads out of {root}, to {_target(link)}; put the files themselves there, or copy"
        " the folder with cp -rL"
    )
