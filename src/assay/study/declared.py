"""Declaring a bench: which methods will be compared with one another, before any of them runs."""

from collections.abc import Sequence

from assay.errors import BadInput
from assay.hashing import pretty
from assay.records.benches import DeclaredBench, declared_benches
from assay.records.keys import bench_key
from assay.records.store import Store, place_file
from assay.records.study import study_records
from assay.study.design import Design

ALL_PAIRS = 10
"""Trained methods up to which every pair is compared: above, the number of pairs would leave no
power.
"""

OLDEST = "contrastive"
"""The oldest loss of the field: what other methods are compared with where there are many and none
is named.
"""


def declare(store: Store, designs: Sequence[Design], reference: str | None = None) -> DeclaredBench:
    """Write the declaration of a bench, unless it is there, and return it."""
    trained, reference = trained_of(designs), reference_of(designs, reference)
    studies = [design.key for design in designs]
    known = {bench.key: bench for bench in declared_benches(store)}
    if bench_key(studies, reference) in known:
        return known[bench_key(studies, reference)]
    protocol = designs[0].preregistration.protocol
    question, trainval = protocol.question, designs[0].conditions.trainval.fingerprint
    alike = [
        bench
        for bench in known.values()
        if (bench.question, bench.trainval) == (question, trainval)
    ]
    opened = {record.key for record in study_records(store) if record.seal is not None}
    own = dict(zip((design.name for design in designs), studies, strict=True))
    before = [
        bench
        for bench in alike
        if opened & set(bench.studies) or bench.is_another_try(protocol.fingerprint, own)
    ]
    bench = DeclaredBench(
        studies=tuple(studies),
        methods=tuple(design.name for design in designs),
        trained=tuple(trained),
        protocol=protocol.fingerprint,
        question=question,
        trainval=trainval,
        reference=reference,
        look=1 + max((bench.look for bench in before), default=0),
        after=tuple(sorted({key for bench in before for key in bench.studies})),
    )
    place_file(store.bench(bench.key), pretty(bench.to_json()).encode())
    return bench


def trained_of(designs: Sequence[Design]) -> list[str]:
    """Return the names of the methods that are trained."""
    return [design.name for design in designs if design.method.loss is not None]


def reference_of(designs: Sequence[Design], wanted: str | None) -> str | None:
    """Return the method that all others are compared with: the wanted one; else above ten methods
    `contrastive` or the first.
    """
    trained = [
        design.name for design in designs if design.method.loss is not None and not design.twin
    ]
    if wanted is not None and wanted not in trained:
        raise BadInput(
            f"--reference {wanted}: name a trained method of this bench:"
            f" {', '.join(trained) or 'none is'}"
        )
    if wanted is not None or len(trained) <= ALL_PAIRS:
        return wanted
    return OLDEST if OLDEST in trained else trained[0]
