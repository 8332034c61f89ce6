"""Image files as the samples of a data set: checked once, read when they are needed."""

from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from assay.data.dataset import Labels, Pixels, Vectors
from assay.data.images import LONGEST, THUMB, decode, first_step, is_too_long, shape_after
from assay.data.scan import read, scan
from assay.errors import BadInput
from assay.hashing import digest_bytes
from assay.progress import Progress
from assay.protocols import FirstStep
from assay.workers import in_processes


class ImageFiles:
    """Image files, each hashed and decoded once on construction, or known from an earlier one.

    A file that cannot be used raises nothing here: `problem` tells.

    Args:
        paths: of the files, all below `root`.
        root: the folder that what is known of them is remembered by.
        channels: 3, or 1 for grey.
        progress: who is told of the checking; see `scan.reporting`.
    """

    def __init__(
        self, paths: Sequence[Path], root: Path, channels: int = 3, progress: Progress | None = None
    ) -> None:
        self.paths, self.inputs = list(paths), channels
        self._seen = scan(self.paths, root, progress)
        self.sizes = np.array(
            [(seen.width, seen.height) for seen in self._seen], dtype=np.int64
        ).reshape(-1, 2)
        """Width and height of each image (N, 2), upright; 0 where it cannot be used."""

    def arrays(self, indices: Labels, step: FirstStep) -> Pixels | list[Pixels]:
        """The images after the step: one array, or where they keep their shapes a list of them."""
        for index in indices.tolist():
            self._check(index, step)
        files = [(self.paths[index], self.digest(index)) for index in indices.tolist()]
        images = in_processes(partial(_read_image, step, self.inputs), files)
        if step.kind == "short":
            return images
        return (
            np.stack(images)
            if images
            else np.empty((0, step.side, step.side, self.inputs), dtype=np.uint8)
        )

    def shapes(self, indices: Labels, step: FirstStep) -> Labels:
        """Height and width of each image (n, 2) after the step, from what is known; the first that
        has none is named.
        """
        for index in indices.tolist():
            self._check(index, step)
        shapes = [
            shape_after(width, height, step) for width, height in self.sizes[indices].tolist()
        ]
        return np.array(shapes, dtype=np.int64).reshape(-1, 2)

    def traces(self) -> Vectors:
        """Grey pictures of 16 x 16 pixels around their mean (N, 256); zeros where a file cannot be
        used.
        """
        small = b"".join(b64decode(seen.thumbnail) or bytes(THUMB**2) for seen in self._seen)
        traces = np.frombuffer(small, dtype=np.uint8).reshape(-1, THUMB**2).astype(np.float32)
        centred: Vectors = traces - traces.mean(axis=1, keepdims=True)
        return centred

    def digest(self, index: int) -> str:
        """Hash of the file's bytes."""
        return self._seen[index].digest

    def problem(self, index: int) -> str | None:
        """Why a file cannot be used, with the remedy; None where it can."""
        reason = self._seen[index].reason
        return None if reason is None else f"{self.paths[index]} {reason}"

    def _check(self, index: int, step: FirstStep) -> None:
        if problem := self.problem(index):
            raise BadInput(problem)
        width, height = self.sizes[index].tolist()
        if is_too_long(width, height, step):
            raise BadInput(
                f"{self.paths[index]} is {width} x {height} pixels: with its short side scaled to"
                f" {step.side}, the long one would have {max(shape_after(width, height, step)):,},"
                f" above {LONGEST} x {step.side}; crop or remove it, or take the central squares"
                " with --set resize=square"
            )


def _read_image(step: FirstStep, channels: int, file: tuple[Path, str]) -> Pixels:
    """The image after the step, if it is still the one of this hash."""
    path, digest = file
    content = read(path)
    if digest_bytes(content) != digest:
        raise BadInput(
            f"{path} has changed since it was first read; leave the data alone while it is in use"
        )
    return first_step(decode(content, path), step, channels)
