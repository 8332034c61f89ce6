"""Features of a trunk that is not trained: computed once for a half, and kept in the cache.

`bench`, `train`, `embed`, `evaluate` and `baselines` share them: the same weights, preparation of
images and half of the data are the same pack. Features are always those of a whole half, computed
in the same batches by one thread each, so the bytes do not depend on who asks first. Images that
are no data set have no halves, and are computed each time. So are the features of a trunk that was
trained, or whose pooling can be.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.data.dataset import Half, Labels, Vectors
from assay.data.images import decoder_hash
from assay.data.origin import FeaturesOrigin
from assay.data.packs import content_of, place_vectors
from assay.data.seal import read_vectors
from assay.devices import seed_torch, torch_threads
from assay.embedding import Read, embed_samples, trunk_features
from assay.errors import DISK_FULL
from assay.files import cache_folder, usable_cache
from assay.hashing import derive, digest, digest_bytes
from assay.methods import trunk_source
from assay.model import Architecture, Model, head_of, untrained_model
from assay.progress import Progress, silent
from assay.protocols import RANDOM_WEIGHTS
from assay.records.keys import Environment
from assay.trunks import Trunk, find, weights


@dataclass(frozen=True)
class FrozenTrunk:
    """A trunk that is not trained, with the way in which its images are prepared.

    Args:
        architecture: trunk and inputs of the model; its head plays no part.
        weights: hash of the trunk's weights; `none`: random ones.
        device: cpu or cuda.
        seed: of random weights.
        network: the trunk, where it is built already.
    """

    architecture: Architecture
    weights: str
    device: str
    seed: int = 0
    network: Trunk | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, model: Model, weights_of_card: str | None, device: str) -> "FrozenTrunk | None":
        """Return the trunk of a model; None where it is not, bit for bit, the one of that hash."""
        whole = model.architecture
        if (
            weights_of_card is None
            or find(whole.trunk).takes == "vectors"
            or whole.pooling == "gem"
            or not weights.holds(model.trunk, weights_of_card)
        ):
            return None
        return cls(whole, weights_of_card, device, network=model.trunk)

    def name_for(self, half: Half) -> str:
        """Return a name of everything that the features of a half depend on.

        That is the samples, trunk and first step, and the code and libraries that compute them.
        Features of a test half never lie where those of a trainval half are looked for.
        """
        whole = self.architecture
        settings = {
            "trunk": whole.trunk,
            "weights": self.weights,
            "seed": self.seed if self.weights == RANDOM_WEIGHTS else None,
            "pooling": whole.pooling,
            "size": whole.size,
            "first step": whole.first_step,
        }
        images = digest([decoder_hash(), half.reader])
        here = Environment.here(self.device, 1, images)
        computed = digest([settings, here, trunk_source(whole.trunk)])
        return f"{half.fingerprint}-{computed[:16]}{'-test' * half.is_test}"

    def compute(
        self, half: Half, rows: Labels | None = None, progress: Progress = silent
    ) -> Vectors:
        """Compute the features of these samples of a half; of all if None."""
        chosen = np.arange(len(half.y)) if rows is None else rows
        return self.compute_read(half.some, chosen, progress)

    def compute_read(self, read: Read, rows: Labels, progress: Progress = silent) -> Vectors:
        """Compute the features of these samples, which `read` reads."""
        network = self.network
        if network is None:
            seed_torch(derive(self.seed, "model"))
            network = untrained_model(replace(self.architecture, dim=0), self.weights).trunk
        device = torch.device(self.device)
        z = trunk_features(network, self.architecture, read, rows, device, progress)
        return np.asarray(z.numpy())

    def features(self, half: Half, progress: Progress = silent) -> Vectors:
        """Return the features of all samples of a half as the head takes them.

        They are kept where the cache allows it. The caller has the half, so a test half has left
        its seal.
        """
        return self.as_taken(self._found(half, progress))

    def as_taken(self, x: Vectors) -> Vectors:
        """Return features as the head takes them: as they are, or as unit vectors."""
        if not self.architecture.unit_features:
            return x
        return np.asarray(F.normalize(torch.from_numpy(x), dim=1).numpy())

    def origin(self, z: Vectors, half: Half, source: str) -> FeaturesOrigin:
        """Return the origin of vectors `z`, the features of trainval `half` and of its test half.

        They have unit length. `source` is the folder of the images, if known.
        """
        whole = self.architecture
        return FeaturesOrigin(
            trunk=whole.trunk,
            weights=self.weights,
            inputs=whole.inputs,
            size=whole.size,
            pooling=whole.pooling,
            resize=whole.resize,
            stored=whole.first_step.side,
            unit=True,
            images=half.fingerprint,
            source=source,
            vectors=digest_bytes(np.ascontiguousarray(z, dtype=np.float32).tobytes()),
        )

    def _found(self, half: Half, progress: Progress) -> Vectors:
        if half.modality == "features":
            return self.compute(half, None, progress)
        name, made = self.name_for(half), list[Vectors]()

        def make() -> Vectors:
            made.append(self.compute(half, None, progress))
            return made[0]

        if content_of(cache_folder() / "features" / name) is None and not _cache_is_usable():
            return make()
        try:
            return read_vectors(place_vectors(half, name, make, progress), half)
        except OSError as error:
            if made and error.errno in DISK_FULL:
                return made[0]
            raise


def embed_features(model: Model, x: Vectors, device: torch.device, threads: int = 1) -> Tensor:
    """Return the embeddings of features by the head of a model."""
    with torch_threads(threads):
        return embed_samples(head_of(model).to(device), x, 0, device, model.architecture.similarity)


def _cache_is_usable() -> bool:
    try:
        usable_cache()
    except OSError:
        return False
    return True
