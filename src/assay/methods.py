"""All methods, with every part imported; from a method and its parameters to a loss and a miner."""

import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.hashing import digest, digest_file
from assay.losses import losses
from assay.losses.loss import Loss, Method, methods
from assay.miners import miners
from assay.miners.miner import Miner
from assay.protocols import Protocol
from assay.registry import replacing
from assay.samplers import samplers
from assay.space import Parameters, Space, Value
from assay.trunks import Trunk, find

__all__ = [
    "Method",
    "assemble",
    "defaults",
    "departures",
    "import_parts",
    "losses",
    "methods",
    "miners",
    "read_parameters",
    "source_of",
    "space_of",
]

DEFAULT_WEIGHTS_LR = 3e-3


@dataclass(frozen=True)
class Parts:
    """A method with its parameters filled in."""

    loss: Loss
    miner: Miner | None
    lr: float
    weights_lr: float


def space_of(method: Method, protocol: Protocol) -> Space:
    """What is searched for this method: its own space and what the protocol adds. The untrained
    baseline has none.
    """
    return Space() if method.loss is None else method.space | protocol.space


def defaults(method: Method, protocol: Protocol) -> dict[str, Value]:
    """The value of each searched parameter when nobody has chosen one: trial 0.

    >>> from assay.protocols import protocols
    >>> defaults(methods["triplet"], protocols["quick"])
    {'margin': 0.1}
    """
    space, own = space_of(method, protocol), {**signature(method.loss), **_miner_signature(method)}
    both = sorted(set(method.fixed) & set(space))
    if both:
        raise BadInput(
            f"{method.name}: the parameter {both[0]!r} is fixed by the method and searched by"
            f" {protocol.name}"
        )
    for name in method.fixed:
        _taker(method, name)
    for name, value in own.items():
        if value is NO_DEFAULT and name not in method.fixed and name not in space:
            raise BadInput(
                f"{method.name}: the parameter {name!r} has no value; give it a default, search it"
                " or fix it"
            )
    known = own | _fit_defaults(protocol)
    chosen = {}
    for name, range_ in space.items():
        _taker(method, name)
        if known[name] is NO_DEFAULT:
            raise BadInput(
                f"{method.name}: the parameter {name!r} has no default, which trial 0 needs; give"
                " it one"
            )
        if not range_.takes(known[name]):
            raise BadInput(
                f"{method.name}: the default {known[name]!r} of {name!r} cannot be searched as"
                f" {range_}"
            )
        chosen[name] = known[name]
    return chosen


def read_parameters(
    method: Method, protocol: Protocol, settings: Iterable[str]
) -> dict[str, Value]:
    """The method's parameters with `name=value` settings applied, typed by their defaults and tried
    out.

    >>> from assay.protocols import protocols
    >>> read_parameters(methods["triplet"], protocols["quick"], ["margin=0.2"])
    {'margin': 0.2}
    """
    known = {**signature(method.loss), **_miner_signature(method), **_fit_defaults(protocol)}
    chosen = defaults(method, protocol)
    for setting in settings:
        name, sign, text = (word.strip() for word in setting.partition("="))
        if not sign or name not in known or name in method.fixed:
            free = ", ".join(sorted(set(known) - set(method.fixed)))
            raise BadInput(
                f"--param {setting}: write name=value; the parameters of {method.name} are {free}"
            )
        chosen[name] = _read_value(known[name], text, setting)
    for name in _FIT:
        if not 0 < float(chosen.get(name, 1)) < math.inf:
            raise BadInput(f"--param {name}={chosen[name]}: a learning rate is a number above 0")
    try:
        assemble(method, chosen, protocol)
    except (ValueError, TypeError) as error:
        raise BadInput(f"--param {', '.join(settings)}: {error}") from None
    return chosen


