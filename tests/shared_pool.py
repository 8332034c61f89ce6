"""One pool of worker processes for all benches of a test session: a start takes seconds."""

from assay.engines import LocalEngine, WorkerPool

POOL = WorkerPool(keep=2, ignore=("PYTEST_CURRENT_TEST",))


def local(workers=2):
    return LocalEngine(workers, pool=POOL)
