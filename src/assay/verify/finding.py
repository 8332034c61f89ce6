"""The outcome of a check."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from assay.errors import BadInput, failed_here, reason_of
from assay.records.codec import LISTS
from assay.records.ledger import SealError
from assay.study.failures import cause_of

Check = Callable[[], Iterable[str]]
"""Yields what is wrong."""


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, and what is wrong with it (empty where nothing is).

    Args:
        what: was looked at.
        problem: what is wrong with it; it names the file.
        note: what could not be looked at here and why, or what a reader should know. Nothing is
            wrong with that.
        skipped: whether nothing was looked at; the note says why.
        incomplete: whether something that was announced is not there; the note says what. It is no
            problem, but nothing is shown by what is missing.
        unchecked: whether the check itself failed, by an error of Assay or of the machine; the note
            says which. It accuses nobody, and shows nothing.
        trusted: what is taken on trust, because it could not be shown here.
    """

    what: str
    problem: str = ""
    note: str = ""
    skipped: bool = False
    incomplete: bool = False
    unchecked: bool = False
    trusted: str = ""

    @property
    def holds(self) -> bool:
        """Whether the check was made and nothing is wrong."""
        return not self.problem and not self.unchecked


def guarded(what: str, check: Callable[[], Finding]) -> Finding:
    """Return what a check finds, or its error: that says nothing of the other checks."""
    try:
        return check()
    except Exception as error:
        return of_error(what, error)


def outcome(check: Check, otherwise: Finding) -> Finding:
    """Return the finding of a check: the problems that it yields, or its error; else the other."""
    problems = []
    try:
        for problem in check():
            problems.append(problem)
    except Exception as error:  # whatever fails here says nothing of the other checks
        failed = of_error(otherwise.what, error)
        if not problems:
            return failed
        problems.append(failed.problem or failed.note)
    return replace(otherwise, problem="; ".join(problems))


def of_error(what: str, error: Exception) -> Finding:
    """Return the finding of a check that ended in an error.

    It is a problem where a file is missing, damaged or says what no bench writes. Any other error
    may be one of Assay or of the machine, and accuses nobody.
    """
    if cause := failed_here(error):
        return _unchecked(what, cause)
    if isinstance(error, OSError):
        return Finding(what, f"{error.filename or 'a file'} cannot be read: {reason_of(error)}")
    if isinstance(error, BadInput | SealError):
        return Finding(what, words_of(error))
    return _unchecked(what, error)


def words_of(error: Exception) -> str:
    """Return the message of an error, without the hint at the command that is running."""
    return str(error).replace(LISTS, "")


def _unchecked(what: str, error: BaseException) -> Finding:
    return Finding(what, note=f"could not be checked: {cause_of(error)}", unchecked=True)
