"""`assay.bench`: a bench and its report in one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.data import Dataset
from assay.protocol import Protocol
from assay.report.write import write_report
from assay.store import Store
from assay.study import Listener, run_bench


@dataclass(frozen=True)
class Benched:
    """Where a bench was kept, which studies it consists of, and its report."""

    out: Path
    studies: tuple[str, ...]
    report: Path


def bench(
    data: str | Dataset = "glyphs",
    methods: Sequence[str] = ("contrastive", "triplet", "multi_similarity", "normalized_softmax"),
    protocol: str | Protocol = "quick",
    out: str | Path = "assay-runs",
    *,
    workers: int | None = None,
    device: str = "auto",
    imports: Sequence[str] = (),
    listener: Listener | None = None,
) -> Benched:
    """Compare methods on data under one protocol, and write the report.

    Run it again after any interruption: what is finished is not done again.

    Args:
        data: a name or kind:path (`assay list datasets`), or a `Dataset`.
        methods: names of methods (`assay list methods`), or ["all"].
        protocol: a name (`assay list protocols`), or a `Protocol`.
        out: the run store, made where there is none.
        workers: processes at work; as many as there are cores where not given.
        device: auto, cpu or cuda.
        imports: files or modules that register your own methods.
        listener: hears of the progress; silent where not given.
    """
    try:
        done = run_bench(data, methods, protocol, Path(out), workers=workers, device=device, imports=imports, listener=listener)
    except RuntimeError:  # a task failed for good: the methods that came through have their report all the same
        write_report(Store(Path(out)))
        raise
    return Benched(done.out, done.studies, write_report(Store(done.out)))
