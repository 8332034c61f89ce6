"""Every method as plain data, for `assay list methods --json` and for docs/methods.md."""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.fitters import Fitter, parameters_of
from assay.hashing import plain
from assay.losses import losses, methods
from assay.losses.loss import Loss, Method
from assay.methods.parameters import DEFAULT_WEIGHTS_LR, NO_DEFAULT, departures, signature
from assay.miners import Miner, miners
from assay.samplers import samplers
from assay.samplers.sampler import bank_of, has_fixed_pattern, paper_of
from assay.space import Value


def methods_by_year() -> list[Method]:
    """Return all methods: baselines first, then by year, then in the order of their files."""
    return sorted(
        methods.values(),
        key=lambda method: (not method.baseline, method.paper.year if method.paper else 9999),
    )


def describe(method: Method) -> dict[str, Any]:
    """Return a method as plain data: its parts, search space, equation, paper and departures.

    >>> triplet = describe(methods["triplet"])
    >>> triplet["loss"], triplet["defaults"], triplet["paper"]["year"]
    ('triplet', {'margin': 0.1}, 2006)
    """
    docstring = _Docstring.of(method.loss or (None if method.baseline else method.fitter))
    arguments = _arguments_of(method)
    miner = method.miner and {
        "name": method.miner,
        "rule": _Docstring.of(miners[method.miner]).summary,
    }
    return {
        "name": method.name,
        "baseline": method.baseline,
        "about": method.about,
        "loss": method.loss and _name(method.loss),
        "compares": method.loss and method.loss.compares,
        "normalise": method.normalise,
        "miner": miner,
        "batch": method.loss and method.batch,
        "sampler": method.sampler,
        "fitter": method.fitter and method.fitter.__name__,
        "fixed": plain(method.fixed),
        "space": plain(method.space.describe()),
        "defaults": {name: arguments.get(name, {}).get("default") for name in method.space},
        "arguments": arguments,
        "summary": docstring.summary,
        "equation": docstring.equation,
        "paper": plain(method.paper),
        "departures": list(departures(method)),
    }


def describe_miner(name: str) -> dict[str, Any]:
    """Return a miner as plain data: its rule, arguments, paper and departures."""
    miner = miners[name]
    docstring = _Docstring.of(miner)
    return {
        "name": name,
        "summary": docstring.summary,
        "equation": docstring.equation,
        "arguments": docstring.describe_arguments(signature(miner), "miner"),
        "paper": plain(miner.paper),
        "departures": list(miner.departures),
    }


def describe_sampler(name: str) -> dict[str, Any]:
    """Return a sampler as plain data: its rule, its paper, and the memory bank that it plans from.

    >>> described = describe_sampler("coreset")
    >>> described["bank"], described["paper"]["year"]
    ('kept', 2020)
    """
    sampler = samplers[name]
    about, _, rule = inspect.cleandoc(sampler.__doc__ or "").partition("\n\n")
    return {
        "name": name,
        "about": " ".join(about.split()),
        "rule": rule.strip("\n"),
        "bank": bank_of(sampler),
        "fixed_pattern": has_fixed_pattern(sampler),
        "paper": plain(paper_of(sampler)),
    }


@dataclass(frozen=True)
class _Docstring:
    """The docstring of a loss or miner: a sentence, the equation or rule, meanings of arguments."""

    summary: str
    equation: str
    meanings: dict[str, str]

    @classmethod
    def of(cls, part: type[Loss | Miner] | Fitter | None) -> "_Docstring":
        text = inspect.cleandoc(part.__doc__ or "") if part else ""
        head, _, tail = text.partition("\nArgs:\n")
        summary, _, equation = head.partition("\n\n")
        section = re.split(r"^\S", tail, maxsplit=1, flags=re.MULTILINE)[0]
        meanings = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
        return cls(
            " ".join(summary.split()),
            equation.strip("\n"),
            {name: " ".join(meaning.split()) for name, meaning in meanings},
        )

    def describe_arguments(
        self, defaults: Mapping[str, Value], taker: str
    ) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "of": taker,
                "meaning": self.meanings.get(name, ""),
                "default": _default(default),
            }
            for name, default in defaults.items()
        }


_TRAINING: dict[str, dict[str, Any]] = {
    "lr": {
        "of": "training",
        "meaning": "learning rate of trunk and head; the default is the protocol's.",
        "default": None,
    },
    "weights_lr": {
        "of": "training",
        "meaning": "learning rate of the loss's own weights.",
        "default": DEFAULT_WEIGHTS_LR,
    },
}


def _arguments_of(method: Method) -> dict[str, dict[str, Any]]:
    """Return all arguments of loss and miner, and those of training that the method names."""
    loss, miner = method.loss, miners[method.miner] if method.miner else None
    fitter = method.fitter
    return (
        (_Docstring.of(loss).describe_arguments(signature(loss), "loss") if loss else {})
        | (_Docstring.of(miner).describe_arguments(signature(miner), "miner") if miner else {})
        | (
            _Docstring.of(fitter).describe_arguments(parameters_of(fitter), "fitter")
            if fitter
            else {}
        )
        | {name: _TRAINING[name] for name in (*method.fixed, *method.space) if name in _TRAINING}
    )


def _default(value: object) -> Value | None:
    """Return a default as plain data: None where there is none, text for any other object."""
    if value is NO_DEFAULT:
        return None
    if isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    return repr(value)


def _name(loss: type[Loss]) -> str:
    return next((name for name, known in losses.items() if known is loss), loss.__name__)
