"""Records as JSON: frozen dataclasses, written and read by the types of their fields.

The names in the JSON are the names of the fields. A field of a `Record` that has a default is left
out at that value; every other field is always written. Reading is strict: a field that is missing,
unknown or of another type is refused with the name of the file and the field. Infinities and NaN,
which JSON does not have, are written by their names.
"""

import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from assay.errors import BadInput, reason_of
from assay.files import read_json
from assay.hashing import SCALARS, plain
from assay.protocols import ResolvedProtocol
from assay.space import Space, read_space

FORMAT = 4
"""Number of the format of every document of a store. Another number is refused."""

_READERS: Mapping[type, Callable[[Any], Any]] = {
    ResolvedProtocol: ResolvedProtocol.from_json,
    Space: read_space,
}
"""Types that have a JSON form of their own."""

LISTS = " (`assay verify` lists what else is wrong)"
"""A hint at the end of a remedy, which `assay verify` itself leaves out."""

RESTORE = f"; restore the file from a copy{LISTS}"
"""The remedy at the end of a message about a file that is missing or cannot be read."""

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class BadRecord(BadInput):
    """A document of a store that cannot be read; the message names the file and the field."""


class Record:
    """A frozen dataclass that a store keeps as a JSON object."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return _encode_fields(self, leave_out_defaults=True)

    @classmethod
    def from_json(cls, document: object, where: str) -> Self:
        """Return the record that a JSON document holds.

        Raises `BadRecord`, which begins with `where`: the file, and the line of it.
        """
        try:
            return cls._read(document, "")
        except _Mismatch as error:
            raise BadRecord(f"{where}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the record in a JSON file; raises `BadRecord`, which names the file."""
        return cls.from_json(read_document(path), str(path))

    @classmethod
    def _read(cls, document: object, path: str) -> Self:
        return cls(**_decode_fields(cls, document, path))


class Document(Record):
    """A record that begins a file, with the number of the format in it."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, the format number among them."""
        return {"format": FORMAT, **super().to_json()}

    @classmethod
    def from_json(cls, document: object, where: str) -> Self:
        """Return the record that a JSON document holds; refuse another format number."""
        if isinstance(document, Mapping):
            check_format(document.get("format"), where)
        return super().from_json(document, where)

    @classmethod
    def _read(cls, document: object, path: str) -> Self:
        if isinstance(document, Mapping):
            document = {name: value for name, value in document.items() if name != "format"}
        return super()._read(document, path)


class Tagged(Record):
    """A record that is one of several types; the JSON says which under `kind`."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, its kind among them."""
        return {"kind": self.kind, **super().to_json()}


def stored_as(
    to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]
) -> dict[str, Callable[[Any], Any]]:
    """Return the metadata of a field whose JSON is not that of its type."""
    return {"to_json": to_json, "from_json": from_json}


def check_format(found: object, where: str) -> None:
    """Raise `BadRecord` where the format number of a document is not the one this version reads."""
    if type(found) is int and found == FORMAT:
        return
    remedy = (
        "A newer version of Assay wrote it: update Assay."
        if isinstance(found, int) and found > FORMAT
        else "A development version before Assay 0.1.0 wrote it, and only that one reads it:"
        " run the bench again in another folder (--out)."
    )
    said = "no format number" if found is None else f"format {found}"
    raise BadRecord(f"{where} has {said}; this version of Assay reads format {FORMAT}. {remedy}")


def read_document(path: Path, remedy: str = RESTORE) -> Any:
    """Return the JSON document in a file; raise `BadRecord`, which names the file."""
    try:
        return read_json(path)
    except FileNotFoundError:
        raise BadRecord(f"{path} is missing{remedy}") from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {reason_of(error)}{remedy}") from None
    except ValueError:
        raise BadRecord(f"{path} cannot be read: it was altered, or is no JSON{remedy}") from None


def check_types(kind: type, document: Mapping[str, Any], where: str, remedy: str = RESTORE) -> None:
    """Raise `BadRecord` where a field of a document is not of the type that a dataclass has for it.

    Fields may be missing, and the document may have others.
    """
    hints = _hints(kind)
    try:
        for name, value in document.items():
            if name in hints:
                decode(hints[name], value, name)
    except _Mismatch as error:
        raise BadRecord(f"{where}: {error}{remedy}") from None


