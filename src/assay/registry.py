"""Named parts: a decorator fills the registry, a duplicate raises, a miss suggests the nearest
name.
"""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.errors import BadInput

T = TypeVar("T")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    year: int
    url: str
    equation: str = ""


class UnknownName(BadInput, KeyError):
    """A name that no part has; says which one is nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


_registries: list["Registry[Any]"] = []


@contextmanager
def replacing(module: str) -> Iterator[None]:
    """What `module` adds inside takes the place of what it added before; on an error nothing of it
    stays.
    """
    _forget(module)
    try:
        yield
    except BaseException:
        _forget(module)
        raise


def _forget(module: str) -> None:
    for registry in _registries:
        registry.forget(module)


def _adding_module() -> str:
    """Name of the module that is adding a part: the first on the stack that is no
    registry's own.
    """
    frame = sys._getframe()
    while (
        frame.f_globals["__name__"] in (__name__, "assay.losses.loss", "assay.metrics.metric")
        and frame.f_back is not None
    ):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


class Registry(Mapping[str, T]):
    """Parts of one kind by name, in the order they were added.

    >>> shapes = Registry[object]("shape")
    >>> @shapes("circle")
    ... class Circle: ...
    >>> list(shapes)
    ['circle']
    >>> shapes["circel"]
    Traceback (most recent call last):
    ...
    assay.registry.UnknownName: no shape is called 'circel'; did you mean 'circle'? (all: circle)
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        _registries.append(self)

    def __call__(self, name: str) -> Callable[[Part], Part]:
        """Decorator that adds what it decorates under `name`."""

        def add(part: Part) -> Part:
            self.set(name, part)  # type: ignore[arg-type]
            return part

        return add

    def set(self, name: str, part: T) -> None:
        """Add `part` under `name`, which must be free."""
        if name in self._parts:
            raise ValueError(
                f"a {self.kind} called {name!r} is registered already; choose another name"
            )
        self._parts[name] = part
        self._origins[name] = _adding_module()

    def origin(self, name: str) -> str:
        """The module that added the part called `name`."""
        return self._origins[name]

    def forget(self, module: str) -> None:
        """Drop the parts that `module` added."""
        for name in [name for name, origin in self._origins.items() if origin == module]:
            del self._parts[name], self._origins[name]

    def __getitem__(self, name: str) -> T:
        try:
            return self._parts[name]
        except KeyError:
            raise UnknownName(self.miss(name)) from None

    def miss(self, name: str) -> str:
        """What to say of a name that no part has."""
        near = difflib.get_close_matches(name, self._parts, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"no {self.kind} is called {name!r}{hint} (all: {', '.join(sorted(self._parts))})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, in the order of their names, so that each registers its
    parts.
    """
    for module in sorted(module.name for module in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")


def first_paragraph(docstring: str | None) -> str:
    r"""Return the first paragraph of a docstring in one line, empty where there is none.

    >>> first_paragraph("Draw batches\n    of classes.\n\n    More.")
    'Draw batches of classes.'
    """
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())
