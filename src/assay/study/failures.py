"""The end of a bench in which methods failed: one line for each reason, with the methods and the
remedy.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.engines import TaskFailed
from assay.errors import BadInput, in_one_line, reason_of

NAMED = 6
"""Methods with the same reason that are named; more are counted."""


class MethodFailed(RuntimeError):
    """Methods of a bench that failed after it was announced; the others have ended."""


class MethodRefused(BadInput):
    """The same, where each of them failed on what the user can fix."""


def cause_of(error: BaseException) -> str:
    """Return why a task or a step of a study failed, in one line."""
    if isinstance(error, TaskFailed):
        return error.summary
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {reason_of(error)}"
    if isinstance(error, BadInput | OSError | RuntimeError):
        return reason_of(error)
    return in_one_line(error)


def raise_failures(
    errors: Mapping[str, BaseException], measured: Sequence[str], store: Path
) -> None:
    """Raise an error for the methods that failed, by their names; nothing where there is none.

    `measured` are the other trained methods, which have ended well. An error of the disk, or one
    that nobody foresaw, is raised as it is.
    """
    if not errors:
        return
    for error in errors.values():
        if not isinstance(error, BadInput | RuntimeError):
            raise error
    text = f"{in_words(errors)}. {_remedy(errors, measured, store)}"
    refused = all(isinstance(error, BadInput) for error in errors.values())
    failed = MethodRefused(text) if refused else MethodFailed(text)
    first = next(iter(errors.values()))
    raise failed.with_traceback(first.__traceback__) from first


def in_words(errors: Mapping[str, BaseException]) -> str:
    """Return which methods failed and why, methods with the same reason together.

    >>> in_words({"a": BadInput("no room"), "b": BadInput("no room"), "c": BadInput("no time")})
    'a and b failed: no room; c failed: no time'
    """
    alike: dict[str, list[str]] = {}
    for name, error in errors.items():
        alike.setdefault(cause_of(error).rstrip("."), []).append(name)
    return "; ".join(f"{_together(names)} failed: {reason}" for reason, names in alike.items())


def _together(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{len(names)} methods ({', '.join(names[:NAMED])}, ...)"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def raise_unless_measured(diverged: Sequence[str], measured: Sequence[str]) -> None:
    """Raise `MethodFailed` where methods were trained and all of them diverged."""
    if diverged and not measured:
        raise MethodFailed(
            f"nothing was measured: all trials of a search of {_together(diverged)} diverged."
            " Give finite losses a chance: a lower learning rate (--set optimiser.lr=...), or"
            " narrower ranges in the method's space"
        )


def _remedy(errors: Mapping[str, BaseException], measured: Sequence[str], store: Path) -> str:
    """Return what remains and what to do."""
    others = f"The report has {_together(measured)}" if measured else "No method was measured"
    trace = any(isinstance(error, TaskFailed) for error in errors.values())
    command = shlex.join(["assay", "status", str(store), "--json"])
    whole = f"; `{command}` has the traceback" if trace else ""
    return (
        f"{others}. Fix it and run the same command again: finished runs of the others are kept"
        f"{whole}"
    )
