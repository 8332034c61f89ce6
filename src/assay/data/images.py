"""From an image file of any kind to upright RGB pixels."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from assay.data.dataset import Pixels
from assay.errors import BadInput

Image.init()
FORMATS: list[str] = [
    name for name in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP") if name in Image.OPEN
]
"""Formats that hold pixels. Others that Pillow opens run a program (PostScript) or are not pictures (HDF5, GRIB)."""

LARGEST = 80_000_000
"""Pixels of the largest image that is unpacked; a little below what Pillow warns of."""


def endings() -> set[str]:
    """File name endings of the formats that are read, such as `.jpg`."""
    return {ending for ending, name in Image.registered_extensions().items() if name in (*FORMATS, "MPO")}  # MPO is JPEG


def decode(content: bytes, path: Path) -> Image.Image:
    """The image upright and in RGB: EXIF rotation applied, 16 bits scaled to 8, transparency laid on white."""
    if not content:
        raise BadInput(f"{path} cannot be read as an image (the file is empty); mend or remove it")
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > LARGEST:
                raise Image.DecompressionBombError
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image), path)
    except BadInput:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadInput(f"{path} would unpack to an enormous image, above {LARGEST:,} pixels; shrink or remove it") from None
    except Exception as error:  # decoders raise whatever they like
        reason = "not a format it knows" if "cannot identify" in str(error) else str(error)
        raise BadInput(f"{path} cannot be read as an image ({reason}); mend or remove it") from None


def square(image: Image.Image, size: int) -> Pixels:
    """The central square scaled to `size`, as (3, size, size)."""
    side = min(image.size)
    left, top = ((length - side) / 2 for length in image.size)
    scaled = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.asarray(scaled).transpose(2, 0, 1)


def _to_rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode == "F":
        raise BadInput(f"{path} holds floating-point pixels, whose white is anybody's guess; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", coloured.size, "white"), coloured)
    return image.convert("RGB")
