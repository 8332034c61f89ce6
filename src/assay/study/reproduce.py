"""Published parameters, run again to see whether they give the published scores."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assay.data import Dataset
from assay.errors import BadInput
from assay.methods import methods, with_given
from assay.protocols import Protocol, protocols, published_name
from assay.protocols.reality_check import PAPER_DATA
from assay.published import DATA, best_parameters
from assay.records.origin import GivenParameters, Published
from assay.records.store import Store
from assay.study.bench import Bench, Execution, design_bench, run_designs
from assay.study.design import Design

PUBLISHED_BY = "Musgrave et al. 2020"


def run_published(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    out: Path,
    execution: Execution,
    *,
    new_study: bool = False,
) -> Bench:
    """Reproduce and test each method with the best parameters of the reality check.

    They are those for the protocol's data set. Nothing is searched. A parameter that was not
    published has the method's default. A protocol by its name is the version that `as_published`
    returns.
    """
    Store.check_out(out)
    protocol = protocols[as_published(protocol)] if isinstance(protocol, str) else protocol
    designs = design_bench(
        data,
        names,
        protocol,
        execution.device,
        execution.imports,
        execution.listener.progress,
    )
    designs[0].conditions.check_data(execution.listener.announce, execution.allow_leaks)
    return run_designs([with_published(design) for design in designs], out, execution, new_study)


def methods_published(data: str) -> list[str]:
    """Return the methods whose best parameters were published for a data set, and `pretrained`."""
    return [
        name for name in methods if name == "pretrained" or best_parameters(name, data) is not None
    ]


def as_published(protocol: str) -> str:
    """Return the full name of a reality-check protocol; without a version it is version 1.

    That one has the paper's own budget. Version 2 differs from it in the number of searches only:
    where parameters are given nothing is searched, so it would do the same with four times as many
    reproductions.

    >>> as_published("reality-check/cub"), as_published("reality-check/cub.v1")
    ('reality-check/cub.v1', 'reality-check/cub.v1')
    """
    return f"{protocol}.v1" if f"{protocol}.v1" in PAPER_DATA else protocol


def data_of(protocol: str) -> str:
    """Return for what the parameters of a reality-check protocol of version 1 were published.

    It is a name of `BEST_FOR`, which begins with that of the data set.

    >>> data_of("reality-check/cub.v1"), data_of("reality-check/cub-256.v1")
    ('cub', 'cub-256')
    """
    name = published_name(protocol)
    if name in PAPER_DATA:
        return PAPER_DATA[name]
    first = as_published(name.rpartition(".v")[0])
    if first in PAPER_DATA:
        raise BadInput(
            f"{protocol}: the paper's parameters come from one search and 10 reproductions, which"
            f" is {first}; use that"
        )
    *others, last = (full.rpartition(".v")[0] for full in PAPER_DATA)
    raise BadInput(f"{protocol}: parameters are published for {', '.join(others)} and {last}")


def with_published(design: Design) -> Design:
    """Return the design with the published parameters of its method, and with defaults for what was
    not published; `BadInput` where none were.
    """
    data, given = data_of(design.conditions.protocol.name), design.conditions.data.name
    if given in DATA and given != data.partition("-")[0]:
        raise BadInput(
            f"{given} is not the data of {design.conditions.protocol.name}; use --protocol"
            f" reality-check/{given}"
        )
    found = {} if design.method.baseline else best_parameters(design.method.name, data)
    if found is None:
        raise BadInput(
            f"{design.method.name}: no parameters were published for {data}; those that have some"
            f" are {', '.join(methods_published(data))}"
        )
    parameters = with_given(design.method, design.protocol, found) if found else design.first
    return replace(design, given=GivenParameters(parameters, Published(PUBLISHED_BY, data)))
