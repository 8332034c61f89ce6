"""Contact sheets: images of some classes side by side, to see what a data set is made of; and rows
of pictures with words below them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from assay.data.dataset import Dataset, Labels, Pixels
from assay.data.images import Picture, read_images
from assay.errors import BadInput
from assay.files import write_atomically
from assay.protocols import FirstStep, Resize
from assay.workers import in_threads

CLASSES, IMAGES = 12, 8
CELL, GAP, MARGIN = 112, 8, 24
NAME_WIDTH = 220
"""Pixels that the names of the classes get, left of their images."""

SIDE, FRAME, LINE = 144, 4, 18
"""Pixels of a picture with words below it, of the frame around it, and of a line of words."""

TITLE, PRINT, SMALL = 22, 17, 13
INK, FAINT, MOUNT, BROKEN, CROSS = "#1a1a1a", "#6b6b6b", "#f0f0f0", "#c8c8c8", "#8a8a8a"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Format of a picture by the ending of its file."""


def check_sheet(path: Path, endings: Sequence[str] = (".png",)) -> None:
    """Raise `BadInput` where no contact sheet can be put at `path`."""
    if path.suffix.lower() not in endings or path.is_dir():
        raise BadInput(
            f"--sheet {path}: a contact sheet is a {' or '.join(endings)} file, for example --sheet"
            f" {path.with_suffix('.png').name}"
        )
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--sheet {path}: there is no folder {path.parent}; make it first")


def write_sheet(path: Path, dataset: Dataset) -> None:
    """Write a contact sheet of the data set to `path`."""
    check_sheet(path)
    _write(path, draw_sheet(dataset))


def _write(path: Path, sheet: Image.Image) -> None:
    packed = BytesIO()
    sheet.save(packed, FORMATS[path.suffix.lower()])
    try:
        write_atomically(path, packed.getvalue())
    except OSError as error:
        raise BadInput(f"--sheet {path} cannot be written: {error.strerror}") from None


# --- Images of classes ---


def draw_sheet(dataset: Dataset) -> Image.Image:
    """Draw a row of images for each of some classes, spread evenly over all; an image that cannot
    be read is a grey box with a cross.
    """
    if dataset.modality == "features":
        raise BadInput(
            f"{dataset.name} holds vectors, of which there is nothing to draw; leave out --sheet"
        )
    classes = _spread(np.arange(len(dataset.class_names)), CLASSES)
    rows = [_spread(np.flatnonzero(dataset.labels == label), IMAGES) for label in classes.tolist()]
    top = MARGIN + TITLE + SMALL + 3 * GAP
    width = (
        2 * MARGIN + NAME_WIDTH + max((len(row) for row in rows), default=0) * (CELL + GAP) - GAP
    )
    sheet = Image.new("RGB", (width, top + len(rows) * (CELL + GAP) - GAP + MARGIN), "white")
    counts = (
        f"{len(rows):,} of {len(dataset.class_names):,} classes, {len(dataset.labels):,} images in"
        " all"
    )
    _write_title(ImageDraw.Draw(sheet), dataset.name, counts)
    cells = [(row, column) for row, samples in enumerate(rows) for column in range(len(samples))]
    drawn = in_threads(lambda cell: _cell(dataset, int(rows[cell[0]][cell[1]])), cells)
    for (row, column), image in zip(cells, drawn, strict=True):
        sheet.paste(image, (MARGIN + NAME_WIDTH + column * (CELL + GAP), top + row * (CELL + GAP)))
    for row, label in enumerate(classes.tolist()):
        _write_name(ImageDraw.Draw(sheet), dataset, label, top + row * (CELL + GAP))
    return sheet


def _spread(values: Labels, most: int) -> Labels:
    """Return at most so many of the values, evenly spread from the first to the last."""
    if len(values) <= most:
        return values
    places: Labels = np.linspace(0, len(values) - 1, most).round().astype(np.int64)
    return values[places]


