"""Where runs under way lie in a store: what they would need after a kill, and what is kept of every
validation.
"""

from collections.abc import Sequence

from assay.hashing import digest
from assay.model import Architecture
from assay.records.store import CHECKPOINTS, Keep, Store
from assay.run.run import Run
from assay.train import CheckpointFolder, Savepoint


class Workspace:
    """The place of one task's runs.

    Args:
        store: in which they will stand.
        keep: which weights stay.
        save_after: seconds of training after which its state is saved.
    """

    def __init__(self, store: Store, keep: Keep, save_after: float) -> None:
        self._store, self._keep, self._save_after = store, keep, save_after
        self._savepoints: list[Savepoint] = []

    @property
    def spent(self) -> float:
        """Seconds that runs taken up here had trained before."""
        return sum(savepoint.spent for savepoint in self._savepoints)

    def shelves(self, runs: Sequence[Run], architecture: Architecture) -> list[CheckpointFolder]:
        """Where the weights of every validation of these runs are kept; none where they are not."""
        folders = (
            [self._store.partial(run.key) / CHECKPOINTS for run in runs]
            if self._keep == "all"
            else []
        )
        return [CheckpointFolder(folder, architecture) for folder in folders]

    def savepoint(self, runs: Sequence[Run], shelves: Sequence[CheckpointFolder]) -> Savepoint:
        """Of runs that are trained as one: it lies with the last of them, which is placed last."""
        path = self._store.partial(runs[-1].key) / "state.safetensors"
        key = digest([[run.key for run in runs], self._keep])
        self._savepoints.append(Savepoint(path, key, shelves, self._save_after))
        return self._savepoints[-1]
