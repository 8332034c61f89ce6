"""Progress of slow work, as a callback: `progress(stage, done, total)`."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage of the work in words, how much of the stage is done, and how much of it
there is.
"""

Say = Callable[[str], None]
"""Called with something that the user should know, in words."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing: the progress that callers get who ask for none."""


def say_nothing(text: str) -> None:
    """Say nothing: for callers who leave it to the result."""
