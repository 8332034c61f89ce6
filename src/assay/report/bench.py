"""`assay.bench`: a bench and its report in one call."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import BadInput
from assay.files import cache_folder
from assay.records.progress import Listener
from assay.records.store import Store
from assay.report.write import write_report

if TYPE_CHECKING:
    from assay.data import Dataset
    from assay.engines import Engine, EngineKind
    from assay.protocols import Protocol
    from assay.run import Keep


@dataclass(frozen=True)
class Benched:
    """The store of a bench, the studies of the bench, and its report."""

    out: Path
    studies: tuple[str, ...]
    report: Path


def bench(
    data: "str | Dataset" = "glyphs",
    methods: Sequence[str] = ("contrastive", "triplet", "multi_similarity", "normalized_softmax"),
    protocol: "str | Protocol" = "quick",
    out: str | Path = "assay-runs",
    *,
    workers: int | None = None,
    device: str = "auto",
    imports: Sequence[str] = (),
    engine: "EngineKind | Engine" = "local",
    address: str | None = None,
    keep_weights: "Keep" = "best",
    new_study: bool = False,
    control: str | None = None,
    reference: str | None = None,
    allow_leaks: bool = False,
    listener: Listener | None = None,
) -> Benched:
    """Compare methods on data under one protocol, and write the report.

    Run it again after any interruption: what is finished is not done again.

    Args:
        data: a name or kind:path (`assay list datasets`), or a `Dataset`.
        methods: names of methods (`assay list methods`), or ["all"]; `as_is` is always benched too.
        protocol: a name (`assay list protocols`), or a `Protocol`.
        out: the run store, made where there is none.
        workers: runs at a time; where not given, one for each GPU that runs are for, else for each
            core.
        device: auto, cpu or cuda.
        imports: files or modules that register your own methods.
        engine: where runs execute: `local` (processes of this machine), `ray` (a Ray cluster) or
            `inline` (this process, for a debugger), or an `Engine`, which has its own `workers`.
        address: of a running Ray cluster; one is started on this machine where it is not given.
        keep_weights: `all` keeps every checkpoint, whose scores on the opened test half tell the
            price of peeking.
        new_study: start a new study of each method, beside those that the store has.
        control: a method whose twin is benched beside it, with seeds of its own: an A/A control.
        reference: the method that every other is compared with; by default none up to ten trained
            methods; above that `contrastive`, or the first where it is not benched.
        allow_leaks: go on with data that have copies in both halves or conflicting labels, or with
            vectors of a model that was trained on the test half; they are refused otherwise.
        listener: is called with the progress; silent where not given.
    """
    # here, so that a report is written without waiting for torch
    from assay.engines import choose_engine
    from assay.study import Execution, run_bench

    if isinstance(engine, str):
        shared = (Path(out), cache_folder())
        engine = choose_engine(engine, workers, address, device, shared)
    elif workers is not None or address is not None:
        raise BadInput("workers and address are the engine's own; give them to its constructor")
    execution = Execution(
        engine,
        device,
        tuple(imports),
        keep_weights,
        listener or Listener(),
        allow_leaks,
    )
    with reporting_failure(Path(out)):
        done = run_bench(
            data,
            methods,
            protocol,
            Path(out),
            execution,
            new_study=new_study,
            control=control,
            reference=reference,
        )
    return Benched(done.out, done.studies, write_report(Store(done.out)))


@contextmanager
def reporting_failure(out: Path) -> Iterator[None]:
    """Write the report of the methods that completed where others failed for good."""
    from assay.study import MethodRefused

    try:
        yield
    except (RuntimeError, MethodRefused):
        with suppress(BadInput):  # of a damaged store; the first error says more
            write_report(Store(out))
        raise
