"""The places of a study's runs in words, by which people know them."""

from collections.abc import Sequence

from assay.records.run import Run


class Places:
    """The search, the trial or reproduction, and the fold of each run, by the key of the run.

    Args:
        searches: searches of the study; a single one is not named.
    """

    def __init__(self, searches: int) -> None:
        self._searches = searches
        self._words: dict[str, str] = {}

    def trial(self, search: int, number: int) -> str:
        """Return a trial in words.

        >>> Places(1).trial(0, 3), Places(2).trial(1, 0)
        ('trial 3', 'search 1, trial 0')
        """
        return f"search {search}, trial {number}" if self._searches > 1 else f"trial {number}"

    def reproduction(self, search: int, number: int) -> str:
        """Return a reproduction in words."""
        words = f"reproduction {number}"
        return f"search {search}, {words}" if self._searches > 1 else words

    def add(self, words: str, runs: Sequence[Run]) -> None:
        """Add the runs of a trial or a reproduction that is called so."""
        for run in runs:
            self._words[run.key] = words if run.fold is None else f"{words}, fold {run.fold}"

    def of(self, run: Run) -> str:
        """Return the place of a run that was added."""
        return self._words[run.key]
