"""Published parameters, run again, to see whether the published score comes out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assay.data import Dataset
from assay.data.scan import reporting
from assay.errors import BadInput
from assay.methods import methods, read_parameters
from assay.protocol import CUSTOM, Protocol
from assay.published import DATA, best_parameters
from assay.study.bench import Bench, Means, check_data, design_bench, run_designs
from assay.study.design import Design, Given

SOURCE = "published by Musgrave et al. 2020 for {data}"


def run_published(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    out: Path,
    means: Means | None = None,
    *,
    new_study: bool = False,
) -> Bench:
    """Reproduce and test each method with the parameters that the reality check found best for the protocol's data set.

    Nothing is searched. A parameter that was not published has the method's default.
    """
    means = means or Means()
    with reporting(means.listener.preparing):
        designs = design_bench(data, names, protocol, means.device, means.imports)
    check_data(designs, means)
    return run_designs([_with_published(design) for design in designs], out, means, new_study)


def methods_published(data: str) -> list[str]:
    """Return the methods whose best parameters the reality check published for a data set, and its baseline, `pretrained`."""
    return [name for name in methods if name == "pretrained" or best_parameters(name, data) is not None]


def data_of(protocol: str) -> str:
    """The data set of a reality-check protocol: its published parameters and scores are for that.

    >>> data_of("reality-check/cub.v1")
    'cub'
    """
    family, _, rest = protocol.partition(CUSTOM)[0].rpartition(".v")[0].partition("/")
    if family != "reality-check" or rest not in ("cub", "cars", "sop"):
        raise BadInput(f"{protocol}: parameters are published for reality-check/cub, reality-check/cars and reality-check/sop")
    return rest


def _with_published(design: Design) -> Design:
    data, given = data_of(design.arena.protocol.name), design.arena.data["name"]
    if given in DATA and given != data:
        raise BadInput(f"{given} is not the data of {design.arena.protocol.name}; use --protocol reality-check/{given}")
    found = {} if design.method.loss is None else best_parameters(design.method.name, data)
    if found is None:
        raise BadInput(
            f"{design.method.name}: no parameters were published for {data}; those that have some are "
            f"{', '.join(methods_published(data))}"
        )
    settings = [f"{name}={value}" for name, value in found.items()]
    parameters = read_parameters(design.method, design.protocol, settings) if settings else design.first
    return replace(design, given=Given(parameters, SOURCE.format(data=data)))
