"""Settings of single methods in a protocol: mappings that cannot be changed."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

V = TypeVar("V")


class FrozenMapping(Mapping[str, V]):
    """A mapping that cannot be changed, and keeps the order in which it was written."""

    def __init__(self, values: Mapping[str, V]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> V:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


def frozen(by_method: Mapping[str, Mapping[str, V]]) -> FrozenMapping[FrozenMapping[V]]:
    """Return settings by method that cannot be changed."""
    return FrozenMapping({method: FrozenMapping(own) for method, own in by_method.items()})
