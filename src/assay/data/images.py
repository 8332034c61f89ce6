"""From an image file of any kind to upright RGB pixels."""

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from assay.data.dataset import Pixels
from assay.errors import BadInput


def read_image(path: Path) -> Image.Image:
    """The image upright and in RGB: EXIF rotation applied, 16 bits scaled to 8, transparency laid on white."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                return _to_rgb(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, EOFError, UnidentifiedImageError) as error:
        raise BadInput(f"{path} cannot be read as an image ({_reason(path, error)}); mend or remove it") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadInput(f"{path} would unpack to an enormous image; shrink or remove it") from None


def square(image: Image.Image, size: int) -> Pixels:
    """Short side scaled to `size`, then the central square, as (3, size, size)."""
    scale = size / min(image.size)
    resized = image.resize([max(size, round(side * scale)) for side in image.size], Image.Resampling.BILINEAR)
    left, top = ((side - size) // 2 for side in resized.size)
    cropped = resized.crop((left, top, left + size, top + size))
    return np.asarray(cropped).transpose(2, 0, 1)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", coloured.size, "white"), coloured)
    return image.convert("RGB")


def _reason(path: Path, error: Exception) -> str:
    if path.stat().st_size == 0:
        return "the file is empty"
    return "not a format it knows" if isinstance(error, UnidentifiedImageError) else str(error)
