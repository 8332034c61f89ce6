"""`glyphs`: characters as classes, the text faces of matplotlib's bundled fonts as instances. The
embedded data set.

Classes are letters and digits of Latin, Greek, Cyrillic, Armenian and Georgian, in the order of
their code points: the halves of a benchmark are roughly Latin with its phonetic letters, and
everything else.
"""

import unicodedata
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from assay.data.arrays import pack_arrays
from assay.data.dataset import Dataset, Labels, Pixels, datasets
from assay.data.images import first_step
from assay.files import cache_folder, write_atomically
from assay.hashing import digest, digest_bytes
from assay.npz import read_npz
from assay.progress import Progress, silent
from assay.protocols import FirstStep
from assay.records.source import code_hash

SIZE, POINTS, BASELINE = 28, 19, 20
FEWEST_FACES = 10
HOMOGLYPH = 1.0
"""Two characters whose images differ by less than about one pixel of ink are one class, not two."""

FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
ASCII_FACES = ("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10")
"""Computer Modern has an encoding of its own that agrees with Unicode on ASCII letters and digits
only.
"""

Glyphs = dict[str, dict[str, Pixels]]
"""Image (SIZE, SIZE) by character and face."""


class Drawings:
    """Grey images in memory, ink white on black."""

    inputs = 1

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels

    def arrays(self, indices: Labels, step: FirstStep) -> Pixels:
        """Return images (n, side, side, 1), scaled from the side they were drawn at."""
        chosen = self.pixels[indices][..., None]
        if step.side == SIZE:
            return chosen
        scaled = np.empty((len(chosen), step.side, step.side, 1), dtype=np.uint8)
        for row, image in enumerate(chosen):
            scaled[row] = first_step(Image.fromarray(image[..., 0]), step, channels=1)
        return scaled

    def digest(self, index: int) -> str:
        """Return the hash of the pixels."""
        return self._digests[index]

    @cached_property
    def _digests(self) -> list[str]:
        return [digest_bytes(image.tobytes()) for image in self.pixels]

    def problem(self, index: int) -> str | None:
        """Return None: every drawing can be used."""
        return None


@datasets("glyphs")
def load_glyphs(progress: Progress = silent) -> Dataset:
    """Letters and digits of five scripts in up to 21 faces of matplotlib's fonts; drawn once, then
    cached.
    """
    pixels, ids = _from_cache()
    characters = [id_.partition("/")[0] for id_ in ids]
    classes = list(dict.fromkeys(characters))
    numbers = {name: number for number, name in enumerate(classes)}
    return Dataset(
        name="glyphs",
        modality="drawing",
        labels=np.array([numbers[character] for character in characters], dtype=np.int64),
        class_names=tuple(classes),
        ids=ids,
        items=Drawings(pixels),
        official=True,
    )


def _from_cache() -> tuple[Pixels, list[str]]:
    made_by = digest([code_hash(__file__), version("pillow"), version("matplotlib")])
    path = cache_folder() / f"glyphs-{made_by[:16]}.npz"
    try:
        cached, _ = read_npz(path, ["pixels", "ids"])
        return cached["pixels"], cached["ids"].tolist()
    except (ValueError, KeyError):  # a cache that is missing or corrupt is drawn again
        pixels, ids = _draw()
    packed = pack_arrays({"pixels": pixels, "ids": np.array(ids)})
    with suppress(OSError):  # a cache that cannot be written only costs the drawing again
        write_atomically(path, packed)
    return pixels, ids


def _draw() -> tuple[Pixels, list[str]]:
    glyphs = _without_homoglyphs(_whole(_draw_all()))
    ids = [
        f"U+{ord(character):04X}/{face}" for character, faces in glyphs.items() for face in faces
    ]
    return np.stack([image for faces in glyphs.values() for image in faces.values()]), ids


def _draw_all() -> Glyphs:
    """Draw every plain letter and digit in every face that has it, in the order of code points."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    glyphs: Glyphs = defaultdict(dict)
    for face in FACES + ASCII_FACES:
        path = Path(get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
        font = ImageFont.truetype(path, POINTS, layout_engine=ImageFont.Layout.BASIC)
        for character in map(chr, FT2Font(str(path)).get_charmap()):
            if _is_plain(character) and (face in FACES or character.isascii()):
                glyphs[character][face] = _draw_one(character, font)
    return {character: glyphs[character] for character in sorted(glyphs)}


def _is_plain(character: str) -> bool:
    """Return whether a character is a letter or digit, and not another one with a mark, a size or a
    style.
    """
    return unicodedata.category(character) in (
        "Lu",
        "Ll",
        "Lo",
        "Nd",
    ) and not unicodedata.decomposition(character)


def _draw_one(character: str, font: ImageFont.FreeTypeFont) -> Pixels:
    image = Image.new("L", (SIZE, SIZE))
    ImageDraw.Draw(image).text((SIZE / 2, BASELINE), character, font=font, fill=255, anchor="ms")
    return np.asarray(image)


def _whole(glyphs: Glyphs) -> Glyphs:
    """Return the characters with enough faces, none of them cut off by the frame or empty."""
    return {
        character: faces
        for character, faces in glyphs.items()
        if len(faces) >= FEWEST_FACES and all(_fits(image) for image in faces.values())
    }


def _fits(image: Pixels) -> bool:
    frame = image.copy()
    frame[1:-1, 1:-1] = 0
    return bool(image.any()) and not frame.any()


def _without_homoglyphs(glyphs: Glyphs) -> Glyphs:
    """Return the first of every group of characters that look the same in some face."""
    twins = set().union(*(_twins(glyphs, face) for face in FACES + ASCII_FACES))
    kept: Glyphs = {}
    for character, faces in glyphs.items():
        if not any((other, character) in twins for other in kept):
            kept[character] = faces
    return kept


def _twins(glyphs: Glyphs, face: str) -> set[tuple[str, str]]:
    """Return pairs of characters, in their order, whose images in this face differ by less than a
    pixel of ink.
    """
    drawn = [character for character, faces in glyphs.items() if face in faces]
    ink = np.stack([glyphs[character][face] for character in drawn]).reshape(len(drawn), -1) / 255
    squares = (ink**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * ink @ ink.T
    rows, columns = np.nonzero(np.triu(apart < HOMOGLYPH, k=1))
    return {
        (drawn[row], drawn[column])
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    }
