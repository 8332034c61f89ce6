"""The error for what the user can fix, of which the command line prints the message before it exits
with 2, and the reasons of other errors in words.
"""

import errno
import os
import traceback
from pathlib import Path


class BadInput(ValueError):
    r"""A value, file or option that Assay cannot use; the message names it and the remedy.

    What is not UTF-8 in it, such as the name of a file, is escaped, so that it can be printed.

    >>> print(BadInput("there is no a\ud800"))
    there is no a\ud800
    """

    def __init__(self, message: str) -> None:
        super().__init__(str(message).encode("utf-8", "backslashreplace").decode())


def check_utf8(path: Path | str) -> None:
    """Raise `BadInput` for a path that is not UTF-8: records and files of weights could not name
    it.

    >>> check_utf8("birds")
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"the name {str(path)!a} is not UTF-8; rename that file or folder") from None


def reason_of(error: Exception) -> str:
    """Return on one line why something failed; of an `OSError` without its number and its path.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.npz"))
    'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(words.split()) or type(error).__name__


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of an `OSError` that say that no more can be written: a full disk, a quota, or a limit on
the size of a file.
"""


def remedy_of_full(error: OSError) -> str:
    """Return what to do where no more can be written."""
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of a file (ulimit -f)"
    return "make room there"


ABOUT_THE_FILE = (
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EINVAL, errno.EOVERFLOW, errno.ENXIO,
)  # fmt: skip
"""Numbers of an `OSError` that say what a file is; all others say what the machine could not do."""


def failed_here(error: BaseException) -> BaseException | None:
    """Return the failure of the machine that led to an error: memory, open files, a disk, a right
    that is missing. Return None where a file or a value is the cause.

    >>> failed_here(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    >>> failed_here(OSError(errno.EMFILE, "Too many open files"))
    OSError(24, 'Too many open files')
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | SystemError):
            return cause
        if isinstance(cause, OSError) and cause.errno not in ABOUT_THE_FILE:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def in_one_line(error: BaseException, otherwise: str = "") -> str:
    """Return the kind and the text of an exception, and the line of code that is to be fixed.

    It is the innermost line of the user's own code; else of another package; else the place that
    is given, or the innermost line of all.
    """
    words = traceback.format_exception_only(error)[-1]  # also where str(error) raises
    said = " ".join(words.split()).removesuffix(":")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
    ]
    own = f"{Path(__file__).parent}{os.sep}"
    others = [frame for frame in frames if not frame.filename.startswith(own)]
    outside = [frame for frame in others if f"{os.sep}torch{os.sep}" not in frame.filename]
    users = [frame for frame in outside if "-packages" not in frame.filename]
    blamed = users or outside or ([] if otherwise else frames)
    place = f"{blamed[-1].filename}, line {blamed[-1].lineno}" if blamed else otherwise
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}, line {error.lineno}"
    return f"{said} ({place})" if place else said
