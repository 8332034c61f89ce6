"""What all studies of a bench share."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.data.dataset import Dataset
from assay.data.splits import Half, SealedTest, TrainVal, folds
from assay.data.views import write_view
from assay.protocol import Protocol, resolve
from assay.run import Environment
from assay.store import Store


@dataclass(frozen=True)
class Arena:
    """What all studies of a bench share: halves of the data, protocol and device.

    Args:
        data: name and size of the data set, for people.
        trainval: the half that studies work on.
        test: the sealed half.
        protocol: as declared, `auto` included.
        device: cpu or cuda.
        imports: the user's own files, for the workers to import too.
    """

    data: dict[str, Any]
    trainval: TrainVal
    test: SealedTest
    protocol: Protocol
    device: str
    imports: tuple[str, ...] = ()

    @cached_property
    def resolved(self) -> Protocol:
        """The protocol without any `auto`."""
        return resolve(self.protocol, self.trainval.look)

    def place(self, half: Half, store: Store) -> Path:
        """Put the view of a half into a store, at the protocol's size; its folder."""
        assert self.resolved.size is not None
        folder = store.view(view_name(half.fingerprint, self.resolved.size, self.environment.source))
        write_view(folder, half, self.resolved.size)
        return folder

    @cached_property
    def classes_in_training(self) -> int:
        """The fewest classes that any fold trains on."""
        parts = folds(self.trainval, self.protocol.folds)
        return min(len(set(self.trainval.y[fold.train].tolist())) for fold in parts)

    @cached_property
    def environment(self) -> Environment:
        """Where runs run, as far as their bytes may depend on it."""
        return Environment.here(self.device, self.protocol.threads)


def view_name(fingerprint: str, size: int, source: str) -> str:
    """A view depends on the data, the size, and the code that decodes and scales."""
    return f"{fingerprint}-{size}-{source[:16]}"


def describe_data(dataset: Dataset, trainval: TrainVal) -> dict[str, Any]:
    """What the preregistration says of the data: nothing that depends on the test half's content."""
    return {
        "name": dataset.name,
        "look": dataset.look,
        "trainval": trainval.fingerprint,
        "classes": len(trainval.class_names),
        "samples": len(trainval.y),
    }
