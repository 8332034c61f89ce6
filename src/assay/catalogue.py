"""Every method as plain data, and as a page: `python -m assay.catalogue` prints docs/methods.md."""

import inspect
import math
import re
from dataclasses import dataclass
from typing import Any, get_args

from assay.domain import BatchKind
from assay.hashing import plain
from assay.losses.loss import Loss, Method
from assay.methods import (
    DEFAULT_WEIGHTS_LR,
    NO_DEFAULT,
    departures,
    losses,
    methods,
    miners,
    signature,
)
from assay.miners.miner import Miner
from assay.protocols import Kind, protocols, resolve_training
from assay.space import Value

__all__ = ["describe", "in_order", "markdown"]


def in_order() -> list[Method]:
    """All methods: the baselines, then by year; those of one year in the order of their files."""
    return sorted(
        methods.values(),
        key=lambda method: (method.loss is not None, method.paper.year if method.paper else 9999),
    )


def describe(method: Method) -> dict[str, Any]:
    """A method as plain data: its parts, what is searched, the equation, where it comes from and
    departs from it.

    >>> triplet = describe(methods["triplet"])
    >>> triplet["loss"], triplet["defaults"], triplet["paper"]["year"]
    ('triplet', {'margin': 0.1}, 2006)
    """
    said, arguments = _read(method.loss), _arguments(method)
    return {
        "name": method.name,
        "about": method.about,
        "loss": method.loss and _name(method.loss),
        "compares": method.loss and method.loss.compares,
        "normalise": method.normalise,
        "miner": (
            method.miner and {"name": method.miner, "rule": _read(miners[method.miner]).summary}
        ),
        "batch": method.loss and method.batch,
        "fixed": plain(method.fixed),
        "space": plain(method.space.describe()),
        "defaults": {name: arguments.get(name, {}).get("default") for name in method.space},
        "arguments": arguments,
        "summary": said.summary,
        "equation": said.equation,
        "paper": plain(method.paper),
        "departures": list(departures(method)),
    }


@dataclass(frozen=True)
class _Said:
    """What the docstring of a loss or miner says: a line, the equation or rule, the meaning of each
    argument.
    """

    summary: str
    equation: str
    meanings: dict[str, str]


def _read(part: type[Loss | Miner] | None) -> _Said:
    text = inspect.cleandoc(part.__doc__ or "") if part else ""
    head, _, tail = text.partition("\nArgs:\n")
    summary, _, equation = head.partition("\n\n")
    section = re.split(r"^\S", tail, maxsplit=1, flags=re.MULTILINE)[0]
    meanings = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return _Said(
        _joined(summary),
        equation.strip("\n"),
        {name: _joined(meaning) for name, meaning in meanings},
    )


def _joined(text: str) -> str:
    return " ".join(text.split())


def _name(loss: type[Loss]) -> str:
    return next((name for name, known in losses.items() if known is loss), loss.__name__)


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


def _arguments(method: Method) -> dict[str, dict[str, Any]]:
    """What can be set, whether searched or not: by loss and miner, and what the method says of
    training.
    """
    of_loss = _arguments_of(method.loss, "loss")
    of_miner = _arguments_of(miners[method.miner] if method.miner else None, "miner")
    return (
        of_loss
        | of_miner
        | {name: _TRAINING[name] for name in (*method.fixed, *method.space) if name in _TRAINING}
    )


def _arguments_of(part: type[Loss | Miner] | None, kind: str) -> dict[str, dict[str, Any]]:
    if part is None:
        return {}
    meanings = _read(part).meanings
    return {
        name: {"of": kind, "meaning": meanings.get(name, ""), "default": _default(default)}
        for name, default in signature(part).items()
    }


def _default(value: object) -> Value | None:
    """None where there is none, and in words what is no value of a parameter."""
    if value is NO_DEFAULT:
        return None
    if isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    return repr(value)


# --- the page -------------------------------------------------------------------------------------

