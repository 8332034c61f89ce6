"""Words of command lines in tests."""

from collections.abc import Iterable, Sequence
from typing import Any


def set_options(settings: Iterable[str]) -> list[str]:
    """Return `--set` with each setting; where a field is set again, its last value alone.

    >>> set_options(["dim=8", "folds=2", "dim=4"])
    ['--set', 'dim=4', '--set', 'folds=2']
    """
    last = {setting.partition("=")[0]: setting for setting in settings}
    return [word for setting in last.values() for word in ("--set", setting)]


def with_last_settings(words: Sequence[Any]) -> list[Any]:
    """Return the words of a command; where a field is set again, with its last value alone.

    >>> with_last_settings(["--set", "dim=8", "--json", "--set", "dim=4"])
    ['--json', '--set', 'dim=4']
    """
    values = [place for place in range(1, len(words)) if words[place - 1] == "--set"]
    others = [word for place, word in enumerate(words) if not {place, place + 1} & {*values}]
    return [*others, *set_options(str(words[place]) for place in values)]
