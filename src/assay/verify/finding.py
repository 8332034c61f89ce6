"""The outcome of a check."""

from dataclasses import dataclass


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
        trusted: what is taken on trust, because it could not be shown here.
    """

    what: str
    problem: str = ""
    note: str = ""
    skipped: bool = False
    incomplete: bool = False
    trusted: str = ""