PREFACE = """\
# Methods: equations, defaults, spaces, papers

<!-- Generated from the code by `make docs`: edit the docstrings in src/assay/losses and src/assay/miners, not this page. -->

A method is what a benchmark compares: a loss with its miner, its kind of batch, and the space in which its parameters are
searched. This page is generated from the code, and a test keeps the two in step. `assay list methods` prints the short form,
`assay list methods --json` all that stands here of methods.

**Parameters.** The default is the value of trial 0. A range bounds the search, not the loss, which takes any value that makes
sense. It was declared before any search and is never widened by one; an optimum at an end of its range is reported as such,
unless that end, here in **bold**, is the parameter's own (no margin lies below 0). `weights_lr` is in the space of every method
that has weights of its own. A protocol may add parameters that it searches for all methods alike.

**Miner.** It chooses the pairs or triplets that the loss looks at. Without one these are all of a batch.

**Batch.** A method names a kind, the protocol gives it a shape, classes x images of each:

{batches}

**Normalised or raw.** Loss and miner see unit vectors, or the embeddings as they come out of the head. Scores are always those
of unit vectors.

**Departs** says where what is computed here differs from the paper that is named. Public implementations often differ too, so a
number here and one from elsewhere may be of two different losses under one name. "The reality check" is *A Metric Learning
Reality Check* (Musgrave, Belongie and Lim, 2020, [arxiv.org/abs/2003.08505](https://arxiv.org/abs/2003.08505)), "the unbiased
evaluation" *Unbiased Evaluation of Deep Metric Learning Algorithms* (Fehervari, Ravichandran and Appalaraju, 2019,
[arxiv.org/abs/1911.12528](https://arxiv.org/abs/1911.12528)).

## Notation
```
z_i, x_i     embedding of sample i, of unit length unless the method is raw; y its class
s_ij         z_i . z_j, where normalised the cosine; s_ic, cos_c that to the weight of class c, theta_c the angle
d_ij         |z_i - z_j|
a, p, n      an anchor; a positive, which is another sample of its class; a negative, which is a sample of another class;
             also their embeddings
P, Q         the ordered pairs (a, p) and (a, n); P_a the positives of the anchor a
w_c          weight of class c, also called its proxy, of unit length where it is used
[x]+         max(x, 0)
[c = y]      1 for the sample's own class, 0 for the others
lse          log-sum-exp: lse_n x_n = log sum_n e^(x_n)
mean_i       over the samples of a batch; the mean of nothing is 0
N, D, C      samples in a batch, dimensions of an embedding, classes
```
"""

GROUPS = {
    "The baselines": (None,),
    "Methods that compare pairs": ("pairs", "anything"),
    "Methods that compare triplets": ("triplets", "either"),
    "Methods that compare with class weights": ("classes",),
}


def markdown() -> str:
    """The page: preface, overview, a section for each method and each miner."""
    described = [describe(method) for method in in_order()]
    parts = [PREFACE.format(batches=_batches()), "## Overview", _overview(described)]
    for title, kinds in GROUPS.items():
        parts += [f"## {title}", *(_method(one) for one in described if one["compares"] in kinds)]
    parts += ["## Miners", *(_miner(name, described) for name in sorted(miners))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


BATCHES = {
    "embedding": "several images of each class: for methods that compare samples with each other",
    "classification": "for methods that compare samples with class weights",
    "pairs": "as many images as `embedding`, two of each class",
}


def _batches() -> str:
    networks, heads = (
        resolve_training(protocols["quick"], trained).batch for trained in get_args(Kind)
    )
    rows = [
        [
            f"`{kind}`",
            BATCHES[kind],
            *("{} x {}".format(*batch.shape(kind)) for batch in (networks, heads)),
        ]
        for kind in get_args(BatchKind)
    ]
    return _table(["kind", "what it holds", "under `quick`: of images", "of vectors"], rows)


def _overview(described: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"[{one['name']}](#{one['name']})",
            str(one["paper"]["year"]) if one["paper"] else "",
            one["batch"] or "",
            _miner_link(one["miner"]["name"]) if one["miner"] else "",
            ", ".join(f"`{name}`" for name in one["space"]),
            _link(one["paper"]["title"], one["paper"]["url"]) if one["paper"] else "",
        ]
        for one in described
    ]
    return _table(["method", "year", "batch", "miner", "searched", "paper"], rows)


