"""Uploaded images as pixels, and thumbnails of the images of an index."""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from assay.data.dataset import Pixels
from assay.data.images import FORMATS, decode_image, missing_reader
from assay.errors import BadInput, failed_here
from assay.files import read_bytes
from assay.hashing import digest_bytes
from assay.index import Index
from assay.web.refusal import Refusal

log = logging.getLogger("assay.web")

SIDE = 256
"""Longest side of a thumbnail in pixels."""

QUALITY = 82
"""JPEG quality of a thumbnail."""

MOST_FILE_BYTES = 200_000_000
"""Bytes of the largest file that a thumbnail is made of."""

CACHED_BYTES = 64_000_000
"""Bytes of thumbnails that are kept in memory."""


def decode_upload(content: bytes, called: str, most_pixels: int) -> Pixels:
    """Return the pixels of an uploaded image (height, width, 3), upright and in RGB.

    Its header is read first, so that an image that would fill the memory is never unpacked. Raises
    `Refusal` for what is not an image, or too large.
    """
    too_large = Refusal(
        413, f"{called} has more than {most_pixels:,} pixels", "shrink it", "too_many_pixels"
    )
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            pixels = image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large from None
    except (
        Exception
    ):  # decoders raise errors of any type; `decode_image` says in words what is wrong
        pixels = 0
    if pixels > most_pixels:
        raise too_large
    try:
        # As pixels: the image would keep its EXIF notes, and be turned upright a second time.
        return np.asarray(decode_image(content, Path(called)))
    except BadInput as error:
        if failed_here(error) is not None:
            log.error("%s", error)
            raise Refusal(
                500, f"{called} cannot be read here", "read the log of the service", "failed"
            ) from error
        kind = Path(called).suffix
        if missing_reader(kind) is not None:
            what = f"{called} is a {kind[1:].upper()} file, which this service does not read"
            raise Refusal(400, what, "save it as JPEG, and give that", "not_an_image") from None
        what, _, last = str(error).rpartition("; ")
        remedy = "give an image such as JPEG, PNG or WebP"
        raise Refusal(400, what or last, remedy, "not_an_image") from None


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an image of the index.

    Args:
        content: a JPEG file.
        tag: changes with the picture, for the caches of browsers.
    """

    content: bytes
    tag: str


class Thumbnails:
    """Thumbnails, of which the latest are kept in memory.

    Args:
        most_bytes: bytes of the thumbnails that are kept.
    """

    def __init__(self, most_bytes: int = CACHED_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], Thumbnail] = OrderedDict()
        self.bytes = 0

    def find(self, index: Index, id_: str) -> Thumbnail:
        """Return the thumbnail of an image of the index.

        Raises `Refusal` for an unknown id, and where the file is gone or is no longer the image
        that was indexed: a file of another content is never shown. Which of the two is not said:
        the index of a stranger could name any file, and so tell which ones the disk has.
        """
        entry, path = index.entry(id_), index.file_of(id_)
        if entry is None:
            raise Refusal(404, "the index has no image with this id", "search again")
        if index.manifest.root is None:
            raise Refusal(404, "this image was not indexed from a file", "it has no thumbnail")
        gone = Refusal(
            410,
            "its file is not there any more, or was changed since it was indexed",
            "run `assay index` again, which updates the index",
        )
        if path is None:
            raise gone
        try:
            found = path.stat()
            # A file that was not touched since it was read still is what it was then.
            key = (entry.content, str(path), found.st_mtime_ns, found.st_size, found.st_ino)
            if (kept := self._get(key)) is not None:
                return kept
            content = read_bytes(path, MOST_FILE_BYTES)
        except OSError:
            raise gone from None
        if digest_bytes(content) != entry.content:
            raise gone
        try:
            made = Thumbnail(shrink(content, path), entry.content[:32])
        except BadInput as error:
            log.error("%s", error)
            raise gone from None
        self._keep(key, made)
        return made

    def _get(self, key: tuple[object, ...]) -> Thumbnail | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: tuple[object, ...], made: Thumbnail) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self.bytes += len(made.content)
            while self.bytes > self._most:
                _, oldest = self._kept.popitem(last=False)
                self.bytes -= len(oldest.content)


def shrink(content: bytes, path: Path) -> bytes:
    """Return an image as a small JPEG file, upright, without its notes."""
    image = decode_image(content, path)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    plain = Image.fromarray(np.asarray(image))  # leaves EXIF, comments and colour profiles behind
    stream = BytesIO()
    plain.save(stream, "JPEG", quality=QUALITY, optimize=True)
    return stream.getvalue()
