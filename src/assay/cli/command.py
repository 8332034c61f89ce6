"""A command that takes each of its options once."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption

from assay.errors import BadInput


class Command(TyperCommand):
    """A command that refuses an option with two values; typer would take the last in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words that follow the command; raise `BadInput` for a repeated option."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            one_value = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if one_value and given.count(option) > 1:
                first, second, *_ = _values(option.opts, args)
                raise BadInput(
                    f"{option.opts[0]}: given twice, {first} and {second}; leave out one of the two"
                )
        return super().parse_args(ctx, args)


def _values(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the values of an option.

    >>> _values(["--out"], ["--out", "a", "--data", "b", "--out=c"])
    ['a', 'c']
    """
    return [
        following if word in names else word.partition("=")[2]
        for word, following in zip(words, [*words[1:], ""], strict=True)
        if word.partition("=")[0] in names
    ]
