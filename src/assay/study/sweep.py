"""A sweep: the parameters that studies have selected, run again over the values of one field of the
protocol.
"""

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
    check_data,
    design_bench,
    design_in,
    driving,
    in_generation,
)
from assay.study.declared import declare
from assay.study.design import Design

OF_THE_SEARCH = ("searches", "search", "trials", "trial_folds", "startup", "prune")
"""Fields that only a search depends on."""


@dataclass(frozen=True)
class Swept:
    """What was swept, and where.

    Args:
        out: the store.
        bases: keys of the studies that selected the parameters.
        studies: keys of those at the values.
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
    """Search and select under the protocol, where the store has not done so yet; then reproduce and
    test at each value.

    `vary` is `field=value,value,...`. The parameters are chosen once, on validation folds, under
    the protocol as it is; every value then has a study of its own, whose seal opens when its
    reproductions are complete. Nothing goes back from there.
    """
    field, values = read_values(vary)
    import_parts(execution.imports)
    dataset = load(data, execution.listener.progress) if isinstance(data, str) else data
    bases = design_bench(dataset, names, protocol, execution.device, execution.imports)
    varied = [customise(bases[0].conditions.protocol, [f"{field}={value}"]) for value in values]
    _check_varied(vary, field, bases, varied)
    for one in varied:
        splits.of(dataset, one)
        design_in(replace(bases[0].conditions, protocol=one), names_of(bases))
    check_data(bases, execution)
    with driving(out, execution) as (store, engine):
        bases = [in_generation(design, store) for design in bases]
        declare(store, bases)
        carry_out(bases, store, engine, execution)
        points = [
            point
            for one, value in zip(varied, values, strict=True)
            for point in _designs_at(
                one,
                SweepPoint(field, value, tuple(values), "", bases[0].conditions.protocol.name),
                bases,
                store,
            )
        ]
        carry_out(points, store, engine, execution)
    return Swept(out, tuple(design.key for design in bases), tuple(design.key for design in points))


def read_values(vary: str) -> tuple[str, list[str]]:
    """The field and its values.

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
    """Raise `BadInput` where two values are one, or a method has a value of its own."""
    if len({one.fingerprint for one in varied}) < len(varied):
        raise BadInput(f"--vary {vary}: two of these values are the same; name each once")
    for design in bases:
        for own in design.conditions.exceptions:
            if f"{own}.".startswith(f"{field}.") or f"{field}.".startswith(f"{own}."):
                raise BadInput(
                    f"--vary {vary}: {design.conditions.protocol.name} has a {own} of its own for"
                    f" {design.method.name}; leave that method out"
                )


def names_of(designs: Sequence[Design]) -> list[str]:
    """Of their methods."""
    return [design.method.name for design in designs]


def _designs_at(
    protocol: Protocol, point: SweepPoint, bases: Sequence[Design], store: Store
) -> list[Design]:
    """The designs at one value: of those methods for which something was selected."""
    chosen = {design.method.name: (design.key, _selected(design, store)) for design in bases}
    designs = design_in(replace(bases[0].conditions, protocol=protocol), names_of(bases))
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
    """What the search that validates best has selected; None where a search of the study had
    nothing to select.
    """
    record = read_record(store.study(design.key))
    assert record is not None and record.selections, "the base studies have been carried out"
    return None if record.selection is None else dict(record.selection.parameters or {})
