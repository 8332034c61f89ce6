"""Embeddings of an update, kept in `.pending/` as they are computed.

An update that was cut short continues with what is there. Embeddings are known by the hash of the
model, which names their folder, and by the hash of the image.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.data.arrays import pack_arrays
from assay.data.dataset import Vectors
from assay.data.given import GivenSamples
from assay.errors import BadInput
from assay.files import names_in, write_atomically
from assay.index.samples import SamplesToIndex
from assay.npz import read_npz
from assay.progress import Progress

if TYPE_CHECKING:
    from assay.embedder import Embedder

CHUNK, VECTORS = 512, 65_536
"""Images, or vectors, that are embedded before they are kept: what an interruption costs at most.
"""


class Embedded:
    """Embeddings by the content of their samples, kept in a folder as they are computed."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self.computed = self.resumed = 0
        self._found: dict[str, Vectors] = {}
        self._files = 0
        for name in names_in(folder):
            with suppress(ValueError):
                arrays, _ = read_npz(folder / name, ["contents", "z"])
                if arrays["z"].shape == (len(arrays["contents"]), dim):
                    keys = [one.decode("ascii") for one in arrays["contents"].tolist()]
                    self._found.update(zip(keys, arrays["z"], strict=True))
            self._files += 1

    def __contains__(self, content: str) -> bool:
        return content in self._found

    def __getitem__(self, content: str) -> Vectors:
        return self._found[content]

    def add(self, contents: Sequence[str], z: Vectors) -> None:
        """Keep embeddings, so that they outlive an interruption."""
        arrays = {"contents": np.array([one.encode() for one in contents]), "z": z}
        write_atomically(self.folder / f"{self._files:06d}.npz", pack_arrays(arrays))
        self._files += 1
        self._found.update(zip(contents, z, strict=True))
        self.computed += len(contents)


def embed_missing(
    embedder: "Embedder",
    samples: SamplesToIndex,
    to_embed: Mapping[str, int],
    embedded: Embedded,
    progress: Progress,
) -> list[str]:
    """Embed samples that are not embedded yet; return what is to be said about looks.

    Looks are recorded first: what is embedded before an interruption was looked at.
    """
    from assay.evaluation import looked_at, looker_of, looking

    missing = {content: row for content, row in to_embed.items() if content not in embedded}
    embedded.resumed = len(to_embed) - len(missing)
    if not missing:
        return []
    rows = np.array(sorted(missing.values()), dtype=np.int64)
    given = samples.given.some(rows)
    contents = given.contents()
    looker = looker_of("assay index", embedder)
    with looking(looker, looked_at(looker, given)) as look:
        said = look.record({}, embedder.similarity)
        chunk = VECTORS if given.kind == "vectors" else CHUNK
        for start in range(0, given.count, chunk):
            part = np.arange(start, min(start + chunk, given.count))
            z = _embed_part(embedder, given.some(part), start, given.count, progress)
            embedded.add(contents[start : start + chunk], z)
        return said


def _embed_part(
    embedder: "Embedder", part: GivenSamples, start: int, total: int, progress: Progress
) -> Vectors:
    def report(stage: str, done: int, count: int) -> None:
        progress("embedding", start + done, total)

    z = embedder.embed_given(part, report)
    bad = np.flatnonzero(~np.isfinite(z).all(axis=1))
    if len(bad):
        raise BadInput(
            f"{embedder.called} gives {len(bad)} of {len(z)} images an embedding with NaN or"
            " infinity; it is of no use for a search: train it again"
        )
    return z
