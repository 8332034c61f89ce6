"""An index checked whole, every byte of it."""

from pathlib import Path

import numpy as np

from assay.index.index import Index
from assay.index.manifest import damaged_files, read_manifest


def problems_of(path: str | Path) -> list[str]:
    """Check an index whole, every byte of it; return what is wrong."""
    root = Path(path)
    manifest = read_manifest(root)
    found = damaged_files(root, manifest)
    if found:
        return found
    with Index(root, manifest, "torch", "cpu") as index:
        found = index.catalog.check()
        rows = np.array([row for row, _, _ in index.catalog.images()], dtype=np.int64)
        alive = np.arange(manifest.rows) if index.alive is None else np.flatnonzero(index.alive)
        if not np.array_equal(rows, alive) or len(rows) != manifest.count:
            found.append(f"{root}: the catalog names other rows than can be found")
        for place, block in index.vectors.blocks():
            if not np.isfinite(block).all():
                found.append(
                    f"{root}: a vector of rows {place.start} to {place.stop} is not finite"
                )
    return found
