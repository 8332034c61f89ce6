"""The model of a finished run, validated once more."""

from dataclasses import dataclass
from pathlib import Path

import torch

from assay.data.packs import read_pack
from assay.devices import torch_threads
from assay.embedding import embed_samples
from assay.methods import import_parts
from assay.metrics import evaluate
from assay.model import read_model
from assay.records.run import WEIGHTS, Run
from assay.records.store import Store
from assay.run.closed_form import folds_of_run
from assay.workers import Needs


@dataclass(frozen=True)
class Validation:
    """The task of validating the weights of a trained run on the fold that it held out.

    Args:
        key: of the run.
        store: root of the run store.
        view: folder of the view of trainval.
        threads: torch threads of the task.
        device: cpu or cuda.
        imports: the user's own files.
    """

    key: str
    store: str
    view: str
    threads: int
    device: str
    imports: tuple[str, ...] = ()

    @property
    def needs(self) -> Needs:
        """Cores, GPUs and imports that the task needs."""
        return Needs(self.threads, int(self.device == "cuda"), self.imports)

    def __call__(self) -> float:
        """Return MAP@R, 0 if an embedding is not finite."""
        import_parts(self.imports)
        folder, view = Store(Path(self.store)).run(self.key), read_pack(Path(self.view))
        run, device = Run.read(folder / "config.json"), torch.device(self.device)
        model, similarity = read_model(folder / WEIGHTS).to(device), run.protocol.similarity
        [fold] = folds_of_run(run, view)
        samples = view.rows(fold.validation)
        with torch_threads(self.threads):
            z = embed_samples(model, samples.x, model.architecture.size, device, similarity)
            if not torch.isfinite(z).all():
                return 0.0
            return evaluate(z, samples.y, ["map_at_r"], similarity=similarity)["map_at_r"]