def _cell(dataset: Dataset, index: int) -> Image.Image:
    def read(step: FirstStep) -> Pixels:
        return np.asarray(dataset.items.arrays(np.array([index]), step)[0])

    image = _read(read, CELL) if dataset.items.problem(index) is None else None
    return _crossed_out(CELL) if image is None else _mounted(image, CELL)


def _write_name(pen: ImageDraw.ImageDraw, dataset: Dataset, label: int, top: int) -> None:
    """Write the name on up to three lines, and the number of images of the class."""
    images = int((dataset.labels == label).sum())
    font, small = _font(PRINT), _font(SMALL)
    lines = _wrapped(dataset.class_names[label], font, NAME_WIDTH - 2 * GAP)
    height = PRINT + 4
    for number, line in enumerate(lines):
        pen.text((MARGIN, top + GAP + number * height), line, fill=INK, font=font)
    count = f"{images:,} image{'s' * (images != 1)}"
    pen.text((MARGIN, top + GAP + len(lines) * height + 2), count, fill=FAINT, font=small)


# --- Rows of pictures ---


@dataclass(frozen=True)
class Captioned:
    """A picture with words below it.

    Args:
        picture: the picture; None: there is none, and a grey box has the words `instead`.
        lines: lines of words; what is too long for one is cut in its middle. The first is printed
            darker than the others.
        instead: why there is no picture, in a few words.
        frame: colour of the frame around it.
    """

    picture: Picture | None
    lines: tuple[str, ...] = ()
    instead: str = ""
    frame: str | None = None


def write_rows(
    path: Path, title: str, about: str, rows: Sequence[Sequence[Captioned | None]]
) -> None:
    """Write rows of pictures to `path`, in the format of its ending.

    The first of each row stands apart from the others. Nothing is drawn where there is None.
    """
    check_sheet(path, tuple(FORMATS))
    _write(path, draw_rows(title, about, rows))


