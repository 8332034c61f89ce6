"""Settings of the command line, `field=value`: read by the type of their field, checked, and
applied to a protocol.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from assay.errors import BadInput
from assay.protocols.protocol import Batch, Protocol

CUSTOM = "+custom-"


def customise(protocol: Protocol, settings: Sequence[str]) -> Protocol:
    """The protocol with `field=value` settings applied, typed and checked; its name tells that it
    is no longer the published one.

    >>> customise(Protocol("p.v1"), ["dim=16", "batch.embedding=4x4"]).batch.embedding
    (4, 4)
    """
    changed = protocol
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign:
            raise BadInput(f"--set {setting}: write field=value, for example --set dim=32")
        changed = _set(changed, path.strip().split("."), text.strip(), setting)
    _check(changed)
    if changed.fingerprint == protocol.fingerprint:
        return protocol
    published = protocol.name.partition(CUSTOM)[0]
    return replace(changed, name=f"{published}{CUSTOM}{changed.fingerprint[:8]}")


_FIXED = ("name", "space", "departures", "about", "exceptions", "given")


def _set(value: Any, path: list[str], text: str, setting: str) -> Any:
    hints = {
        name: hint
        for name, hint in typing.get_type_hints(type(value)).items()
        if name not in _FIXED
    }
    name, *rest = path
    if name not in hints:
        raise BadInput(
            f"--set {setting}: no field {name!r}; the fields here are {', '.join(hints)}"
        )
    if name == "batch" and not rest and text == "auto":
        return replace(value, batch=Batch(embedding=None, classification=None))
    if name == "batch" and not rest and text.isdigit():
        return replace(value, batch=value.batch.of_size(int(text), setting))
    nested = dataclasses.is_dataclass(hints[name])
    if nested != bool(rest):
        inner = (
            ", ".join(f"{name}.{part}" for part in typing.get_type_hints(hints[name]))
            if nested
            else f"{name}=..."
        )
        raise BadInput(f"--set {setting}: set {inner}")
    new = (
        _set(getattr(value, name), rest, text, setting)
        if rest
        else _read(hints[name], text, setting)
    )
    return replace(value, **{name: new})


def _read(hint: Any, text: str, setting: str) -> Any:
    """The text as a value of the annotated type."""
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if optional and text == "auto":
        return None
    if optional:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is Literal and text not in typing.get_args(hint):
        raise BadInput(f"--set {setting}: {text!r} is none of {', '.join(typing.get_args(hint))}")
    try:
        return _convert(hint, text)
    except (ValueError, KeyError):
        example = (
            "8x4"
            if typing.get_origin(hint) is tuple
            else "true or false"
            if hint is bool
            else f"a {hint.__name__}"
        )
        raise BadInput(
            f"--set {setting}: {text!r} is not {example}{', or auto' if optional else ''}"
        ) from None


def _convert(hint: Any, text: str) -> Any:
    if typing.get_origin(hint) is Literal:
        return text
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if typing.get_origin(hint) is tuple:
        inner, parts = typing.get_args(hint), text.replace("x", ",").split(",")
        return tuple(kind(part) for kind, part in zip(inner, parts, strict=True))
    return {"true": True, "false": False}[text] if hint is bool else hint(text)


LARGEST_DIFFERENCE = 0.2
"""Above 20 points hardly any two methods would count as different: 1 was meant as one point, which
is 0.01.
"""

_AT_LEAST = {
    "dim": 1, "folds": 2, "iterations": 1, "shortest_epoch": 1, "epochs": 1, "validate_every": 1, "patience": 1, "trials": 0,
    "startup": 0, "reproductions": 1, "threads": 1, "size": 1, "stored": 1, "searches": 1, "trial_folds": 1,
}  # fmt: skip


def _check(protocol: Protocol) -> None:
    for name, least in _AT_LEAST.items():
        value = getattr(protocol, name)
        if value is not None and value < least:
            raise BadInput(f"--set {name}={value}: {name} is at least {least}")
    for kind, shape in vars(protocol.batch).items():
        if shape is not None and min(shape) < 1:
            raise BadInput(f"--set batch.{kind}={shape[0]}x{shape[1]}: a batch holds at least 1x1")
    optimiser, augment = protocol.optimiser, protocol.augment
    _check_between("optimiser.lr", optimiser.lr, 0, math.inf, open_below=True)
    _check_between("optimiser.momentum", optimiser.momentum, 0, 1)
    _check_between("optimiser.weight_decay", optimiser.weight_decay, 0, math.inf)
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
    _check_ends("augment.aspect", augment.aspect, math.inf)


def _check_between(
    name: str, value: float | None, low: float, high: float, open_below: bool = False
) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high or (open_below and value == low):
        above = f"above {low}" if open_below else f"at least {low}"
        allowed = (
            above
            if high == math.inf
            else f"{above} and at most {high}"
            if open_below
            else f"between {low} and {high}"
        )
        unit = "; 0.01 is one point of MAP@R" if name == "smallest_difference" else ""
        raise BadInput(f"--set {name}={value}: {name} is a number {allowed}{unit}")


def _check_ends(name: str, ends: tuple[float, float] | None, high: float) -> None:
    if ends is not None and not (0 < ends[0] <= ends[1] <= high and math.isfinite(ends[1])):
        bound = "" if high == math.inf else f" <= {high}"
        raise BadInput(
            f"--set {name}={ends[0]},{ends[1]}: write low,high with 0 < low <= high{bound}"
        )
