"""Parts by name: a decorator registers a part, a duplicate raises, a miss suggests a name."""

import difflib
import importlib
import pkgutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.errors import BadInput

_T = TypeVar("_T")
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Paper:
    """The paper of a method."""

    title: str
    year: int
    url: str
    equation: str = ""


class UnknownName(BadInput, KeyError):
    """A name that no part has; the message suggests the nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


_registries: list["Registry[Any]"] = []


@contextmanager
def replacing(module: str) -> Iterator[None]:
    """Replace the parts that `module` added before by those that it adds inside.

    After an error none of its parts is registered.
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
    """Return the name of the module that adds a part: the first on the stack without a registry."""
    frame = sys._getframe()
    while (
        frame.f_globals["__name__"] in (__name__, "assay.losses.loss", "assay.metrics.metric")
        and frame.f_back is not None
    ):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


class Registry(Mapping[str, _T]):
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
        self._parts: dict[str, _T] = {}
        self._origins: dict[str, str] = {}
        _registries.append(self)

    def __call__(self, name: str) -> Callable[[_Part], _Part]:
        """Return a decorator that registers a part under `name`."""

        def add(part: _Part) -> _Part:
            self.set(name, part)  # type: ignore[arg-type]
            return part

        return add

    def set(self, name: str, part: _T) -> None:
        """Add `part` under `name`, which must be free."""
        if name in self._parts:
            raise ValueError(
                f"a {self.kind} called {name!r} is registered already; choose another name"
            )
        self._parts[name] = part
        self._origins[name] = _adding_module()

    def origin(self, name: str) -> str:
        """Return the module that added the part called `name`."""
        return self._origins[name]

    def forget(self, module: str) -> None:
        """Drop the parts that `module` added."""
        for name in [name for name, origin in self._origins.items() if origin == module]:
            del self._parts[name], self._origins[name]

    def __getitem__(self, name: str) -> _T:
        try:
            return self._parts[name]
        except KeyError:
            raise UnknownName(self.miss(name)) from None

    def miss(self, name: str) -> str:
        """Return the message for a name that no part has."""
        hint = did_you_mean(name, self._parts)
        return f"no {self.kind} is called {name!r}{hint} (all: {', '.join(sorted(self._parts))})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def foreign_letter(name: str) -> str | None:
    """Return in words the first letter of a name that is not ASCII; None where there is none.

    >>> foreign_letter("café")
    "'é' (LATIN SMALL LETTER E WITH ACUTE) is not ASCII and may look like another letter"
    """
    letter = next((letter for letter in name if not letter.isascii()), None)
    if letter is None:
        return None
    called = unicodedata.name(letter, "unnamed")
    return f"{letter!r} ({called}) is not ASCII and may look like another letter"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question for the end of a message: whether the nearest of the names was meant; empty
    where none is near.

    >>> did_you_mean("margn", ["margin", "scale"])
    "; did you mean 'margin'?"
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, by name in order, so that each registers its parts."""
    for module in sorted(module.name for module in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")


def first_paragraph(docstring: str | None) -> str:
    r"""Return the first paragraph of a docstring in one line, empty where there is none.

    >>> first_paragraph("Draw batches\n    of classes.\n\n    More.")
    'Draw batches of classes.'
    """
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())
