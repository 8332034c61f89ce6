"""From an image file of any kind to upright pixels, and the first step of a protocol, which scales
every image once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, features

from assay.data.dataset import Pixels
from assay.errors import BadInput, reason_of
from assay.files import read_bytes
from assay.hashing import digest
from assay.protocols import FirstStep
from assay.records.source import code_hash
from assay.workers import in_threads

try:
    import pillow_heif

    pillow_heif.register_heif_opener()
    HEIF_READER: str | None = pillow_heif.__version__
except ImportError:
    HEIF_READER = None

Image.init()
FORMATS: list[str] = [
    name
    for name in (
        "AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP",
    )
    if name in Image.OPEN
]  # fmt: skip
"""Formats that hold pixels. Others that Pillow opens run a program (PostScript) or are not pictures
(HDF5, GRIB).
"""

MOST_PIXELS = 80_000_000
"""Pixels of the largest image that is decoded; a little below the number that Pillow warns of."""

LONGEST = 16
"""Long side over short side of the longest image: a longer one would fill the memory once its short
side is scaled up.
"""

THUMB = 16
"""Side of the small picture by which near copies are found."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Operation that turns an image upright, by its EXIF orientation."""


def endings() -> set[str]:
    """Return the file name endings of the formats that are read, such as `.jpg`."""
    return {
        ending
        for ending, name in Image.registered_extensions().items()
        if name in (*FORMATS, "MPO")
    }  # MPO is JPEG


def missing_reader(ending: str) -> str | None:
    """Return what images with this ending need that is not installed; None where nothing lacks."""
    if ending.lower() in endings():
        return None
    if ending.lower() in (".heic", ".heif", ".hif"):
        return "HEIC images need pillow-heif: pip install pillow-heif, or save them as JPEG"
    if ending.lower() in (".avif", ".avifs"):
        return "AVIF images need Pillow 11.3 or newer: pip install -U pillow, or save them as JPEG"
    return None


@cache
def decoder_hash() -> str:
    """Return the hash of all that decoding and scaling depend on: the code of this module and of
    the one that reads image files, Pillow, its JPEG library and the reader of HEIC, where there is
    one.
    """
    return digest(
        [
            code_hash(__file__),
            code_hash(str(Path(__file__).with_name("image_files.py"))),
            PIL.__version__,
            features.version("jpg"),
            features.version("libjpeg_turbo"),
            *([HEIF_READER] if HEIF_READER else []),
        ]
    )


def decode_image(content: bytes, path: Path) -> Image.Image:
    """Decode an image, upright and in RGB: EXIF rotation applied, 16 bits scaled to 8, transparency
    laid on white. Of several pictures in a file the first is taken.
    """
    if not content:
        raise BadInput(f"{path} cannot be read as an image (the file is empty); fix or remove it")
    with _naming(path), Image.open(BytesIO(content), formats=FORMATS) as image:
        return _decoded(image, path)


def _decoded(image: Image.Image, called: Path | str) -> Image.Image:
    """Return an image upright and in RGB."""
    with _naming(called):
        if image.width * image.height > MOST_PIXELS:
            raise Image.DecompressionBombError
        image.load()
        return _to_rgb(_upright(image), called)


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Turn errors of decoders into `BadInput` with the name of the image."""
    try:
        yield
    except BadInput:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadInput(
            f"{path} would unpack to an enormous image, above {MOST_PIXELS:,} pixels; shrink or"
            " remove it"
        ) from None
    except MemoryError as error:
        raise BadInput(
            f"{path} needs more memory than there is; close other programs, or shrink or remove it"
        ) from error
    except Exception as error:  # decoders raise errors of any type
        unknown = "cannot identify" in str(error)
        if unknown and (needed := missing_reader(Path(path).suffix)):
            raise BadInput(f"{path} cannot be read as an image: {needed}") from None
        reason = "not a format it knows" if unknown else str(error)
        raise BadInput(f"{path} cannot be read as an image ({reason}); fix or remove it") from None


def thumbnail(image: Image.Image) -> bytes:
    """Return the whole image in grey, `THUMB` x `THUMB` pixels, by which near copies are found."""
    small = image.resize((THUMB, THUMB), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return small.convert("L").tobytes()


def first_step(image: Image.Image, step: FirstStep, channels: int) -> Pixels:
    """Return the image scaled, as (height, width, channels); one channel is grey."""
    assert not is_too_long(*image.size, step), "callers refuse such images, naming the file"
    height, width = shape_after(*image.size, step)
    whole = image.convert("L") if channels == 1 else image
    box = _central_square(image.size) if step.kind == "square" else None
    scaled = np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR, box=box))
    return scaled[..., None] if channels == 1 else scaled


Picture = str | Path | Image.Image | Pixels
"""An image: a file, Pillow's image, or pixels (height, width, 3) or (height, width)."""


def read_images(images: Sequence[Picture], step: FirstStep, channels: int) -> Pixels | list[Pixels]:
    """Read images and scale them by the first step: one array where all get one shape."""
    read = in_threads(lambda image: first_step(_opened(image, step), step, channels), images)
    return read if step.kind == "short" else np.stack(read)


def check_picture(image: object, called: str) -> None:
    """Raise `BadInput`, with the name of the image, where it is none of `Picture`."""
    if isinstance(image, str | Path | Image.Image):
        return
    if not isinstance(image, np.ndarray):
        raise BadInput(
            f"{called} is of type {type(image).__name__}; give the path of a file, a PIL image, or"
            " uint8 pixels of shape (height, width, 3)"
        )
    colours = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not colours or 0 in image.shape:
        raise BadInput(
            f"{called} is {image.dtype} of shape {image.shape}; pixels are uint8 of shape (height,"
            " width, 3)"
        )


def _opened(image: Picture, step: FirstStep) -> Image.Image:
    called = str(image) if isinstance(image, str | Path) else "an image"
    if isinstance(image, np.ndarray):
        opened = Image.fromarray(image).convert("RGB")
    elif isinstance(image, Image.Image):
        opened = _decoded(image, called)
    else:
        try:
            opened = decode_image(read_bytes(Path(image)), Path(image))
        except OSError as error:
            raise BadInput(f"{image} cannot be read: {reason_of(error)}") from None
    if is_too_long(*opened.size, step):
        raise BadInput(
            f"{called} is {opened.width} x {opened.height} pixels, too long and narrow to be"
            " scaled; crop it"
        )
    return opened


def shape_after(width: int, height: int, step: FirstStep) -> tuple[int, int]:
    """Return height and width of an image after the step; `short` rounds down, as torchvision's
    Resize does.

    >>> shape_after(640, 480, FirstStep("short", 256))
    (256, 341)
    """
    if step.kind != "short":
        return step.side, step.side
    if width <= height:
        return int(step.side * height / width), step.side
    return step.side, int(step.side * width / height)


def is_too_long(width: int, height: int, step: FirstStep) -> bool:
    """Return whether the image would be too large after the step."""
    return max(shape_after(width, height, step)) > LONGEST * step.side


def _central_square(size: tuple[int, int]) -> tuple[float, float, float, float]:
    side = min(size)
    left, top = ((length - side) / 2 for length in size)
    return left, top, left + side, top + side


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF notes raise errors of any type; the pixels may be intact
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image, path: Path | str) -> Image.Image:
    if image.mode == "F":
        raise BadInput(
            f"{path} holds floating-point pixels, whose range is not known; save it with 8 or 16"
            " bits"
        )
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", coloured.size, "white"), coloured)
    return image.convert("RGB")
