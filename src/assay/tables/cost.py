"""What methods cost: the size of their models at test, and what their runs took.

The counts come from the results of the runs, and `assay verify` checks them. Seconds and memory are
what machines reported, so the table stands apart from those that are the same bytes on any machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from assay.protocols.protocol import bits_of
from assay.records.run import RunBudget
from assay.records.study import StudyRecord
from assay.tables.comparison import Comparison
from assay.tables.table import Table, named

Times = Mapping[str, tuple[int, float]]
"""Of each study, by key: the number of its runs whose time is known, and their seconds together."""

UNKNOWN = "unknown"


@dataclass(frozen=True)
class SizeAtTest:
    """How large the vectors of a method are at test, and the models that make them.

    Args:
        dims: numbers of a vector.
        bits: bits of a vector.
        parameters: numbers of all models that it takes, a frozen trunk counted once.
    """

    dims: int
    bits: int
    parameters: int


def single_size(comparison: Comparison, record: StudyRecord) -> SizeAtTest | None:
    """Return the size of a single model of a study, the median over reproductions; None where it
    was not counted.

    A baseline that stands for all folds is cut to the dims of a single model, and its model is
    counted whole.
    """
    found = _counted(comparison, record, (entry.key for entry in record.reproductions))
    if not found:
        return None
    protocol, whole = record.announced.protocol.resolved, _middle(one.dim for one in found)
    headless = record.announced.method.head == "none"
    dims = whole if headless else min(whole, protocol.dim or whole)
    parameters = _middle(one.parameters for one in found)
    return SizeAtTest(dims, bits_of(dims, protocol.similarity), parameters)


def ensemble_size(comparison: Comparison, record: StudyRecord) -> SizeAtTest | None:
    """Return the size of the ensemble that concatenated scores are of, the median over
    reproductions; None where it was not counted.
    """
    parts = [_counted(comparison, record, test.runs) for test in record.tests]
    whole = [
        found
        for found, test in zip(parts, record.tests, strict=True)
        if len(found) == len(test.runs)
    ]
    if not any(whole):
        return None
    return SizeAtTest(
        _middle(sum(one.dim for one in found) for found in whole),
        _middle(sum(one.bits for one in found) for found in whole),
        _middle(
            sum(one.parameters - one.shared for one in found) + found[0].shared for found in whole
        ),
    )


def ensembles_in_words(comparison: Comparison) -> str:
    """Return how large the vectors are that concatenated scores are of, beside those of single
    models; nothing where that was not counted.
    """
    by_size: dict[tuple[int, int, int, int], list[str]] = {}
    for record in comparison.records:
        single, whole = single_size(comparison, record), ensemble_size(comparison, record)
        if single and whole:
            sizes = whole.dims, whole.bits, single.dims, single.bits
            by_size.setdefault(sizes, []).append(record.method)
    if not by_size:
        return ""
    said = [
        f"{dims:,} dims ({bits:,} bits), a single one {own:,} dims ({own_bits:,} bits)"
        + (f" for {named(methods)}" if len(by_size) > 1 else "")
        for (dims, bits, own, own_bits), methods in by_size.items()
    ]
    return (
        "Concatenated scores are those of an ensemble of the models of all folds: its vector has "
        + "; ".join(said)
        + "."
    )


def costs(comparison: Comparison, times: Times, peaks: Mapping[str, int]) -> Table:
    """Return the table of what each method costs, studies under way included."""
    records = (*comparison.records, *comparison.unfinished)
    raw = [_cost(comparison, record, times, peaks) for record in records]
    return Table(
        name="cost",
        title="Cost",
        note=_note(comparison, records),
        groups=[
            ("", 1),
            ("Single model at test", 3),
            ("Concatenated at test", 3),
            ("A run", 4),
            ("The study", 5),
        ],
        columns=[
            "method",
            *("dims", "bits", "parameters") * 2,
            *("trained parameters", "images embedded", "seconds", "peak memory, MB"),
            *("searches", "trials", "reproduction runs", "runs in all", "compute, minutes"),
        ],
        rows=[[_cell(name, value) for name, value in row.items()] for row in raw],
        raw=raw,
    )


def _cost(
    comparison: Comparison, record: StudyRecord, times: Times, peaks: Mapping[str, int]
) -> dict[str, object]:
    runs = [entry.key for entry in record.run_entries()]
    counted = _counted(comparison, record, runs)
    timed, seconds = times.get(record.key, (0, 0.0))
    sizes = {
        "single": single_size(comparison, record),
        "concatenated": ensemble_size(comparison, record),
    }
    return {
        "method": record.method,
        **{
            f"{setting}_{part}": getattr(size, part) if size else None
            for setting, size in sizes.items()
            for part in ("dims", "bits", "parameters")
        },
        "trained_parameters": _middle(one.trained for one in counted) if counted else None,
        "images_embedded": _middle(one.images.embedded for one in counted) if counted else None,
        "seconds": seconds / timed if timed else None,
        "peak_memory": peaks.get(record.key),
        "searches": record.searches if record.searched else 0,
        "trials": len(record.trials),
        "reproduction_runs": len(record.reproductions),
        "runs": len(runs),
        "compute_seconds": float(seconds) if timed else None,
    }


def _cell(name: str, value: object) -> str:
    if value is None:
        return UNKNOWN
    if name == "compute_seconds" and isinstance(value, float):
        return f"{value / 60:,.1f}"
    if name == "peak_memory" and isinstance(value, int):
        return f"{value / 1e6:,.0f}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counted(comparison: Comparison, record: StudyRecord, keys: Iterable[str]) -> list[RunBudget]:
    """Return the budgets of these runs of a study, as far as they are known."""
    budgets = comparison.budgets.get(record.key, {})
    return [budgets[key] for key in keys if key in budgets]


def _middle(values: Iterable[int]) -> int:
    return median_low(list(values))


def _note(comparison: Comparison, records: Sequence[StudyRecord]) -> str:
    extracted = max(
        (
            one.images.extracted
            for record in records
            for one in comparison.budgets.get(record.key, {}).values()
        ),
        default=0,
    )
    frozen = (
        f" The frozen trunk embedded the {extracted:,} samples of trainval once, for all runs"
        " together; the images of a run are their features."
        if extracted
        else ""
    )
    return (
        "At test: medians over reproductions; concatenated, of the models of all folds together."
        " A run: medians over all runs of trained parameters and of images that went through the"
        " network, each time counted (training steps, memory bank, validations); the mean of"
        f" seconds, the largest memory.{frozen} Seconds of worker time and memory are as the"
        " machines reported them, which no check covers; heads that are trained together share"
        " both; test scoring not included. A bench with several workers takes less of the clock."
    )
