"""A sweep: parameters that studies have selected, run again at each value of a protocol field."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.data import Dataset, load, splits
from assay.errors import BadInput
from assay.methods import import_parts
from assay.protocols import Protocol, customise
from assay.records.origin import GivenParameters, SelectedBy, SweepPoint
from assay.records.store import Store
from assay.records.study import read_record
from assay.space import Value
from assay.study.bench import (
    Execution,
    carry_out,
    design_bench,
    in_newest_generation,
    open_studies,
)
from assay.study.declare import announced_in_words, declare
from assay.study.design import Design, design_methods
from assay.study.tryout import try_methods

OF_THE_SEARCH = ("searches", "search", "trials", "trial_folds", "startup", "prune")
"""Fields that only a search depends on."""


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended.

    Args:
        out: the store.
        bases: keys of the studies that selected the parameters.
        studies: keys of the studies at the values.
    """

    out: Path
    bases: tuple[str, ...]
    studies: tuple[str, ...]


def run_sweep(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    vary: str,
    out: Path,
    execution: Execution,
) -> Swept:
    """Search and select under the protocol, unless the store has done so; then test at each value.

    `vary` is `field=value,value,...`. The parameters are chosen once, on validation folds, under
    the protocol as it is. Every value then has a study of its own, whose seal opens when its
    reproductions are complete. Test scores do not go back into any choice.
    """
    field, values = read_values(vary)
    Store.check_out(out)
    import_parts(execution.imports)
    dataset = load(data, execution.listener.progress) if isinstance(data, str) else data
    bases = design_bench(dataset, names, protocol, execution.device, execution.imports)
    varied = [customise(bases[0].conditions.protocol, [f"{field}={value}"]) for value in values]
    _check_varied(vary, field, bases, varied)
    for one in varied:  # refuses a value before anything runs
        splits.of(dataset, one)
        try_methods(design_methods(replace(bases[0].conditions, protocol=one), _names(bases)))
    bases[0].conditions.check_data(execution.listener.announce, execution.allow_leaks)
    store = Store.create(out)
    with store.driving():
        bases = [in_newest_generation(design, store) for design in bases]
        studies = open_studies(bases, store, execution)
        execution.listener.announce("sweep", announced_in_words(declare(store, bases)))
        with execution.engine as engine:
            carry_out(studies, store, engine, execution.listener)
            base = bases[0].conditions.protocol.name
            points = []
            for one, value in zip(varied, values, strict=True):
                point = SweepPoint(field, value, tuple(values), "", base)
                designs = _designs_at(one, point, bases, store)
                points += designs
                if designs:  # their parameters are known only now
                    declare(store, designs, sweep=f"{field}={value}")
            carry_out(open_studies(points, store, execution), store, engine, execution.listener)
    return Swept(out, tuple(design.key for design in bases), tuple(design.key for design in points))


def read_values(vary: str) -> tuple[str, list[str]]:
    """Return the field and its values.

    >>> read_values("dim=16,32")
    ('dim', ['16', '32'])
    """
    field, sign, text = vary.partition("=")
    values = [value.strip() for value in text.split(",") if value.strip()]
    if field.strip() in OF_THE_SEARCH:
        raise BadInput(
            f"--vary {vary}: the parameters of a sweep are chosen once, so {field} changes nothing;"
            " vary another field"
        )
    if not sign or not values:
        raise BadInput(
            f"--vary {vary}: write field=value,value,..., for example --vary dim=16,32,64"
        )
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise BadInput(f"--vary {vary}: {twice[0]} is there twice")
    return field.strip(), values


def _check_varied(
    vary: str, field: str, bases: Sequence[Design], varied: Sequence[Protocol]
) -> None:
    """Raise `BadInput` where two values are equal, or a method has an exception for the field."""
    if len({one.fingerprint for one in varied}) < len(varied):
        raise BadInput(f"--vary {vary}: two of these values are the same; name each once")
    for design in bases:
        if field in ("sampler", "refresh") and design.method.sampler is not None:
            raise BadInput(
                f"--vary {vary}: {design.method.name} draws its batches by a sampler of its own,"
                f" {design.method.sampler}; leave that method out"
            )
        for own in design.conditions.exceptions:
            if f"{own}.".startswith(f"{field}.") or f"{field}.".startswith(f"{own}."):
                raise BadInput(
                    f"--vary {vary}: {design.conditions.protocol.name} has a {own} of its own for"
                    f" {design.method.name}; leave that method out"
                )


def _names(designs: Sequence[Design]) -> list[str]:
    return [design.method.name for design in designs]


def _designs_at(
    protocol: Protocol, point: SweepPoint, bases: Sequence[Design], store: Store
) -> list[Design]:
    """Return the designs at one value, for the methods whose studies selected parameters."""
    chosen = {design.method.name: (design.key, _selected(design, store)) for design in bases}
    designs = design_methods(replace(bases[0].conditions, protocol=protocol), _names(bases))
    return [
        replace(
            design,
            given=GivenParameters(parameters, SelectedBy(base)),
            point=replace(point, base=base),
        )
        for design in designs
        for base, parameters in [chosen[design.method.name]]
        if parameters is not None
    ]


def _selected(design: Design, store: Store) -> dict[str, Value] | None:
    """Return the choice of the search that validates best; None where a search had none."""
    record = read_record(store.study(design.key))
    assert record is not None and record.selections, "the base studies have been carried out"
    return None if record.selection is None else dict(record.selection.parameters or {})
