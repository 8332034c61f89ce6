"""Canonical JSON, which is one text for equal values; hashes and seeds made from it."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.files import open_file

SCALARS = (str, int, float)
"""Types whose values JSON has as they are (`bool` is an `int`)."""


def plain(value: Any) -> Any:
    """Return the value as JSON has it: dataclasses and mappings as objects, tuples as arrays.

    >>> plain({"batch": (8, 4)})
    {'batch': [8, 4]}
    """
    if value is None or isinstance(value, SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"keys of canonical JSON are strings, got {wrong[0]!r}")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical JSON: {value!r}")


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces; equal values give equal text.

    NaN and infinities raise `ValueError`.

    >>> canonical({"b": 1, "a": (1.5, None)})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def shortened(name: str, most: int = 160) -> str:
    """Return a name of at most so many letters: of a longer one the beginning, and its hash.

    File systems take 255 bytes; the default leaves room for what stands behind a name.

    >>> shortened("birds"), len(shortened("b" * 200))
    ('birds', 160)
    """
    return name if len(name) <= most else f"{name[: most - 17]}-{digest(name)[:16]}"


def pretty(value: Any) -> str:
    """Return indented JSON with sorted keys, for files that people open."""
    text = json.dumps(plain(value), sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False)
    return f"{text}\n"


def without_infinities(value: Any) -> Any:
    """Return the value with infinities and NaN as texts, which `float` reads again.

    >>> without_infinities({"mean": float("inf"), "over_queries": [0.5, None]})
    {'mean': 'inf', 'over_queries': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, 64 hex digits."""
    return digest_bytes(canonical(value).encode())


def digest_bytes(content: bytes | memoryview) -> str:
    """Return the SHA-256 of the bytes, 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hex digits."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def derive(*parts: str | int | None) -> int:
    """Return a seed of 63 bits for the purpose that `parts` name.

    >>> derive("trial", 0, 1) == derive("trial", 0, 1) != derive("trial", 1, 0)
    True
    """
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:16], 16) >> 1
