"""Runs and test halves of a store computed again in an empty cache, each time in another one."""

from collections.abc import Collection, Iterator, Sequence

from assay import verify
from assay.engines import Engine
from assay.records.store import Store
from assay.records.study import readable_records


def rerun(
    store: Store,
    count: int,
    seed: int,
    engine: Engine,
    data: str | None = None,
    imports: Sequence[str] = (),
) -> Iterator[verify.Repeated]:
    """Compute runs of the store again."""
    with verify.Designs.in_empty_cache(data, imports) as designs:
        yield from verify.rerun(store, count, seed, engine, designs)


def retest(
    store: Store, engine: Engine, data: str | None = None, only: Collection[str] | None = None
) -> Iterator[verify.Finding]:
    """Embed the test half of the store again."""
    with verify.Designs.in_empty_cache(data) as designs:
        designs.check_data(readable_records(store))
        yield from verify.retest(store, engine, designs, only)