def differing_fields(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields in which two JSON objects differ, sorted."""
    return [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]


def encode(value: Any) -> Any:
    """Return a value of a record as JSON values."""
    if isinstance(value, SCALARS):
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, ResolvedProtocol):
        return value.to_json()
    if isinstance(value, Space):
        return encode(value.describe())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_fields(value, leave_out_defaults=False)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return plain(value)


def _encode_fields(value: Any, *, leave_out_defaults: bool) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(value):
        own = getattr(value, field.name)
        if not leave_out_defaults or not _is_default(field, own):
            found[field.name] = encode(field.metadata.get("to_json", encode)(own))
    return found


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)


class _Mismatch(Exception):
    """JSON that is not of the type of its field; says which field, and what is wrong with it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'the document'} {problem}")


def decode(kind: Any, value: Any, path: str) -> Any:
    """Return a JSON value as a value of the type `kind`; `path` names the field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, path)
    if origin is Literal:
        if value not in arguments:
            raise _Mismatch(path, f"is {value!r}, not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _decode_tuple(arguments, value, path)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_mapping(arguments, value, path)
    if kind in _READERS:
        return _by(_READERS[kind], value, path)
    if issubclass(kind, Record):
        return kind._read(value, path)
    if dataclasses.is_dataclass(kind):
        return typing.cast("Any", kind)(**_decode_fields(kind, value, path))
    return _decode_scalar(kind, value, path)


def _decode_fields(kind: Any, document: object, path: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise _Mismatch(path, f"is no JSON object but {_short(document)}")
    inside = f"{path}." if path else ""
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in document:
        if name not in known:
            raise _Mismatch(f"{inside}{name}", "is a field that this version of Assay lacks")
    for name, field in known.items():
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in document and not has_default:
            raise _Mismatch(f"{inside}{name}", "is missing")
    hints = _hints(kind)
    return {
        name: _by(known[name].metadata["from_json"], value, f"{inside}{name}")
        if "from_json" in known[name].metadata
        else decode(hints[name], value, f"{inside}{name}")
        for name, value in document.items()
    }


def _by(read: Callable[[Any], Any], value: Any, path: str) -> Any:
    """Return a value read by a type's own reader."""
    try:
        return read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _Mismatch(path, f"cannot be read ({type(error).__name__}: {error})") from None


@functools.lru_cache(maxsize=128)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode_union(members: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and types.NoneType in members:
        return None
    tagged = {
        member.kind: member
        for member in members
        if isinstance(member, type) and issubclass(member, Tagged)
    }
    if tagged:
        name = value.get("kind") if isinstance(value, Mapping) else None
        if name not in tagged:
            raise _Mismatch(f"{path}.kind", f"is {name!r}, not one of {', '.join(tagged)}")
        rest = {field: item for field, item in value.items() if field != "kind"}
        return tagged[name]._read(rest, path)
    others = [member for member in members if member is not types.NoneType]
    if len(others) == 1:
        return decode(others[0], value, path)
    if not isinstance(value, tuple(others)):
        raise _Mismatch(path, f"is {_short(value)}")
    return value


def _decode_tuple(items: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Mismatch(path, f"is no JSON array but {_short(value)}")
    if len(items) == 2 and items[1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise _Mismatch(path, f"has {len(value)} items, not {len(items)}")
    return tuple(
        decode(item, one, f"{path}[{number}]")
        for number, (item, one) in enumerate(zip(items, value, strict=True))
    )


def _decode_mapping(types_: tuple[Any, ...], value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _Mismatch(path, f"is no JSON object but {_short(value)}")
    keys, items = types_
    try:
        return {
            (_whole(key) if keys is int else key): decode(items, item, f"{path}.{key}")
            for key, item in value.items()
        }
    except ValueError as error:
        raise _Mismatch(path, f"has a key that is no whole number ({error})") from None


def _whole(key: str) -> int:
    """Return the whole number that a key is, which has one spelling only."""
    if str(int(key)) != key:
        raise ValueError(f"{key!r}, which is spelt {int(key)}")
    return int(key)


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    accepted = (int, float) if kind is float else kind
    too_large = kind is float and isinstance(value, int) and abs(value) > sys.float_info.max
    if (
        too_large
        or not isinstance(value, accepted)
        or (isinstance(value, bool) and kind is not bool)
    ):
        names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
        raise _Mismatch(path, f"is {_short(value)}, not {names[kind]}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
