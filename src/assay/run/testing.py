"""What follows once a study's seal is open: vectors of the test half, and scores of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.data.arrays import pack_arrays
from assay.data.packs import View
from assay.data.seal import read_test
from assay.devices import torch_threads
from assay.embedding import embed_samples
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.methods import import_parts
from assay.model import WEIGHTS, Model, read_model
from assay.protocols import Similarity
from assay.records.ledger import Receipt
from assay.records.store import Store, place_file
from assay.run.scoring import HalfLabels, score, single_vectors
from assay.workers import Needs


@dataclass(frozen=True)
class Unsealed:
    """The opened test half as tasks get it: against the receipt of their study.

    Args:
        store: root of the run store.
        view: folder of the view.
        fingerprint: of the test half, under which its vectors are filed.
        receipt: of the study.
        trainval: fingerprint of the half that the study worked on.
        threads: torch threads of a task.
        device: cpu or cuda.
        imports: the user's own files.
    """

    store: str
    view: str
    fingerprint: str
    receipt: Receipt
    trainval: str
    threads: int
    device: str
    imports: tuple[str, ...] = ()

    def read(self) -> View:
        """The test half, if the receipt is good."""
        return read_test(Path(self.view), self.receipt, self.trainval)

    def vectors(self, key: str) -> Path:
        """Where the vectors of a run's model lie."""
        return Store(Path(self.store)).test_vectors(key, self.fingerprint)

    def embed(self, model: Model, half: View) -> Tensor:
        """Return the embeddings of the samples of the half by a model, as they are compared."""
        device, architecture = torch.device(self.device), model.architecture
        return embed_samples(
            model.to(device), half.x, architecture.size, device, architecture.similarity
        )


class OnTestHalf:
    """A task on the opened test half, and what it needs of the machine."""

    test: Unsealed

    @property
    def needs(self) -> Needs:
        """Cores, GPUs and imports that the task needs."""
        return Needs(self.test.threads, int(self.test.device == "cuda"), self.test.imports)


@dataclass(frozen=True)
class TestEmbedding(OnTestHalf):
    """The task of embedding the test half with a finished run's model; done when the vectors stand
    in its folder.
    """

    key: str
    test: Unsealed

    def __call__(self) -> None:
        """Compute and place the vectors, unless they are there."""
        path = self.test.vectors(self.key)
        if path.exists():
            return
        import_parts(self.test.imports)
        packed = BytesIO()
        with torch_threads(self.test.threads):
            z = self.test.embed(read_model(self._weights()), self.test.read())
        np.save(packed, z.numpy())
        place_file(path, packed.getvalue())

    def _weights(self) -> Path:
        """The run's weights; `BadInput` where they are not those that it ended with: no score may
        come of others.
        """
        store = Store(Path(self.test.store))
        folder = store.run(self.key)
        if digest_file(folder / WEIGHTS) != store.result(self.key)["weights"]:
            raise BadInput(
                f"{folder / WEIGHTS} was altered; remove the folder {folder} and run the same"
                " command again: that run is computed again, and nothing else"
            )
        return folder / WEIGHTS


@dataclass(frozen=True)
class Scoring(OnTestHalf):
    """The task of scoring one reproduction on the test half from the vectors of its runs."""

    keys: tuple[str, ...]
    dim: int
    metrics: tuple[str, ...]
    similarity: Similarity
    test: Unsealed

    @property
    def needs(self) -> Needs:
        """Cores and imports that the task needs; no GPU, since neighbours are found on the CPU."""
        return replace(super().needs, gpus=0)

    def __call__(self) -> tuple[dict[str, Any], bytes]:
        """Return concatenated and separated scores and those of each fold, with the hashes of the
        vectors they come from.

        Beside them, as the content of a file, the MAP@R of each class.
        """
        paths = [self.test.vectors(key) for key in self.keys]
        vectors, answers = [np.load(path) for path in paths], HalfLabels.of(self.test.read())
        with torch_threads(self.test.threads):
            scores, by_class = score(vectors, answers, self.dim, self.metrics, self.similarity)
        return {**scores, "vectors": [digest_file(path) for path in paths]}, pack_arrays(by_class)


@dataclass(frozen=True)
class CheckpointScoring(OnTestHalf):
    """The task of scoring single checkpoints of a run on the test half: what choosing among them
    there would have given.

    Args:
        key: of the run, which kept the weights of every validation.
        dim: width of a single model's vectors.
        test: the opened test half.
        epochs: which checkpoints; None: all.
    """

    key: str
    dim: int
    test: Unsealed
    epochs: tuple[int, ...] | None = None

    def __call__(self) -> dict[int, float]:
        """MAP@R by epoch, 0 where a checkpoint gives no finite embedding; no vectors are left
        behind.
        """
        import_parts(self.test.imports)
        half = self.test.read()
        kept = Store(Path(self.test.store)).checkpoints(self.key)
        with torch_threads(self.test.threads):
            return {epoch: self._map_at_r(kept[epoch], half) for epoch in self._wanted(list(kept))}

    def _wanted(self, kept: Sequence[int]) -> Sequence[int]:
        """The epochs to score; `FileNotFoundError` where the run did not keep them."""
        wanted = kept if self.epochs is None else self.epochs
        missing = sorted(set(wanted) - set(kept))
        if missing or not wanted:
            raise FileNotFoundError(
                f"run {self.key} has kept no weights of epoch {missing[0] if missing else 0}; train"
                " it with keep='all'"
            )
        return wanted

    def _map_at_r(self, weights: Path, half: View) -> float:
        model = read_model(weights)
        similarity = model.architecture.similarity
        z = single_vectors(self.test.embed(model, half), self.dim, similarity)
        return (
            HalfLabels.of(half).evaluate(z, ["map_at_r"], similarity)["map_at_r"]
            if torch.isfinite(z).all()
            else 0.0
        )
