"""Write docs/methods.md from the code: `python tools/methods_page.py > docs/methods.md`."""

import re
import textwrap
from typing import Any, get_args

from assay.methods import describe, methods_by_year, miners, samplers
from assay.methods.describe import describe_miner, describe_sampler
from assay.protocols import BatchKind, Modality, protocols, resolve
from assay.trunks import trunk_facts

PREFACE = """\
# Methods: equations, defaults, spaces, papers

<!-- Generated from the code by `make docs`. To change this page, edit the docstrings in
src/assay/losses, src/assay/miners and src/assay/samplers. -->

A method is what a benchmark compares: a loss with its miner, its kind of batch, and the space in
which its parameters are searched. This page is generated from the code, and a test keeps the two in
step. `assay list methods` prints the short form, `assay list methods --json` everything on this
page about methods.

**Parameters.** The default is the value of trial 0. A range bounds the search, not the loss: a loss
takes any value that makes sense. Ranges are declared before the search, which never widens them. An
optimum at an end of its range is reported, unless that end, in **bold** here, is a bound of the
parameter itself (no margin lies below 0). `weights_lr` is in the space of every method that has
weights of its own. A protocol may add parameters that it searches for all methods alike.

**Miner.** It chooses the pairs or triplets that the loss compares. Without a miner, the loss
compares all pairs or triplets of a batch.

**Batch.** A method names a kind of batch, the protocol gives its shape, classes x images of each:

{batches}

**Normalised or raw.** Loss and miner see unit vectors, or the embeddings as the head gives them.
Scores are always computed on unit vectors.

**Departs** says where the code differs from the paper that it names. Public implementations often
differ too, so a number from here and a number from elsewhere may belong to two different losses of
the same name. "The reality check" is *A Metric Learning Reality Check* (Musgrave, Belongie and Lim,
2020, [arxiv.org/abs/2003.08505](https://arxiv.org/abs/2003.08505)), "the unbiased evaluation" is
*Unbiased Evaluation of Deep Metric Learning Algorithms* (Fehervari, Ravichandran and Appalaraju,
2019, [arxiv.org/abs/1911.12528](https://arxiv.org/abs/1911.12528)).

## Notation
```
z_i, x_i     embedding of sample i, of unit length unless the method is raw; y its class
s_ij         z_i . z_j, the cosine where embeddings are normalised
s_ic, cos_c  the same with the weight of class c; theta_c is the angle
d_ij         |z_i - z_j|
a, p, n      an anchor; a positive, another sample of its class; a negative, a sample of another
             class; also their embeddings
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
    "The baselines": ("nothing",),
    "Methods that compare pairs": ("pairs", "anything"),
    "Methods that compare triplets": ("triplets", "either"),
    "Methods that take a batch as a whole": ("batch",),
    "Methods that compare with class weights": ("classes",),
    "Methods that see features too": ("seen",),
    "Heads in closed form": ("features",),
}


def markdown() -> str:
    """Return the page: preface, overview, a section for each method and each miner."""
    described = [describe(method) for method in methods_by_year()]
    parts = [PREFACE.format(batches=_batches()), "## Overview", _overview(described)]
    for title, kinds in GROUPS.items():
        if not any(_compares(method) in kinds for method in described):
            continue
        parts += [
            f"## {title}",
            *(_method(method) for method in described if _compares(method) in kinds),
        ]
    parts += ["## Miners", *(_miner(describe_miner(name), described) for name in sorted(miners))]
    parts += ["## Samplers", SAMPLERS]
    parts += [_sampler(describe_sampler(name), described) for name in sorted(samplers)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _compares(method: dict[str, Any]) -> str:
    """Return what a method compares, for the group that it stands in."""
    if method["loss"] is None:
        return "nothing" if method["baseline"] else "features"
    return str(method["compares"])


BATCHES = {
    "embedding": "several images of each class: for methods that compare samples with each other",
    "classification": "for methods that compare samples with class weights",
    "pairs": "as many images as `embedding`, two of each class",
    "episodes": "half as many classes as `embedding`, twice as many images of each",
}


def _batches() -> str:
    modalities: tuple[Modality, ...] = ("photo", "features")
    networks, heads = (
        resolve(protocols["quick"], modality, trunk_facts).batch for modality in modalities
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
            f"[{method['name']}](#{method['name']})",
            str(method["paper"]["year"]) if method["paper"] else "",
            method["batch"] or "",
            _miner_link(method["miner"]["name"]) if method["miner"] else "",
            ", ".join(f"`{name}`" for name in method["space"]),
            _link(method["paper"]["title"], method["paper"]["url"]) if method["paper"] else "",
        ]
        for method in described
    ]
    return _table(["method", "year", "batch", "miner", "searched", "paper"], rows)


def _method(method: dict[str, Any]) -> str:
    heading, about = f"### {method['name']}", _sentence(method["about"])
    if method["baseline"]:
        untrained = "It has no loss, no training and nothing to search"
        link = "[how it is made](decisions/0004-the-baseline.md)"
        return f"{heading}\n{_wrap(f'{about} {untrained}: {link}.')}"
    parts = [
        f"{heading}\n{_wrap(about)}",
        _wrap(
            f"Fitter `{method['fitter']}`: {method['summary']}"
            if method["loss"] is None
            else f"Loss `{method['loss']}`: {method['summary']}"
        ),
        _block(method["equation"]),
        _parameters(method),
        "\n".join(_wrap(fact) for fact in _facts(method)),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(method: dict[str, Any]) -> list[str]:
    miner = (
        [f"- Miner {_miner_link(method['miner']['name'])}: {method['miner']['rule']}"]
        if method["miner"]
        else []
    )
    form = "normalised" if method["normalise"] else "raw"
    trained = (
        []
        if method["loss"] is None
        else [
            *miner,
            *([f"- Sampler `{method['sampler']}`, its own."] if method["sampler"] else []),
            f"- Batch `{method['batch']}`, embeddings {form}.",
        ]
    )
    return [
        *trained,
        *(f"- Departs: {_sentence(text)}" for text in method["departures"]),
        *([f"- Paper: {_citation(method['paper'])}"] if method["paper"] else []),
    ]


def _parameters(method: dict[str, Any]) -> str:
    """Return the table of parameters, those that are searched first."""
    names = [name for name in method["arguments"] if name in method["space"]]
    names += [name for name in method["arguments"] if name not in method["space"]]
    rows = []
    for name in names:
        argument, range_ = method["arguments"][name], method["space"].get(name)
        value = method["fixed"].get(name, argument["default"])
        ends, scale = (
            _range(range_)
            if range_
            else ("fixed" if name in method["fixed"] else "not searched", "")
        )
        rows.append([f"`{name}`", argument["meaning"].rstrip("."), _number(value), ends, scale])
    return _table(["parameter", "meaning", "default", "range", "scale"], rows) if rows else ""


def _range(range_: dict[str, Any]) -> tuple[str, str]:
    """Return both ends of a range, natural ones in bold, and its scale."""
    if range_["kind"] == "Choice":
        return ", ".join(_number(option) for option in range_["options"]), "choice"
    low, high = _number(range_["low"]), _number(range_["high"])
    low = f"**{low}**" if range_["natural"] in ("low", "both") else low
    high = f"**{high}**" if range_["natural"] in ("high", "both") else high
    scale = "logarithmic" if range_["log"] else "linear"
    return f"{low} to {high}", f"{scale}, whole numbers" if range_["kind"] == "Integer" else scale


SAMPLERS = """\
A sampler chooses the samples of each batch. The protocol names it (`--set sampler=`); a method that
is nothing without its own names that. Some plan their batches from a memory bank, the embeddings of
all training samples ([how](add_a_method.md#a-sampler-that-looks-where-the-samples-lie))."""


def _sampler(sampler: dict[str, Any], described: list[dict[str, Any]]) -> str:
    """Return the section of a sampler."""
    banks = {
        None: "It needs no memory bank.",
        "kept": "Bank: embedded once, its rows replaced by each step; planned once an epoch.",
        "fresh": "Bank: embedded again each `refresh` steps, or once a pass; planned then.",
    }
    users = [
        f"[{method['name']}](#{method['name']})"
        for method in described
        if method["sampler"] == sampler["name"]
    ]
    facts = [f"- {banks[sampler['bank']]}"]
    facts += [f"- The own sampler of {', '.join(users)}."] if users else []
    facts += [f"- Paper: {_citation(sampler['paper'])}"] if sampler["paper"] else []
    parts = [
        f"### {sampler['name']} (sampler)\n{_wrap(sampler['about'])}",
        _block(sampler["rule"]),
        "\n".join(_wrap(fact) for fact in facts),
    ]
    return "\n\n".join(part for part in parts if part)


def _miner(miner: dict[str, Any], described: list[dict[str, Any]]) -> str:
    users = [
        f"[{method['name']}](#{method['name']})"
        for method in described
        if method["miner"] and method["miner"]["name"] == miner["name"]
    ]
    rows = [
        [f"`{argument}`", about["meaning"].rstrip("."), _number(about["default"])]
        for argument, about in miner["arguments"].items()
    ]
    facts = (
        [f"- Used by {', '.join(users)}."]
        if users
        else ["- Used by no method listed here; name it in your own."]
    )
    facts += [f"- Departs: {_sentence(text)}" for text in miner["departures"]]
    facts += [f"- Paper: {_citation(miner['paper'])}"] if miner["paper"] else []
    parts = [
        f"### {miner['name']} (miner)\n{_wrap(miner['summary'])}",
        _block(miner["equation"]),
        _table(["parameter", "meaning", "default"], rows) if rows else "",
        "\n".join(_wrap(fact) for fact in facts),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(columns: list[str], rows: list[list[str]]) -> str:
    rule = ["---:" if column in ("default", "year") else "---" for column in columns]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [columns, rule, *rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _wrap(text: str) -> str:
    """Return a paragraph or a list item in lines of at most 100 characters, links in one piece."""
    whole = re.sub(r"\[[^\]]*\]\([^)]*\)", lambda link: link[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        100,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


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
    """Return a number as short as possible (1e-6, 0.5, 2), words as code.

    >>> _number(1e-06), _number(2.0), _number("pairs")
    ('1e-6', '2', '`pairs`')
    """
    if value is None or isinstance(value, str):
        return f"`{value}`" if value else ""
    return f"{value:g}".replace("e-0", "e-")


if __name__ == "__main__":
    print(markdown(), end="")
