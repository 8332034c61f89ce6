"""Settings of the command line, `--set field=value`: read by the type of their field, checked, and
applied to a protocol.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from assay.errors import BadInput
from assay.protocols.batch import LARGEST_BATCH, Batch
from assay.protocols.protocol import Protocol, SettingValue, as_text
from assay.space import read_number, read_whole

CUSTOM = "+custom-"

LARGEST_DIFFERENCE = 0.2
"""Above 20 points hardly any two methods would count as different: 1 was meant as one point, which
is 0.01.
"""

FIXED = ("name", "space", "departures", "about", "exceptions", "given")
"""Fields of a protocol that cannot be set."""


def customise(protocol: Protocol, settings: Sequence[str]) -> Protocol:
    """Return the protocol with `field=value` settings applied.

    Its name then ends in `+custom-` and part of its fingerprint, since it is no longer the
    published protocol. Where the settings change nothing, the protocol itself is returned.

    >>> customise(Protocol("p.v1"), ["dim=16", "batch.embedding=4x4"]).batch.embedding
    (4, 4)
    """
    changed = protocol
    for setting in settings:
        path, sign, text = (word.strip() for word in setting.partition("="))
        if not sign:
            raise BadInput(f"--set {setting}: write field=value, for example --set dim=32")
        if path == "batch" and text == "auto":
            changed = replace(changed, batch=Batch(embedding=None, classification=None))
        elif path == "batch" and text.isascii() and text.isdigit():
            images = _read(int, text, f"--set {setting}")
            changed = replace(changed, batch=changed.batch.of_size(images, setting))
        else:
            value = _read(_hint(path, f"--set {setting}"), text, f"--set {setting}")
            changed = _with_value(changed, path.split("."), value)
    return _renamed(changed, protocol)


def check_given_once(option: str, settings: Sequence[str]) -> None:
    """Raise `BadInput` where two `name=value` settings of an option are of the same name.

    >>> check_given_once("--set", ["dim=8", "folds=4", "dim=16"])
    Traceback (most recent call last):
    ...
    assay.errors.BadInput: --set dim: given twice, dim=8 and dim=16; leave out one of the two
    """
    first: dict[str, str] = {}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in first:
            raise BadInput(
                f"{option} {name}: given twice, {first[name]} and {setting}; leave out one of the"
                " two"
            )
        first[name] = setting


def with_settings(protocol: Protocol, settings: Mapping[str, SettingValue]) -> Protocol:
    """Return the protocol with values of fields changed, as `customise` does with texts.

    >>> with_settings(Protocol("p.v1"), {"optimiser.kind": "adam"}).optimiser.kind
    'adam'
    """
    changed = protocol
    for path, value in settings.items():
        label = f"{protocol.name}: {as_text(path, value)}"
        changed = _with_value(changed, path.split("."), _typed(_hint(path, label), value, label))
    return _renamed(changed, protocol)


def read_setting(setting: str) -> tuple[str, SettingValue]:
    """Return path and value of a setting that was written by `as_text`.

    >>> read_setting("optimiser.lr=1e-3")
    ('optimiser.lr', 0.001)
    """
    path, _, text = setting.partition("=")
    return path, _read(_hint(path, setting), text, setting)


def published_name(name: str) -> str:
    """Return the name of the published protocol that a customised one comes from.

    >>> published_name("quick.v2+custom-0a1b2c3d")
    'quick.v2'
    """
    return name.partition(CUSTOM)[0]


def _renamed(changed: Protocol, protocol: Protocol) -> Protocol:
    check_ranges(changed)
    if changed.fingerprint == protocol.fingerprint:
        return protocol
    name = f"{published_name(protocol.name)}{CUSTOM}{changed.fingerprint[:8]}"
    return replace(changed, name=name)


def _hint(path: str, label: str) -> Any:
    """Return the annotated type of a field, such as `dim` or `optimiser.lr`."""
    hints = typing.get_type_hints(Protocol)
    hints = {name: hint for name, hint in hints.items() if name not in FIXED}
    name, *rest = path.split(".")
    while True:
        if name not in hints:
            raise BadInput(f"{label}: no field {name!r}; the fields here are {', '.join(hints)}")
        hint = hints[name]
        nested = dataclasses.is_dataclass(hint)
        if nested != bool(rest):
            inner = f"{name}=..."
            if nested:
                inner = ", ".join(f"{name}.{part}" for part in typing.get_type_hints(hint))
            raise BadInput(f"{label}: set {inner}")
        if not nested:
            return hint
        hints, (name, *rest) = typing.get_type_hints(hint), rest


def _with_value(settings: Any, path: list[str], value: SettingValue) -> Any:
    """Return the dataclass with another value of the field at `path`."""
    name, *rest = path
    new = _with_value(getattr(settings, name), rest, value) if rest else value
    return replace(settings, **{name: new})


def _options(hint: Any) -> tuple[Any, bool]:
    """Return an annotated type without None, and whether None was allowed."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    return next(option for option in typing.get_args(hint) if option is not type(None)), True


def _read(hint: Any, text: str, label: str) -> Any:
    """Return the text as a value of the annotated type."""
    hint, optional = _options(hint)
    if optional and text == "auto":
        return None
    if typing.get_origin(hint) is Literal and text not in typing.get_args(hint):
        raise BadInput(f"{label}: {text!r} is none of {', '.join(typing.get_args(hint))}")
    try:
        return _convert(hint, text)
    except (ValueError, KeyError):
        raise _another_type(hint, optional, text, label) from None


