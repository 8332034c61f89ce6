"""Progress of slow work, as a callback: `progress(stage, done, total)`."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage of the work in words, how much of the stage is done, and how much of it
there is.
"""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing: the progress that callers get who ask for none."""
