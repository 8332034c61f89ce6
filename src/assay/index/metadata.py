"""Metadata of the images of an index: a CSV with a row for each image, and the filters on it.

The first row names the columns. One column names the images by their ids in the index: `id`,
`path`, `file` or `image`, else the first. Every other cell is a word that the image has in that
column; an empty cell is none. Words and names are taken in Unicode's composed form (NFC), without
spaces around them, in the file and in filters alike.
"""

import csv
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from assay.data.sources.official import first_few
from assay.data.sources.table import MOST_ROWS, SEPARATORS
from assay.errors import BadInput, reason_of
from assay.files import read_lines

NAMES_IMAGES = ("id", "path", "file", "image")
"""Columns that may name the images, in any case of letters."""

MOST_COLUMNS = 64
LONGEST_NAME = 100
LONGEST_WORD = 1000
"""Letters of a cell above which it is no word: a text to read is not one to filter by."""

SHOWN = 40
"""Letters of a value that a message shows."""

Words = dict[str, dict[str, str]]
"""Word by column, of each image by its id."""


@dataclass(frozen=True)
class _Row:
    """A row of the file that has cells, and the line that it begins on."""

    line: int
    cells: list[str]


def read_metadata(
    path: Path, ids: Sequence[str], *, root: Path | None = None
) -> tuple[Words, list[str]]:
    """Return the words of the images that a CSV has a row for, by id, and notes on all others.

    Raises `BadInput`, with file, line, value and remedy, where a row cannot be understood or
    contradicts another one, and where no row names an image of the index.

    Args:
        path: the file, in UTF-8. Its columns are separated by commas; by semicolons, tabs or
            vertical bars where the first line has these and no comma.
        ids: ids of the images of the index.
        root: the folder that ids are relative to; a path below it is understood too.
    """
    if path.suffix.lower() in (".parquet", ".pq", ".xlsx", ".xls", ".ods", ".json"):
        raise _wrong(path, f"metadata are read from a CSV, not from {path.suffix}; save it as .csv")
    header, rows = _read_table(path)
    find = _Finder(ids, root)
    place = _column_of_images(header, rows, find)
    others = [number for number in range(len(header)) if number != place]
    if not others:
        raise _wrong(
            path, f"it has no column but {header[place]!a}, so it says nothing of the images"
        )
    words: Words = {}
    lines: dict[str, int] = {}
    unknown = []
    for row in rows:
        name = row.cells[place]
        if not name:
            raise _wrong(path, f"no {header[place]} is given; name the image", row.line)
        id_ = find(name)
        if id_ is None:
            unknown.append(name)
            continue
        own = {header[number]: row.cells[number] for number in others if row.cells[number]}
        before = lines.setdefault(id_, row.line)
        if words.setdefault(id_, own) != own:
            raise _twice(path, row, id_, before, words[id_], own)
    if not words:
        raise _wrong(
            path,
            f"none of its {len(rows):,} rows names an image of the index by {header[place]!a}: it"
            f" has {first_few([_shown(name) for name in unknown])}, the index has"
            f" {first_few([_shown(id_) for id_ in ids])}. Name images by their path from the folder"
            " that was indexed",
        )
    return words, _notes(path, header[place], unknown, len(ids) - len(words), len(ids))


