"""A contact sheet: images of some classes side by side, to see what a data set is made of."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from assay.data.dataset import Dataset, Labels
from assay.errors import BadInput
from assay.files import write_atomically
from assay.protocols import FirstStep, Resize
from assay.workers import in_threads

CLASSES, IMAGES = 12, 8
CELL, GAP, MARGIN = 112, 8, 24
NAME_WIDTH = 220
"""Pixels that the names of the classes get, left of their images."""

TITLE, PRINT, SMALL = 22, 17, 13
INK, FAINT, MOUNT, BROKEN, CROSS = "#1a1a1a", "#6b6b6b", "#f0f0f0", "#c8c8c8", "#8a8a8a"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def check_sheet(path: Path) -> None:
    """Raise `BadInput` where no contact sheet can be put at `path`."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise BadInput(
            f"--sheet {path}: a contact sheet is a .png file, for example --sheet"
            f" {path.with_suffix('.png').name}"
        )
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--sheet {path}: there is no folder {path.parent}; make it first")


def write_sheet(path: Path, dataset: Dataset) -> None:
    """Write a contact sheet of the data set to `path`."""
    check_sheet(path)
    packed = BytesIO()
    draw_sheet(dataset).save(packed, "PNG")
    try:
        write_atomically(path, packed.getvalue())
    except OSError as error:
        raise BadInput(f"--sheet {path} cannot be written: {error.strerror}") from None


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
    _write_title(ImageDraw.Draw(sheet), dataset, len(rows))
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
    image = _read(dataset, index)
    if image is None:
        cell = Image.new("RGB", (CELL, CELL), BROKEN)
        pen = ImageDraw.Draw(cell)
        inner, outer = CELL // 4, CELL - CELL // 4
        pen.line((inner, inner, outer, outer), fill=CROSS, width=4)
        pen.line((inner, outer, outer, inner), fill=CROSS, width=4)
        return cell
    cell = Image.new("RGB", (CELL, CELL), MOUNT)
    image.thumbnail((CELL, CELL), Image.Resampling.LANCZOS)
    cell.paste(image, ((CELL - image.width) // 2, (CELL - image.height) // 2))
    return cell


def _read(dataset: Dataset, index: int) -> Image.Image | None:
    """Return the whole image, or its central square where it is too long for that; None where it
    cannot be read.
    """
    kinds: tuple[Resize, ...] = ("short", "square")
    for kind in kinds if dataset.items.problem(index) is None else ():
        try:
            pixels = np.asarray(dataset.items.arrays(np.array([index]), FirstStep(kind, CELL))[0])
        except BadInput:
            continue
        return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return None


def _write_title(pen: ImageDraw.ImageDraw, dataset: Dataset, shown: int) -> None:
    counts = (
        f"{shown:,} of {len(dataset.class_names):,} classes, {len(dataset.labels):,} images in all"
    )
    pen.text((MARGIN, MARGIN), dataset.name, fill=INK, font=ImageFont.load_default(TITLE))
    pen.text((MARGIN, MARGIN + TITLE + GAP), counts, fill=FAINT, font=ImageFont.load_default(SMALL))


def _write_name(pen: ImageDraw.ImageDraw, dataset: Dataset, label: int, top: int) -> None:
    """Write the name on up to three lines, and the number of images of the class."""
    images = int((dataset.labels == label).sum())
    font, small = ImageFont.load_default(PRINT), ImageFont.load_default(SMALL)
    lines = _wrapped(dataset.class_names[label], font, NAME_WIDTH - 2 * GAP)
    height = PRINT + 4
    for number, line in enumerate(lines):
        pen.text((MARGIN, top + GAP + number * height), line, fill=INK, font=font)
    count = f"{images:,} image{'s' * (images != 1)}"
    pen.text((MARGIN, top + GAP + len(lines) * height + 2), count, fill=FAINT, font=small)


def _wrapped(text: str, font: Font, width: int, most: int = 3) -> list[str]:
    """Break the text into at most so many lines, between words where possible; an ellipsis stands
    for the rest.
    """
    lines: list[str] = []
    rest = "".join(letter if letter.isprintable() else "?" for letter in text)
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
