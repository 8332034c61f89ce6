"""Benches as they were declared: which methods are compared with one another, and what had been
seen before.

A declaration is written before the first line of any of its studies and never changes. Verdicts
take from it how many comparisons were planned, shorter views included, and how many looks at the
test half came before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from assay.errors import BadInput
from assay.records.codec import Document
from assay.records.keys import bench_key
from assay.records.store import Store

AS_IS = "as_is"
"""Name of the baseline that every bench has: the samples as they are before any training."""

TWIN = ".twin"
"""Suffix of the name of a control twin: a method studied once more, with seeds of its own."""


@dataclass(frozen=True)
class DeclaredBench(Document):
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
        return bench_key(self.studies, self.reference)

    def is_another_try(self, protocol: str, studies: Mapping[str, str]) -> bool:
        """Return whether a bench of these studies, keys by method, tries this one's question again.

        It does with other numbers or seeds, or as another generation of the same studies.
        """
        own = dict(zip(self.methods, self.studies, strict=True))
        return self.protocol != protocol or any(
            key != own.get(name, key) for name, key in studies.items()
        )


def declared_benches(store: Store) -> list[DeclaredBench]:
    """Return every bench that was declared in a store, by key."""
    return [read_bench(store, key) for key in store.benches()]


def read_bench(store: Store, key: str) -> DeclaredBench:
    """Return one declaration; raise `BadInput` where its file is not what its name says."""
    path = store.bench(key)
    bench = DeclaredBench.read(path)
    if (
        bench.key != key
        or len(bench.methods) != len(bench.studies)
        or not set(bench.trained) <= set(bench.methods)
    ):
        raise BadInput(
            f"{path} was altered: it is not the declaration of a bench. Restore it, or give another"
            " --out"
        )
    return bench


def in_turn(benches: Iterable[DeclaredBench]) -> list[DeclaredBench]:
    """Return benches with looks that no two tries at one question share.

    After stores were merged two tries may have the same look: the later key gets the next one.
    """
    found: list[DeclaredBench] = []
    for bench in sorted(benches, key=lambda one: (one.look, one.key)):
        own = dict(zip(bench.methods, bench.studies, strict=True))
        rivals = [
            other.look
            for other in found
            if (other.question, other.trainval) == (bench.question, bench.trainval)
            and other.is_another_try(bench.protocol, own)
        ]
        found.append(replace(bench, look=max(bench.look, 1 + max(rivals, default=0))))
    return found


def looks_of(benches: Iterable[DeclaredBench]) -> dict[str, int]:
    """Return the look at which each study was declared first, by its key."""
    looks: dict[str, int] = {}
    for bench in benches:
        for key in bench.studies:
            looks[key] = min(looks.get(key, bench.look), bench.look)
    return looks
