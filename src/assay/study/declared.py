"""Benches as they were declared: which methods are compared with one another, and what had been
seen before.

A declaration is written before the first line of any of its studies and never changes. Verdicts
take from it how many comparisons were planned, shorter views included, and how many looks at the
test half came before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.errors import BadInput
from assay.files import read_json
from assay.hashing import digest, pretty
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


@dataclass(frozen=True)
class Declared:
    """One bench as declared.

    Args:
        studies: keys of its studies.
        methods: names of their methods, in the same order, baselines and twins included.
        trained: those of the methods that are trained; the others are baselines.
        protocol: fingerprint of the protocol.
        question: the same without the numbers of searches and reproductions, the seed and the
            smallest difference that matters: another choice of these asks the same question.
        trainval: fingerprint of the data.
        reference: the trained method that all others are compared with; None: every pair is
            compared.
        look: 1, or one more than that of the benches on the same question that came before: opened
            ones, and those with another number of searches, seed or generation, whether they were
            opened or not.
        after: keys of the studies of those benches.
    """

    studies: tuple[str, ...]
    methods: tuple[str, ...]
    trained: tuple[str, ...]
    protocol: str
    question: str
    trainval: str
    reference: str | None
    look: int
    after: tuple[str, ...]

    @property
    def key(self) -> str:
        """Content address: the same bench declared again has the same key."""
        return key_of_bench(self.studies, self.reference)


def key_of_bench(studies: Sequence[str], reference: str | None) -> str:
    """Return the key of the bench of these studies.

    | ingredient | effect |
    | --- | --- |
    | keys of the studies, in order | another method, protocol, data set or generation: another bench |
    | reference | other pairs are compared |
    """
    return digest([list(studies), reference])


def declare(store: Store, designs: Sequence[Design], reference: str | None = None) -> Declared:
    """Write the declaration of a bench, unless it is there, and return it."""
    trained, reference = trained_of(designs), reference_of(designs, reference)
    studies = [design.key for design in designs]
    known = {bench.key: bench for bench in declared(store)}
    if key_of_bench(studies, reference) in known:
        return known[key_of_bench(studies, reference)]
    protocol = designs[0].preregistration["protocol"]
    question, trainval = protocol["question"], designs[0].conditions.trainval.fingerprint
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
        if opened & set(bench.studies) or _is_another_try(bench, protocol["fingerprint"], own)
    ]
    bench = Declared(
        studies=tuple(studies),
        methods=tuple(design.name for design in designs),
        trained=tuple(trained),
        protocol=protocol["fingerprint"],
        question=question,
        trainval=trainval,
        reference=reference,
        look=1 + max((bench.look for bench in before), default=0),
        after=tuple(sorted({key for bench in before for key in bench.studies})),
    )
    place_file(store.bench(bench.key), pretty(bench).encode())
    return bench


def _is_another_try(bench: Declared, protocol: str, own: Mapping[str, str]) -> bool:
    """Whether a bench asks the same question with other numbers or seeds, or is another generation
    of the same studies.
    """
    theirs = dict(zip(bench.methods, bench.studies, strict=True))
    return bench.protocol != protocol or any(
        key != theirs.get(name, key) for name, key in own.items()
    )


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


def declared(store: Store) -> list[Declared]:
    """Return every bench that was declared in a store, by key."""
    return [read_declared(store, key) for key in store.benches()]


def read_declared(store: Store, key: str) -> Declared:
    """Return one declaration; raise `BadInput` where its file cannot be read or is not what its
    name says.
    """
    path = store.bench(key)
    try:
        document: dict[str, Any] = read_json(path)
        said: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
        }
        found = Declared(**said)
        sound = (
            found.key == key
            and len(found.methods) == len(found.studies)
            and set(found.trained) <= set(found.methods)
        )
    except (OSError, ValueError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise BadInput(
            f"{path} was altered: it is not the declaration of a bench. Restore it, or give another"
            " --out"
        )
    return found


def in_turn(benches: Iterable[Declared]) -> list[Declared]:
    """Return benches with looks that no two tries at one question share, as they may after stores
    were merged.
    """
    found: list[Declared] = []
    for bench in sorted(benches, key=lambda one: (one.look, one.key)):
        rivals = [
            other.look
            for other in found
            if (other.question, other.trainval) == (bench.question, bench.trainval)
            and _is_another_try(
                other, bench.protocol, dict(zip(bench.methods, bench.studies, strict=True))
            )
        ]
        found.append(replace(bench, look=max(bench.look, 1 + max(rivals, default=0))))
    return found


def looks_of(benches: Iterable[Declared]) -> dict[str, int]:
    """Return the look at which each study was declared first, by its key."""
    looks: dict[str, int] = {}
    for bench in benches:
        for key in bench.studies:
            looks[key] = min(looks.get(key, bench.look), bench.look)
    return looks
