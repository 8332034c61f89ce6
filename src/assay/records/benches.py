"""Benches as they were announced: which methods are compared with one another, under which
announcements, on which test half, and what had been seen before.

A bench is announced before the first line of any of its studies, under one hash, and never changes.
The hash commits to the preregistration of every study (space, budget, settings, source) and, by a
salted hash, to the test half. Each announcement names those before it, so that none can be removed
from under a later one. Verdicts take from it how many comparisons were planned, shorter views
included, and how many looks at the test half came before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.errors import BadInput
from assay.hashing import digest
from assay.records.codec import Document
from assay.records.keys import bench_key, commitment_to
from assay.records.reported import Extent
from assay.records.store import Store

AS_IS = "as_is"
"""Name of the baseline that every bench has: the samples as they are before any training."""

TWIN = ".twin"
"""Suffix of the name of a control twin: a method studied once more, with seeds of its own."""


@dataclass(frozen=True)
class DeclaredBench(Document):
    """One bench as announced.

    Args:
        studies: keys of its studies.
        announcements: hash of the preregistration of each study, in the same order.
        methods: names of their methods, in the same order, baselines and twins included.
        trained: those of the methods that are trained; the others are baselines.
        protocol: fingerprint of the protocol.
        question: the same without the numbers of searches and reproductions, the seed and the
            smallest difference that matters: another choice of these asks the same question.
        trainval: fingerprint of the half that studies work on.
        test: commitment to the test half, see `assay.records.keys.commitment_to`.
        reference: the trained method that all others are compared with; None: every pair is
            compared.
        look: 1, or one more than that of the benches on the same question that came before: opened
            ones, and those with another number of searches, seed or generation, whether they were
            opened or not.
        after: keys of the studies of those benches.
        previous: hashes of the benches announced before in the store that no other one names.
        sweep: `field=value` where the studies are one point of a sweep, which no verdict compares.
    """

    studies: tuple[str, ...]
    announcements: tuple[str, ...]
    methods: tuple[str, ...]
    trained: tuple[str, ...]
    protocol: str
    question: str
    trainval: str
    test: str
    reference: str | None
    look: int
    after: tuple[str, ...]
    previous: tuple[str, ...]
    sweep: str | None = None

    @property
    def key(self) -> str:
        """What the bench compares: the same studies and pairs announced again have the same key."""
        return bench_key(self.studies, self.reference)

    @property
    def hash(self) -> str:
        """The hash to publish: of everything that the bench announces. It is the file's name."""
        return digest(self.to_json())

    @property
    def members(self) -> dict[str, str]:
        """Key of the study of each method."""
        return dict(zip(self.methods, self.studies, strict=True))

    def commits_to(self, test: str, salts: Sequence[str]) -> bool:
        """Return whether a test half, by its fingerprint, is the one that was announced."""
        return any(commitment_to(salt, test) == self.test for salt in salts)

    def is_another_try(self, protocol: str, studies: Mapping[str, str]) -> bool:
        """Return whether a bench of these studies, keys by method, tries this one's question again.

        It does with other numbers or seeds, or as another generation of the same studies.
        """
        return self.protocol != protocol or any(
            key != self.members.get(name, key) for name, key in studies.items()
        )


def declared_benches(store: Store, extent: Extent | None = None) -> list[DeclaredBench]:
    """Return every bench that was announced in a store, by hash; with an extent, those by then."""
    hashes = store.benches() if extent is None else extent.benches
    return [read_bench(store, hash_) for hash_ in hashes]


def read_bench(store: Store, hash_: str) -> DeclaredBench:
    """Return one announcement; raise `BadInput` where its file is not what its name says."""
    path = store.bench(hash_)
    bench = DeclaredBench.read(path)
    if (
        bench.hash != hash_
        or not len(bench.methods) == len(bench.studies) == len(bench.announcements)
        or not set(bench.trained) <= set(bench.methods)
    ):
        raise BadInput(
            f"{path} was altered: it is not the announcement of a bench. Restore it, or give"
            " another --out"
        )
    return bench


def latest_of(benches: Iterable[DeclaredBench]) -> tuple[str, ...]:
    """Return the hashes of the benches that no other one names as announced before it."""
    found = {bench.hash: bench for bench in benches}
    named = {hash_ for bench in found.values() for hash_ in bench.previous}
    return tuple(sorted(set(found) - named))


def announced_before(
    bench: DeclaredBench, benches: Iterable[DeclaredBench]
) -> dict[str, DeclaredBench]:
    """Return the benches announced before this one, by hash, back to the first."""
    by_hash, found = {one.hash: one for one in benches}, dict[str, DeclaredBench]()
    waiting = [*bench.previous]
    while waiting:
        hash_ = waiting.pop()
        if hash_ in by_hash and hash_ not in found:
            found[hash_] = by_hash[hash_]
            waiting += by_hash[hash_].previous
    return found


def absent_studies(store: Store, extent: Extent) -> list[tuple[DeclaredBench, list[str]]]:
    """Return the benches of which studies were announced and are not there, with their methods."""
    found = [
        (bench, [name for name, key in bench.members.items() if key not in extent.studies])
        for bench in declared_benches(store, extent)
    ]
    return [(bench, missing) for bench, missing in found if missing]


def in_turn(benches: Iterable[DeclaredBench]) -> list[DeclaredBench]:
    """Return each bench once, with looks that no two tries at one question share.

    After stores were merged a bench may have been announced in both: the later look counts. Two
    tries may have the same look: the later key gets the next one.
    """
    found: list[DeclaredBench] = []
    once = {bench.key: bench for bench in sorted(benches, key=lambda one: (one.look, one.after))}
    for bench in sorted(once.values(), key=lambda one: (one.look, one.key)):
        rivals = [
            other.look
            for other in found
            if (other.question, other.trainval) == (bench.question, bench.trainval)
            and other.is_another_try(bench.protocol, bench.members)
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