def _read_value(default: Any, text: str, setting: str) -> Value:
    """The text as a value of its default's type; a number where there is no default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return (
            text
            if isinstance(default, str)
            else int(text)
            if isinstance(default, int)
            else float(text)
        )
    except (ValueError, KeyError):
        raise BadInput(
            f"--param {setting}: {text!r} is not of the kind of its default, {default!r}"
        ) from None


def departures(method: Method) -> tuple[str, ...]:
    """Where the method, with its loss and its miner, differs from its paper."""
    return (*method.departures, *(miners[method.miner].departures if method.miner else ()))


def assemble(method: Method, parameters: Parameters, protocol: Protocol) -> Parts:
    """Build loss and miner, each parameter going by its name to loss, miner or training; a clash
    raises.
    """
    assert method.loss is not None, "the baseline is not trained"
    by_taker: dict[str, dict[str, Value]] = {"loss": {}, "miner": {}, "training": {}}
    for name, value in {**method.fixed, **parameters}.items():
        by_taker[_taker(method, name)][name] = value
    fit = {**_fit_defaults(protocol), **by_taker["training"]}
    miner = miners[method.miner](**by_taker["miner"]) if method.miner else None
    if miner is not None:
        miner.normalise = method.normalise
    return Parts(method.loss(**by_taker["loss"]), miner, float(fit["lr"]), float(fit["weights_lr"]))


def source_of(method: Method, protocol: Protocol) -> str:
    """Hash of the files in which the parts of a run are written: trunk and sampler of the protocol,
    loss, miner, the method.
    """
    trunk = find(protocol.trunk)
    parts: list[object] = [trunk, samplers[protocol.sampler]]
    parts += method.loss.written_in() if method.loss else ()
    parts += [miners[method.miner]] if method.miner else []
    if methods.get(method.name) is method:
        parts.append(sys.modules[methods.origin(method.name)])
    files = [digest_file(file) for file in dict.fromkeys(_file_of(part) for part in parts)]
    return digest(
        [*files, *(method.loss.distributions() if method.loss else ()), *_libraries(trunk)]
    )


def trunk_source(name: str) -> str:
    """Hash of the file in which a trunk is written, and of the versions of the libraries that its
    network comes from.
    """
    trunk = find(name)
    return digest([digest_file(_file_of(trunk)), *_libraries(trunk)])


def _libraries(trunk: type[Trunk]) -> list[str]:
    return [f"{library} {version(library)}" for library in trunk.libraries]


def import_parts(names: Iterable[str]) -> None:
    """Import files (`mine.py`) or modules (`mine.losses`) that register methods, miners, samplers,
    trunks or data sets.
    """
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except BadInput:
            raise
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = next(
                (frame for frame in reversed(frames) if not frame.filename.startswith("<frozen")),
                frames[-1],
            )
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadInput(
                f"--import {name} failed: {reason} ({line.filename}, line {line.lineno})"
            ) from error


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"--import {path}: there is no such file")
    full, content = path.resolve(), digest_file(path)
    module_name = f"assay_import_{full.stem}_{digest(str(full))[:16]}"
    if module_name in sys.modules and _imported.get(module_name) == content:
        return
    spec = importlib.util.spec_from_file_location(module_name, full)
    assert spec is not None and spec.loader is not None
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    _imported.pop(module_name, None)
    with replacing(module_name):
        spec.loader.exec_module(module)
    _imported[module_name] = content


_imported: dict[str, str] = {}
"""Hash of each imported file by its module's name: a file that was edited since is imported anew.
"""


def _taker(method: Method, name: str) -> str:
    """Whether a parameter is the loss's, the miner's or training's."""
    takers = {"loss": signature(method.loss), "miner": _miner_signature(method), "training": _FIT}
    wanted_by = [taker for taker, names in takers.items() if name in names]
    if len(wanted_by) != 1:
        raise BadInput(
            f"{method.name}: the parameter {name!r} is taken by"
            f" {' and '.join(wanted_by) or 'nothing'}"
        )
    return wanted_by[0]


NO_DEFAULT: object = inspect.Parameter.empty
"""Stands in a signature for a parameter that has to be given."""
_FIT = ("lr", "weights_lr")


def _fit_defaults(protocol: Protocol) -> dict[str, Value]:
    """The learning rates; one that is still `auto` is no number,
    with which nothing can be trained.
    """
    lr = protocol.optimiser.lr
    return {"lr": math.nan if lr is None else lr, "weights_lr": DEFAULT_WEIGHTS_LR}


def _miner_signature(method: Method) -> dict[str, Value]:
    return signature(miners[method.miner]) if method.miner else {}


def signature(part: type | None) -> dict[str, Value]:
    """Parameters of a part's constructor, with their defaults."""
    if part is None or part.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    parameters = inspect.signature(part).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {item.name: item.default for item in parameters if item.kind in named}


def _file_of(part: Any) -> Path:
    try:
        return Path(inspect.getfile(part))
    except (TypeError, OSError):
        raise BadInput(
            f"the code of {part} is in no file; put it in one and pass that with --import"
        ) from None