def _convert(hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is Literal:
        return text
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        names = tuple(part.strip() for part in text.split(",") if part.strip())
        if text and not names:
            raise ValueError("only commas")
        return names
    if typing.get_origin(hint) is tuple:
        inner, parts = typing.get_args(hint), text.replace("x", ",").split(",")
        return tuple(_READ[kind](part.strip()) for kind, part in zip(inner, parts, strict=True))
    return _READ[hint](text)


_READ: dict[Any, Callable[[str], Any]] = {
    bool: {"true": True, "false": False}.__getitem__,
    int: read_whole,
    float: read_number,
    str: str,
}


def _typed(hint: Any, value: SettingValue, label: str) -> Any:
    """Return the value if it has the annotated type; a whole number where a float is wanted."""
    hint, optional = _options(hint)
    if optional and value is None:
        return None
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise BadInput(f"{label}: {value!r} is none of {', '.join(typing.get_args(hint))}")
        return value
    if typing.get_origin(hint) is tuple and isinstance(value, tuple):
        kinds = typing.get_args(hint)
        kinds = kinds[:1] * len(value) if kinds[1:] == (...,) else kinds
        if len(kinds) == len(value):
            return tuple(_typed(*pair, label) for pair in zip(kinds, value, strict=True))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise _another_type(hint, optional, value, label)
    return value


def _another_type(hint: Any, optional: bool, value: object, label: str) -> BadInput:
    kinds: dict[Any, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        tuple[int, int]: "two whole numbers such as 8x4",
        tuple[float, float]: "two finite numbers such as 0.5,1",
        tuple[str, ...]: "a list of names such as map_at_r,r_precision",
    }
    example = kinds.get(hint, f"a {getattr(hint, '__name__', hint)}")
    return BadInput(f"{label}: {value!r} is not {example}{', or auto' if optional else ''}")


# --- Ranges ---

_RANGES = {
    "dim": (1, 65_536),
    "folds": (2, 1_000),
    "iterations": (1, 10_000_000),
    "refresh": (1, 100_000),
    "shortest_epoch": (1, 10_000_000),
    "epochs": (1, 1_000_000),
    "validate_every": (1, 1_000_000),
    "patience": (1, 1_000_000),
    "trials": (0, 10_000),
    "startup": (0, 10_000),
    "reproductions": (1, 10_000),
    "threads": (1, 1_024),
    "size": (1, 8_192),
    "stored": (1, 8_192),
    "searches": (1, 10_000),
    "trial_folds": (1, 1_000),
    "seed": (-(2**63), 2**63 - 1),
}
"""Least and largest value of whole numbers. No run needs more, and with much more none would end or
fit into memory.
"""

WIDEST = 1_000.0
"""Width over height of the widest crop, and the inverse of the least share of an image's area."""

LARGEST_RATE = 1_000.0
"""Largest learning rate and weight decay: with more, weights soon leave single precision."""


def check_ranges(protocol: Protocol) -> None:
    """Raise `BadInput` where a value is out of its range."""
    for name, (least, most) in _RANGES.items():
        value = getattr(protocol, name)
        if value is not None and value < least:
            raise BadInput(f"--set {name}={value}: {name} is at least {least}")
        if value is not None and value > most:
            raise BadInput(f"--set {name}={value}: {name} is at most {most}; set it lower")
    for kind, shape in vars(protocol.batch).items():
        if shape is not None and min(shape) < 1:
            raise BadInput(f"--set batch.{kind}={shape[0]}x{shape[1]}: a batch holds at least 1x1")
        if shape is not None and math.prod(shape) > LARGEST_BATCH:
            raise BadInput(
                f"--set batch.{kind}={shape[0]}x{shape[1]}: a batch holds at most {LARGEST_BATCH}"
                " images; set it smaller"
            )
    if not protocol.metrics:
        raise BadInput(
            "--set metrics=: name at least one metric of `assay list metrics`, for example --set"
            " metrics=map_at_r"
        )
    optimiser, augment = protocol.optimiser, protocol.augment
    _check_between("optimiser.lr", optimiser.lr, 0, LARGEST_RATE, open_below=True)
    _check_between("optimiser.momentum", optimiser.momentum, 0, 1)
    _check_between("optimiser.weight_decay", optimiser.weight_decay, 0, LARGEST_RATE)
    _check_between("prune", protocol.prune, 0, 1)
    _check_between(
        "smallest_difference", protocol.smallest_difference, 0, LARGEST_DIFFERENCE, open_below=True
    )
    if protocol.trial_folds is not None and protocol.trial_folds > protocol.folds:
        raise BadInput(
            f"--set trial_folds={protocol.trial_folds}: the protocol has {protocol.folds} folds;"
            " set it to at most that"
        )
    _check_between("augment.flip", augment.flip, 0, 1)
    _check_between("augment.rotation", augment.rotation, 0, 180)
    _check_between("augment.shear", augment.shear, 0, 80)
    _check_ends("augment.area", augment.area, 1)
    _check_ends("augment.aspect", augment.aspect, WIDEST)


def _check_between(
    name: str, value: float | None, low: float, high: float, open_below: bool = False
) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high or (open_below and value == low):
        above = f"above {low}"
        allowed = f"{above} and at most {high:g}" if open_below else f"between {low} and {high:g}"
        unit = "; 0.01 is one point of MAP@R" if name == "smallest_difference" else ""
        raise BadInput(f"--set {name}={value}: {name} is a number {allowed}{unit}")


def _check_ends(name: str, ends: tuple[float, float] | None, high: float) -> None:
    if ends is not None and not 1 / WIDEST <= ends[0] <= ends[1] <= high:
        raise BadInput(
            f"--set {name}={ends[0]},{ends[1]}: write low,high with {1 / WIDEST:g} <= low <= high"
            f" <= {high:g}"
        )
