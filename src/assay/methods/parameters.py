"""From a method and its parameters to a loss and a miner."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from assay.errors import BadInput
from assay.fitters import parameters_of
from assay.heads import HeadShape
from assay.losses.loss import Loss, Method
from assay.miners import Miner, miners
from assay.protocols import Protocol, ResolvedProtocol, Supervision, as_text
from assay.protocols.settings import LARGEST_RATE, check_given_once
from assay.registry import did_you_mean
from assay.space import Parameters, Range, Space, Value, in_words, read_number, read_whole

DEFAULT_WEIGHTS_LR = 3e-3

TRAINING = ("lr", "weights_lr")
"""Parameters that neither the loss nor the miner takes, but the training."""

LISTED_MINERS: Mapping[Supervision, str] = {"pairs": "listed_pairs", "triplets": "listed_triplets"}
"""Miners of all methods where training is told listed pairs or triplets."""

NO_DEFAULT: object = inspect.Parameter.empty
"""The default, in a signature, of a parameter that must be given."""


@dataclass(frozen=True)
class BuiltMethod:
    """Loss and miner of a method, built from its parameters, its learning rates, and the name of
    its own sampler, if it has one.
    """

    loss: Loss
    miner: Miner | None
    lr: float
    weights_lr: float
    sampler: str | None = None


def assemble(method: Method, parameters: Parameters, protocol: ResolvedProtocol) -> BuiltMethod:
    """Build loss and miner; each parameter goes by its name to loss, miner or training.

    A name that several of them take, or none, raises `BadInput`. Where training is told listed
    pairs or triplets, the miner is the one of these.
    """
    assert method.loss is not None, "a head in closed form is not trained"
    by_taker: dict[str, dict[str, Value]] = {"loss": {}, "miner": {}, "training": {}}
    for name, value in {**method.fixed, **parameters}.items():
        by_taker[_taker(method, name)][name] = value
    training = {**_training_defaults(method, protocol), **by_taker["training"]}
    mining = miner_under(method, protocol)
    miner = miners[mining](**by_taker["miner"]) if mining else None
    if miner is not None:
        miner.normalise = method.normalise
    loss = method.loss(**by_taker["loss"])
    _check_refreshed(loss)
    rates = float(training["lr"]), float(training["weights_lr"])
    return BuiltMethod(loss, miner, *rates, sampler=method.sampler)


def _check_refreshed(loss: Loss) -> None:
    """Raise `ValueError` for a loss that says what a refresh does, and never when."""
    kind = type(loss)
    if not 0 <= loss.every < float("inf"):
        raise ValueError(
            f"{kind.__name__}: every is a finite number of passes, at least 0, got {loss.every}"
        )
    asks = kind.refresh is not Loss.refresh or kind.batches is not Loss.batches
    if asks and not loss.refreshes:
        raise ValueError(
            f"{kind.__name__} has `refresh` or `batches`, and its `every` is {loss.every}, so it is"
            " never refreshed; set `every` to the passes between two refreshes"
        )


def build_method(
    method: Method, parameters: Parameters, protocol: ResolvedProtocol, classes: int
) -> tuple[BuiltMethod, HeadShape]:
    """Build loss and miner with the weights for so many classes, and the shape of the head.

    Raise `BadInput` where the loss asks for a wider head than the protocol allows.
    """
    built = assemble(method, parameters, protocol)
    shape = built.loss.head(protocol.dim)
    if shape.dim > protocol.dim:
        raise BadInput(
            f"{method.name}: its head has {shape.dim} numbers with {_in_text(parameters)}, and the"
            f" protocol has dim={protocol.dim}; ask for smaller or fewer parts, or --set"
            f" dim={shape.dim}"
        )
    built.loss.setup(shape.dim, classes)
    return built, shape


def _in_text(parameters: Parameters) -> str:
    return ", ".join(as_text(*one) for one in parameters.items()) or "its defaults"


def miner_under(method: Method, protocol: ResolvedProtocol) -> str | None:
    """Return the name of the miner that feeds the loss under a protocol; None: there is none."""
    if method.loss is None:
        return None
    return LISTED_MINERS.get(protocol.supervision, method.miner)


def fitter_of(
    method: Method, parameters: Parameters
) -> Callable[[Tensor, Tensor, int], nn.Linear] | None:
    """Return the fitter of a method with its parameters; None where the method has none."""
    if method.fitter is None:
        return None
    return functools.partial(method.fitter, **{**method.fixed, **parameters})


def space_of(method: Method, protocol: Protocol) -> Space:
    """Return the space that is searched: the method's own with what the protocol adds.

    A baseline has nothing to search, and a head in closed form nothing of training.
    """
    return method.space if method.loss is None else method.space | protocol.space


def defaults(method: Method, protocol: ResolvedProtocol) -> dict[str, Value]:
    """Return the default of each searched parameter: trial 0 of a search.

    >>> from assay.methods import methods
    >>> from assay.protocols import protocols, resolve
    >>> from assay.trunks import trunk_facts
    >>> defaults(methods["triplet"], resolve(protocols["quick"], "photo", trunk_facts))
    {'margin': 0.1}
    """
    space, own = space_of(method, protocol), _own_defaults(method)
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
    known = own | _training_defaults(method, protocol)
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
    method: Method, protocol: ResolvedProtocol, settings: Sequence[str]
) -> dict[str, Value]:
    """Return the method's parameters with the `name=value` settings of `--param` applied.

    A value has the type of its default. The loss and the miner are built with all of them, so that
    a value that they refuse raises `BadInput` here.

    >>> from assay.methods import methods
    >>> from assay.protocols import protocols, resolve
    >>> from assay.trunks import trunk_facts
    >>> quick = resolve(protocols["quick"], "photo", trunk_facts)
    >>> read_parameters(methods["triplet"], quick, ["margin=0.2"])
    {'margin': 0.2}
    """
    check_given_once("--param", settings)
    known = {**_own_defaults(method), **_training_defaults(method, protocol)}
    chosen, space = defaults(method, protocol), space_of(method, protocol)
    for setting in settings:
        name, sign, text = (word.strip() for word in setting.partition("="))
        if not sign:
            raise BadInput(f"--param {setting}: write name=value; {_free(method, known)}")
        _check_name(method, known, name, f"--param {setting}")
        chosen[name] = _read_value(known[name], text, setting, space.get(name))
    _check_parameters(method, protocol, chosen, f"--param {', '.join(settings)}")
    return chosen


def with_given(
    method: Method, protocol: ResolvedProtocol, given: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the method's parameters with given ones, as `read_parameters` does with texts.

    >>> from assay.methods import methods
    >>> from assay.protocols import protocols, resolve
    >>> from assay.trunks import trunk_facts
    >>> quick = resolve(protocols["quick"], "photo", trunk_facts)
    >>> with_given(methods["triplet"], quick, {"margin": 1})
    {'margin': 1.0}
    """
    known = {**_own_defaults(method), **_training_defaults(method, protocol)}
    chosen = defaults(method, protocol)
    for name, value in given.items():
        label = f"{method.name}: {as_text(name, value)}"
        _check_name(method, known, name, f"{label} is given by {protocol.name}")
        kind = type(known[name]) if isinstance(known[name], str | int) else float
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise BadInput(f"{label} is not of the kind of its default, {known[name]!r}")
        chosen[name] = kind(value)
    texts = ", ".join(as_text(*parameter) for parameter in given.items())
    _check_parameters(method, protocol, chosen, f"{method.name}: {texts}")
    return chosen