def draw_rows(title: str, about: str, rows: Sequence[Sequence[Captioned | None]]) -> Image.Image:
    """Draw rows of pictures, the first of each apart from the others, below a title."""
    cells = [(row, place) for row, found in enumerate(rows) for place in range(len(found))]
    drawn = in_threads(lambda cell: _captioned(rows[cell[0]][cell[1]]), cells)
    words = max((len(one.lines) for row in rows for one in row if one is not None), default=0)
    step, height = SIDE + 2 * GAP, SIDE + GAP + words * LINE + 2 * GAP
    apart = 3 * GAP
    top = MARGIN + TITLE + SMALL + 4 * GAP
    longest = max((len(row) for row in rows), default=1)
    least = max(_font(TITLE).getlength(title), _font(SMALL).getlength(about))
    width = 2 * MARGIN + max(longest * step - 2 * GAP + apart, int(least) + 1)
    sheet = Image.new("RGB", (width, top + len(rows) * height + MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    _write_title(pen, title, about)
    for (row, place), picture in zip(cells, drawn, strict=True):
        cell = rows[row][place]
        if cell is None or picture is None:
            continue
        left = MARGIN + place * step + (apart if place else 0)
        _place(sheet, cell, picture, (left, top + row * height))
    for row in range(len(rows)):
        line, upper = MARGIN + SIDE + (GAP + apart) // 2 + GAP // 2, top + row * height
        pen.line((line, upper, line, upper + height - 3 * GAP), fill=BROKEN, width=1)
    return sheet


def _captioned(cell: Captioned | None) -> Image.Image | None:
    """Return the picture of a cell, or the grey box in its place; None where nothing is drawn."""
    if cell is None:
        return None
    picture = cell.picture
    if picture is None:
        return _boxed(cell.instead)
    image = _read(lambda step: np.asarray(read_images([picture], step, 3)[0]), SIDE)
    return _boxed("cannot be read") if image is None else _mounted(image, SIDE)


def _place(
    sheet: Image.Image, cell: Captioned, picture: Image.Image, corner: tuple[int, int]
) -> None:
    """Put a picture on the sheet, with its frame and its words."""
    left, top = corner
    pen = ImageDraw.Draw(sheet)
    if cell.frame is not None:
        edges = (left - FRAME, top - FRAME, left + SIDE + FRAME - 1, top + SIDE + FRAME - 1)
        pen.rectangle(edges, fill=cell.frame)
    sheet.paste(picture, corner)
    for number, line in enumerate(cell.lines):
        place = (left, top + SIDE + GAP + number * LINE)
        text = _in_one_line(line, _font(SMALL), SIDE)
        pen.text(place, text, fill=FAINT if number else INK, font=_font(SMALL))


def _boxed(words: str) -> Image.Image:
    """Return a grey box with words in it."""
    box = Image.new("RGB", (SIDE, SIDE), MOUNT)
    pen = ImageDraw.Draw(box)
    pen.rectangle((0, 0, SIDE - 1, SIDE - 1), outline=BROKEN, width=2)
    lines = _wrapped(words, _font(SMALL), SIDE - 4 * GAP)
    for number, line in enumerate(lines):
        middle = SIDE / 2 + (number - (len(lines) - 1) / 2) * LINE
        pen.text((SIDE / 2, middle), line, fill=FAINT, font=_font(SMALL), anchor="mm")
    return box


# --- Pictures and words ---


def _read(read: Callable[[FirstStep], Pixels], side: int) -> Image.Image | None:
    """Return the whole image, or its central square where it is too long for that; None where it
    cannot be read.
    """
    kinds: tuple[Resize, ...] = ("short", "square")
    for kind in kinds:
        try:
            pixels = read(FirstStep(kind, side))
        except BadInput:
            continue
        return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return None


def _mounted(image: Image.Image, side: int) -> Image.Image:
    """Return the whole image in the middle of a square."""
    cell = Image.new("RGB", (side, side), MOUNT)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    cell.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return cell


def _crossed_out(side: int) -> Image.Image:
    """Return a grey box with a cross."""
    cell = Image.new("RGB", (side, side), BROKEN)
    pen = ImageDraw.Draw(cell)
    inner, outer = side // 4, side - side // 4
    pen.line((inner, inner, outer, outer), fill=CROSS, width=4)
    pen.line((inner, outer, outer, inner), fill=CROSS, width=4)
    return cell


@cache
def _font(size: int) -> Font:
    """Return a font with the letters of most alphabets: one of those that matplotlib brings along,
    as Pillow's own has ASCII alone.
    """
    package = find_spec("matplotlib")
    assert package is not None and package.origin is not None, "Assay requires matplotlib"
    path = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def _write_title(pen: ImageDraw.ImageDraw, title: str, about: str) -> None:
    pen.text((MARGIN, MARGIN), _printable(title), fill=INK, font=_font(TITLE))
    pen.text((MARGIN, MARGIN + TITLE + GAP), _printable(about), fill=FAINT, font=_font(SMALL))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _in_one_line(text: str, font: Font, width: int) -> str:
    """Return the text as far as it fits in so many pixels; an ellipsis stands for its middle, since
    names differ at their ends.
    """
    whole = _printable(text)
    if len(whole) <= width and font.getlength(whole) <= width:
        return whole
    for kept in range(min(len(whole) - 1, width), 1, -1):
        short = f"{whole[: kept // 2]}…{whole[len(whole) - (kept - kept // 2) :]}"
        if font.getlength(short) <= width:
            return short
    return "…"


def _wrapped(text: str, font: Font, width: int, most: int = 3) -> list[str]:
    """Break the text into at most so many lines, between words where possible; an ellipsis stands
    for the rest.
    """
    lines: list[str] = []
    rest = _printable(text)
    while rest and len(lines) < most:
        fits = next(
            count
            for count in range(len(rest), 0, -1)
            if count == 1 or font.getlength(rest[:count]) <= width
        )
        space = rest.rfind(" ", 1, fits + 1) if fits < len(rest) else -1
        fits = space if space > 0 else fits
        lines.append(rest[:fits])
        rest = rest[fits:].lstrip()
    return lines if not rest else [*lines[:-1], f"{lines[-1][:-1]}…"]
