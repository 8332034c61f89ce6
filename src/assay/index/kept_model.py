"""The copy of the model in an index, and the calibration that came with it."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import BadInput
from assay.files import names_in, new_folder
from assay.index.manifest import CALIBRATION, MODELS, Manifest
from assay.index.opening import open_calibration

if TYPE_CHECKING:
    from assay.embedder import Embedder

NOT_OF_THE_MODEL = ("onnx", CALIBRATION)
"""Names in a model folder that are not copied into an index."""


def keep_model(root: Path, embedder: "Embedder", print_: str) -> None:
    """Copy the model into the index, where it is not there already."""
    from assay.model import write_model_folder

    folder = root / MODELS / print_
    if folder.exists():
        return
    if embedder.folder is None:
        write_model_folder(folder, embedder.model, embedder.card)
        return
    with new_folder(folder) as draft:
        for name in names_in(embedder.folder):
            source = embedder.folder / name
            if name not in NOT_OF_THE_MODEL and source.is_file() and not source.is_symlink():
                shutil.copyfile(source, draft / name)


def keep_calibration(root: Path, embedder: "Embedder", manifest: Manifest) -> list[str]:
    """Copy the calibration of a model folder where the index has none, and remove one that is of
    other vectors; return what is to be said about it.
    """
    again = f"run `assay calibrate {root} --data DATA`"
    if (root / CALIBRATION).exists():
        try:
            why = "of other vectors"
            if open_calibration(root / CALIBRATION, manifest) is not None:
                return []
        except BadInput:
            why = "damaged"
        (root / CALIBRATION).unlink()
        return [f"the calibration was {why} and was removed; {again}"]
    if embedder.folder is None or not (embedder.folder / CALIBRATION).is_file():
        return []
    if open_calibration(embedder.folder / CALIBRATION, manifest) is None:
        return [
            f"the calibration of {embedder.folder} is not for vectors that are stored as"
            f" {manifest.precision}; {again}"
        ]
    shutil.copyfile(embedder.folder / CALIBRATION, root / CALIBRATION)
    return []
