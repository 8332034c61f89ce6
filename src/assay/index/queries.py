"""Queries: what is searched for, its name, and its embedding as stored vectors are."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.dataset import Vectors
from assay.data.given import IN_MEMORY, Given, GivenSamples, find_samples
from assay.errors import BadInput
from assay.index.manifest import IndexedModel, Manifest
from assay.index.samples import FILES_OF_VECTORS, find_tree, find_vectors
from assay.index.scoring import prepare
from assay.progress import Progress


def find_queries(
    queries: Given | GivenSamples,
    model: IndexedModel,
    progress: Progress,
    *,
    skip_broken: bool = False,
) -> GivenSamples:
    """Return samples to search for, of the kind that a model takes; of a folder, all below it."""
    if isinstance(queries, GivenSamples):
        return queries
    if isinstance(queries, str | os.PathLike):
        path = Path(queries).expanduser()
        if model.takes == "vectors" and path.suffix.lower() in FILES_OF_VECTORS:
            return find_vectors(path)
        if model.takes == "images" and path.is_dir():
            return find_tree(path, model.inputs, progress, skip_broken=skip_broken)
    return find_samples(queries, model.takes, model.inputs, progress, skip_broken=skip_broken)


def names_of(given: GivenSamples) -> list[str]:
    """Return a name for each query: of files their paths as given."""
    ids = given.arrays.get("ids")
    if ids is not None:
        return [str(one) for one in ids.tolist()]
    if given.called == IN_MEMORY and given.count == 1:
        return ["query"]
    return [f"query {row}" for row in range(given.count)]


def prepared_queries(z: Vectors, manifest: Manifest) -> NDArray[Any]:
    """Return embeddings as the stored vectors of an index are, to be compared with them.

    Raise `BadInput` where they are of another width, or hold NaN or infinity.
    """
    z = np.atleast_2d(np.asarray(z))
    packed = z.dtype == np.uint8 and manifest.similarity == "hamming"
    wanted = manifest.width if packed else manifest.model.dim
    if z.shape[1] != wanted:
        raise BadInput(
            f"a query has {z.shape[1]} numbers, the vectors of the index have {wanted}; embed it"
            f" with the model of the index ({manifest.model.name})"
        )
    if not packed and not np.isfinite(z).all():
        raise BadInput("a query holds NaN or infinity, which is similar to nothing; remove it")
    return z if packed else prepare(z, manifest.similarity)