def outside_search(method: Method, protocol: ResolvedProtocol, chosen: Parameters) -> Iterator[str]:
    """Yield a sentence for each parameter whose value no search of the method would try."""
    for name, range_ in space_of(method, protocol).items():
        if not range_.holds(chosen[name]):
            yield (
                f"{as_text(name, chosen[name])} is outside the search space of {method.name}, where"
                f" {name} is {in_words(range_)}"
            )


def _check_name(method: Method, known: Iterable[str], name: str, label: str) -> None:
    """Raise `BadInput` for a parameter that the method does not have, or that it fixes."""
    if name in method.fixed:
        fixed = f"{method.name} fixes {as_text(name, method.fixed[name])}"
        raise BadInput(f"{label}: {fixed}; {_free(method, known)}")
    if name not in known:
        free = sorted(set(known) - set(method.fixed))
        raise BadInput(
            f"{label}: {method.name} has no parameter {name!r}{did_you_mean(name, free)} (all:"
            f" {', '.join(free)})"
        )


def _free(method: Method, known: Iterable[str]) -> str:
    names = ", ".join(sorted(set(known) - set(method.fixed)))
    return f"the parameters of {method.name} are {names}"


def _check_parameters(
    method: Method, protocol: ResolvedProtocol, chosen: Parameters, label: str
) -> None:
    """Raise `BadInput` where a learning rate or a part of the method refuses its value."""
    for name in TRAINING:
        if not 0 < float(chosen.get(name, 1)) <= LARGEST_RATE:
            raise BadInput(
                f"{label}: {name} is a learning rate, a number above 0 and at most {LARGEST_RATE:g}"
            )
    try:
        if method.loss is not None:
            assemble(method, chosen, protocol)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{label}: {error}") from None


def departures(method: Method) -> tuple[str, ...]:
    """Return where the method, with its loss and its miner, differs from its paper."""
    return (*method.departures, *(miners[method.miner].departures if method.miner else ()))


def signature(part: type | None) -> dict[str, Value]:
    """Return the parameters of a part's constructor with their defaults."""
    if part is None or part.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    parameters = inspect.signature(part).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {item.name: item.default for item in parameters if item.kind in named}


def _own_defaults(method: Method) -> dict[str, Value]:
    fitter = parameters_of(method.fitter) if method.fitter else {}
    return {**signature(method.loss), **_miner_signature(method), **fitter}


def _miner_signature(method: Method) -> dict[str, Value]:
    return signature(miners[method.miner]) if method.miner else {}


def _training_defaults(method: Method, protocol: ResolvedProtocol) -> dict[str, Value]:
    if method.loss is None:
        return {}
    return {"lr": protocol.optimiser.lr, "weights_lr": DEFAULT_WEIGHTS_LR}


def _taker(method: Method, name: str) -> str:
    """Return which of loss, miner, fitter and training takes a parameter."""
    takers: dict[str, Iterable[str]] = {
        "loss": signature(method.loss),
        "miner": _miner_signature(method),
        "fitter": parameters_of(method.fitter) if method.fitter else (),
        "training": TRAINING if method.loss else (),
    }
    wanted_by = [taker for taker, names in takers.items() if name in names]
    if len(wanted_by) != 1:
        raise BadInput(
            f"{method.name}: the parameter {name!r} is taken by"
            f" {' and '.join(wanted_by) or 'nothing'}"
        )
    return wanted_by[0]


def _read_value(default: Any, text: str, setting: str, range_: Range | None) -> Value:
    """Return the text as a value of its default's type, a number where there is no default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, str):
            return text
        return read_whole(text) if isinstance(default, int) else read_number(text)
    except KeyError:
        raise BadInput(f"--param {setting}: {text!r} is neither true nor false") from None
    except ValueError as error:
        searched = "" if range_ is None else f", {in_words(range_)}"
        raise BadInput(
            f"--param {setting}: {error}; the default is {default!r}{searched}"
        ) from None
