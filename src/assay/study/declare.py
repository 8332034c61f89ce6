"""The announcement of a bench, before its first run: which methods are compared, under which
preregistrations, on which test half.
"""

from collections.abc import Sequence

from assay.errors import BadInput
from assay.hashing import pretty
from assay.records.benches import DeclaredBench, declared_benches, latest_of
from assay.records.keys import bench_key
from assay.records.ledger import START, hash_of, read
from assay.records.store import Store, place_file
from assay.records.study import study_records
from assay.study.design import Design

ALL_PAIRS = 10
"""Number of trained methods up to which every pair is compared; more pairs would leave no power."""

OLDEST = "contrastive"
"""The oldest loss of the field: the reference where there are many methods and none is named."""


def declare(
    store: Store,
    designs: Sequence[Design],
    reference: str | None = None,
    sweep: str | None = None,
) -> DeclaredBench:
    """Write the announcement of a bench, unless it is there, and return it.

    Raise `BadInput` where one of its studies was announced with another test half.
    """
    reference = reference_of(designs, reference)
    own = {design.name: design.key for design in designs}
    announcements = [announced_hash(design, store) for design in designs]
    known = declared_benches(store)
    check_test_half(known, designs, store)
    for bench in known:
        if bench.key == bench_key([*own.values()], reference) and (
            list(bench.announcements) == announcements
        ):
            return bench
    protocol = designs[0].preregistration.protocol
    question, trainval = protocol.question, designs[0].conditions.trainval.fingerprint
    alike = [
        bench
        for bench in known
        if (bench.question, bench.trainval, bench.sweep) == (question, trainval, sweep)
    ]
    opened = {record.key for record in study_records(store) if record.seal is not None}
    before = [
        bench
        for bench in alike
        if opened & set(bench.studies) or bench.is_another_try(protocol.fingerprint, own)
    ]
    bench = DeclaredBench(
        studies=tuple(own.values()),
        announcements=tuple(announcements),
        methods=tuple(own),
        trained=tuple(design.name for design in designs if not design.method.baseline),
        protocol=protocol.fingerprint,
        question=question,
        trainval=trainval,
        test=designs[0].conditions.test.commitment(store.salts[0]),
        reference=reference,
        look=1 + max((bench.look for bench in before), default=0),
        after=tuple(sorted({key for bench in before for key in bench.studies})),
        previous=latest_of(known),
        sweep=sweep,
    )
    place_file(store.bench(bench.hash), pretty(bench.to_json()).encode())
    return bench


def announced_hash(design: Design, store: Store) -> str:
    """Return the hash of the first line of a study, which it has or will have."""
    path = store.study(design.key) / "ledger.jsonl"
    lines = read(path) if path.exists() else []
    body = design.preregistration.to_json()
    return lines[0].hash if lines else hash_of(0, "preregistration", body, START)


def check_test_half(
    known: Sequence[DeclaredBench], designs: Sequence[Design], store: Store
) -> None:
    """Raise `BadInput` where a bench announced one of these studies with another test half."""
    for bench in known:
        shared = [design.called for design in designs if design.key in bench.studies]
        if shared and not bench.commits_to(designs[0].conditions.test.fingerprint, store.salts):
            raise BadInput(
                f"{store.root}: the test half of {designs[0].conditions.data.name} is not the one"
                f" that was announced with {', '.join(shared)} (bench {bench.hash[:12]}). Put the"
                " data back, start new studies with --new-study (the old ones stay in the record),"
                " or give another --out"
            )


def reference_of(designs: Sequence[Design], wanted: str | None) -> str | None:
    """Return the method that all others are compared with; None: every pair is compared.

    It is the wanted one, or above ten methods `contrastive` or the first.
    """
    trained = [design.name for design in designs if not (design.method.baseline or design.twin)]
    if wanted is not None and wanted not in trained:
        raise BadInput(
            f"--reference {wanted}: name a trained method of this bench:"
            f" {', '.join(trained) or 'none is'}"
        )
    if wanted is not None or len(trained) <= ALL_PAIRS:
        return wanted
    return OLDEST if OLDEST in trained else trained[0]


def announced_in_words(bench: DeclaredBench) -> str:
    """Return the line that tells the hash of a bench."""
    return (
        f"announced: {bench.hash} (publish it with a date before the results are known:"
        " `assay verify --anchor` then shows that they are those of this bench)"
    )