def _method(one: dict[str, Any]) -> str:
    about = f"### {one['name']}\n{_sentence(one['about'])}"
    if one["loss"] is None:
        return (
            f"{about} It has no loss, no training and nothing to search: [how it is"
            " made](decisions/0004-the-baseline.md)."
        )
    parts = [
        about,
        f"Loss `{one['loss']}`: {one['summary']}",
        _block(one["equation"]),
        _parameters(one),
        "\n".join(_facts(one)),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(one: dict[str, Any]) -> list[str]:
    miner = (
        [f"- Miner {_miner_link(one['miner']['name'])}: {one['miner']['rule']}"]
        if one["miner"]
        else []
    )
    return [
        *miner,
        f"- Batch `{one['batch']}`, embeddings {'normalised' if one['normalise'] else 'raw'}.",
        *(f"- Departs: {_sentence(text)}" for text in one["departures"]),
        *([f"- Paper: {_citation(one['paper'])}"] if one["paper"] else []),
    ]


def _parameters(one: dict[str, Any]) -> str:
    """Searched ones first."""
    names = [name for name in one["arguments"] if name in one["space"]]
    names += [name for name in one["arguments"] if name not in one["space"]]
    rows = []
    for name in names:
        argument, range_ = one["arguments"][name], one["space"].get(name)
        value = one["fixed"].get(name, argument["default"])
        ends, scale = (
            _range(range_) if range_ else ("fixed" if name in one["fixed"] else "not searched", "")
        )
        rows.append([f"`{name}`", argument["meaning"].rstrip("."), _number(value), ends, scale])
    return _table(["parameter", "meaning", "default", "range", "scale"], rows) if rows else ""


def _range(range_: dict[str, Any]) -> tuple[str, str]:
    """Both ends, natural ones in bold, and the scale."""
    if range_["kind"] == "Choice":
        return ", ".join(_number(option) for option in range_["options"]), "choice"
    low, high = _number(range_["low"]), _number(range_["high"])
    low = f"**{low}**" if range_["natural"] in ("low", "both") else low
    high = f"**{high}**" if range_["natural"] in ("high", "both") else high
    scale = "logarithmic" if range_["log"] else "linear"
    return f"{low} to {high}", f"{scale}, whole numbers" if range_["kind"] == "Integer" else scale


def _miner(name: str, described: list[dict[str, Any]]) -> str:
    said, paper = _read(miners[name]), miners[name].paper
    users = [
        f"[{one['name']}](#{one['name']})"
        for one in described
        if one["miner"] and one["miner"]["name"] == name
    ]
    rows = [
        [f"`{argument}`", about["meaning"].rstrip("."), _number(about["default"])]
        for argument, about in _arguments_of(miners[name], "miner").items()
    ]
    facts = (
        [f"- Used by {', '.join(users)}."]
        if users
        else ["- Used by no method listed here; name it in your own."]
    )
    facts += [f"- Departs: {_sentence(text)}" for text in miners[name].departures]
    facts += [f"- Paper: {_citation(plain(paper))}"] if paper else []
    table = _table(["parameter", "meaning", "default"], rows) if rows else ""
    parts = [f"### {name} (miner)\n{said.summary}", _block(said.equation), table, "\n".join(facts)]
    return "\n\n".join(part for part in parts if part)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    rule = ["---:" if column in ("default", "year") else "---" for column in columns]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [columns, rule, *rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _block(text: str) -> str:
    return f"```\n{text}\n```" if text else ""


def _citation(paper: dict[str, Any]) -> str:
    where = f", equation {paper['equation']}" if paper["equation"] else ""
    return f"*{paper['title']}*, {paper['year']}{where}, {_link(paper['url'], paper['url'])}"


def _link(text: str, url: str) -> str:
    return f"[{text}](https://{url})"


def _miner_link(name: str) -> str:
    return f"[{name}](#{name}-miner)"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _number(value: Any) -> str:
    """As short as it can be written: 1e-6, 0.5, 2; words as code.

    >>> _number(1e-06), _number(2.0), _number("pairs")
    ('1e-6', '2', '`pairs`')
    """
    if value is None or isinstance(value, str):
        return f"`{value}`" if value else ""
    return f"{value:g}".replace("e-0", "e-")


if __name__ == "__main__":
    print(markdown(), end="")