def parse_where(filters: Sequence[str]) -> dict[str, list[str]]:
    """Return the wanted words by column of filters such as `colour=red`.

    An image has to have, in each column, one of the words that are given for it.

    >>> parse_where(["colour=red", "colour=blue", "make=a=b"])
    {'colour': ['red', 'blue'], 'make': ['a=b']}
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    for text in filters:
        column, equals, word = (_tidy(part) for part in text.partition("="))
        if not (column and equals and word):
            lacks = "an =" if not equals else "a column before the =" if not column else "a word"
            raise BadInput(
                f"the filter {_shown(text)} lacks {lacks}; write column=word, such as colour=red"
            )
        if word not in wanted[column]:
            wanted[column].append(word)
    return dict(wanted)


# --- Reading ---


def _read_table(path: Path) -> tuple[list[str], list[_Row]]:
    """Return the names of the columns, and the rows, each as wide as they are."""
    rows = _read_rows(path)
    header = next(rows, None)
    if header is None:
        raise _wrong(path, "it is empty; write the names of the columns into its first line")
    _check_header(path, header)
    found = []
    for row in rows:
        if len(row.cells) != len(header.cells):
            raise _wrong(
                path,
                f"it has {len(row.cells)} cells but there are {len(header.cells)} columns; put"
                " cells that have a separator in them in double quotes",
                row.line,
            )
        for name, cell in zip(header.cells, row.cells, strict=True):
            _check_cell(path, row, name, cell)
        found.append(row)
        if len(found) > MOST_ROWS:
            raise _wrong(path, f"it has more than {MOST_ROWS:,} rows; split it")
    if not found:
        raise _wrong(path, "it has no rows below the names of its columns")
    return header.cells, found


def _read_rows(path: Path) -> Iterator[_Row]:
    """Yield the rows of a CSV that are not empty, their cells tidied."""
    begins = 1
    try:
        lines = read_lines(path, "utf-8-sig")
        first = next(lines, "")
        rows = csv.reader(chain([first], lines), strict=True, delimiter=_separator(path, first))
        for cells in rows:
            if cells:
                yield _Row(begins, [_tidy(cell) for cell in cells])
            begins = rows.line_num + 1
    except UnicodeDecodeError:
        raise _wrong(path, "it is not UTF-8; save it as CSV UTF-8") from None
    except csv.Error as error:
        raise _wrong(
            path,
            f"the row that begins here cannot be read ({reason_of(error)}); put cells that have a"
            " comma or a quote in them in double quotes, and double the quotes in them",
            begins,
        ) from None
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise _wrong(path, f"it cannot be read ({reason_of(error)})") from None


def _separator(path: Path, first: str) -> str:
    """Return what separates the columns.

    It is another mark than the comma only where that cannot be wrong: the first line has no comma,
    so with commas there would be one column, of which nothing can be used.
    """
    if "," in first:
        return ","
    marks = [mark for mark in SEPARATORS if len(next(csv.reader([first], delimiter=mark), [])) > 1]
    if len(marks) > 1:
        named = " and ".join(SEPARATORS[mark] for mark in marks)
        raise _wrong(
            path,
            f"{_shown(first.strip())} has {named} and no comma, so it is not certain what separates"
            " the columns; save it with commas",
            1,
        )
    return marks[0] if marks else ","


def _check_header(path: Path, header: _Row) -> None:
    names = header.cells
    if len(names) > MOST_COLUMNS:
        raise _wrong(
            path,
            f"it has {len(names):,} columns, more than {MOST_COLUMNS}; leave some out",
            header.line,
        )
    for number, name in enumerate(names):
        if not name:
            raise _wrong(
                path,
                f"column {number + 1} has no name; name or remove it (in pandas: index=False)",
                header.line,
            )
        if not name.isprintable() or len(name) > LONGEST_NAME or "=" in name:
            raise _wrong(
                path,
                f"{_shown(name)} is no name of a column: give one of at most {LONGEST_NAME} letters"
                " without = (which filters have) and control characters",
                header.line,
            )
        if name in names[:number]:
            raise _wrong(path, f"two columns are called {_shown(name)}; rename one", header.line)


def _check_cell(path: Path, row: _Row, column: str, cell: str) -> None:
    if "\0" in cell:
        raise _wrong(path, f"{column} has a NUL character: {_shown(cell)}; remove it", row.line)
    if len(cell) > LONGEST_WORD:
        raise _wrong(
            path,
            f"{column} has {len(cell):,} characters, more than {LONGEST_WORD:,}: {_shown(cell)};"
            " shorten it, or leave the column out (if a double quote is missing, add it)",
            row.line,
        )


# --- Which image a row is about ---


class _Finder:
    """Finds the id that a cell means."""

    def __init__(self, ids: Sequence[str], root: Path | None) -> None:
        self.ids, self.root = set(ids), root
        by_form: dict[str, list[str]] = defaultdict(list)
        for id_ in ids:
            by_form[_tidy(id_)].append(id_)
        self.alone = {form: same[0] for form, same in by_form.items() if len(same) == 1}

    def __call__(self, cell: str) -> str | None:
        """Return the id; None where the index has no such image."""
        for name in (cell, cell.removeprefix("./"), self._below_root(cell)):
            if name in self.ids:
                return name
            if name in self.alone:
                return self.alone[name]
        return None

    def _below_root(self, cell: str) -> str:
        """Return an absolute path as an id, if it lies below the root."""
        if self.root is None or not cell.startswith("/"):
            return cell
        root = _tidy(self.root.absolute().as_posix())
        return cell.removeprefix(f"{root.rstrip('/')}/")


def _column_of_images(header: Sequence[str], rows: Sequence[_Row], find: _Finder) -> int:
    """Return the number of the column that names the images.

    Of several that might, it is the one that names most images, the first among equals.
    """
    known = [number for number, name in enumerate(header) if name.lower() in NAMES_IMAGES]
    if len(known) < 2:
        return known[0] if known else 0
    return max(known, key=lambda place: sum(find(row.cells[place]) is not None for row in rows))


def _twice(
    path: Path,
    row: _Row,
    id_: str,
    before: int,
    first: Mapping[str, str],
    second: Mapping[str, str],
) -> BadInput:
    """Return the error for an image with two rows that say different things."""
    name = min(column for column in {*first, *second} if first.get(column) != second.get(column))
    values = " and ".join(_shown(own.get(name, "")) for own in (second, first))
    return _wrong(
        path,
        f"{_shown(id_)} is also on line {before}, with other words ({name}: {values}); keep the row"
        " that is right",
        row.line,
    )


def _notes(path: Path, column: str, unknown: list[str], without: int, count: int) -> list[str]:
    notes = []
    if unknown:
        notes.append(
            f"{path.name}: {len(unknown):,} row{'s' * (len(unknown) != 1)} left out, whose"
            f" {column} is no image of the index: {first_few([_shown(name) for name in unknown])}"
        )
    if without:
        notes.append(f"{path.name}: {without:,} of the {count:,} images of the index have no row")
    return notes


# --- Words ---


def _tidy(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip())


def _shown(text: str) -> str:
    """Return a value as a message shows it: on one line, with its end cut off where it is long."""
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")


def _wrong(path: Path, what: str, line: int | None = None) -> BadInput:
    return BadInput(f"--metadata {path}{'' if line is None else f', line {line}'}: {what}")
