"""An index checked whole: every byte of its version, its model, its export and its calibration."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.index.calibration import Calibration
from assay.index.export.record import Export
from assay.index.index import Index
from assay.index.manifest import CALIBRATION, MODELS, Manifest, damaged_files, read_manifest
from assay.index.settings import settled_backend
from assay.records.run import WEIGHTS, read_card


def problems_of(path: str | Path) -> list[str]:
    """Check an index whole, every byte of it; return what is wrong."""
    root = Path(path)
    manifest = read_manifest(root)
    found = [*damaged_files(root, manifest), *_problems_of_model(root, manifest)]
    if (root / CALIBRATION).exists():
        try:
            Calibration.read(root / CALIBRATION)
        except BadInput as error:
            found.append(str(error))
    if found:
        return found
    try:
        return list(_problems_of_version(root, manifest))
    except BadInput as error:
        return [str(error)]


def _problems_of_version(root: Path, manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with catalog and vectors.

    No server is asked: the index of a stranger could name any. Instead of a structure that is on
    one, the vectors themselves are opened.
    """
    if settled_backend(manifest).is_remote:
        manifest = replace(manifest, backend="exact", settings={}, quality=None)
    with Index(root, manifest, "torch", "cpu") as index:
        yield from index.catalog.check()
        rows = np.array([row for row, _, _ in index.catalog.images()], dtype=np.int64)
        alive = np.arange(manifest.rows) if index.alive is None else np.flatnonzero(index.alive)
        if not np.array_equal(rows, alive) or len(rows) != manifest.count:
            yield f"{root}: the catalog names other rows than can be found"
        for place, _ in index.vectors.blocks():
            if not np.isfinite(index.vectors.rows[place]).all():
                yield f"{root}: a vector of rows {place.start} to {place.stop} is not finite"


def _problems_of_model(root: Path, manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with the files of the model, and of its export where there is one."""
    folder = root / MODELS / manifest.model.print
    try:
        card = read_card(folder)
        found = digest_file(folder / WEIGHTS)
    except (BadInput, OSError) as error:
        yield f"{folder} cannot be read as a model: {error}"
        return
    if not found == card.get("sha256") == manifest.model.print:
        yield f"{folder / WEIGHTS} is not the model that embedded the images"
    if (folder / "onnx").is_dir():
        try:
            known = Export.read_from(folder / "onnx").files
        except BadInput as error:
            yield str(error)
            return
        for name, file in known.items():
            path = folder / "onnx" / name
            if not path.is_file() or digest_file(path) != file.sha256:
                yield f"{path} is missing, or has other bytes than were written"
