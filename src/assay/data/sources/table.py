"""`table:FILE`: a CSV or Parquet file that names images and their labels, wherever they lie.

Columns: `path` (from the folder of the table, or absolute) and `label`; and where wanted `split`
(trainval or test), `query` and `gallery` (marks of the test half), `positive` and `negative` (paths
of other rows, which a row belongs with or does not) and any others, which are kept as metadata. The
order of the rows does not matter. Names and labels are taken in Unicode's composed form (NFC), so
that a copy written in the other one is the same data set. In a CSV the header counts as row 1, as
in a spreadsheet; rows of a Parquet file count from 1.
"""

import csv
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from assay.data.dataset import Dataset, Labels, Marks, datasets
from assay.data.images import endings
from assay.data.paths import check_inside
from assay.data.sources.official import ListedImages, files_in, first_few, make_dataset
from assay.data.sources.table_lists import read_relations
from assay.errors import BadInput, reason_of
from assay.files import open_file, read_lines
from assay.progress import Progress, silent

SPLITS = {"train": True, "trainval": True, "test": False}
MARKS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
MOST_ROWS = 20_000_000
"""Rows of the largest table; a small Parquet file may claim many more."""

NO_TEXT = (bytes, list, dict, tuple)
"""Types of cells of a Parquet file that no CSV has: binary, lists, structs and maps."""

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Marks that separate columns in files that other programs call CSV."""

KNOWN = ("path", "label", "split", "query", "gallery", "positive", "negative")
"""Columns whose cells are used; those of other columns are kept as text."""

NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True)
class ImageTable:
    """Cells by column, and the number of each row as people count it."""

    file: Path
    columns: dict[str, list[str]]
    numbers: list[int]

    @property
    def folder(self) -> Path:
        """Folder of the table, from which paths are given."""
        return self.file.absolute().parent

    def file_of(self, cell: str) -> Path:
        """Return the file that a cell names."""
        return Path(cell).expanduser() if cell.startswith("~/") else self.folder / cell

    def name_of(self, path: Path) -> str:
        """Return the name of the image in a file: its path, from the folder of the table if it lies
        there.
        """
        inside = path.is_relative_to(self.folder)
        return _composed((path.relative_to(self.folder) if inside else path).as_posix())

    @property
    def labels(self) -> list[str]:
        """Label of each row."""
        return self.columns["label"]

    def wrong(self, row: int, what: str) -> BadInput:
        """Return the error for a row."""
        return BadInput(f"table:{self.file}: row {self.numbers[row]} {what}")


@datasets("table:")
def load_table(path: Path, progress: Progress = silent) -> Dataset:
    """A .csv or .parquet file with the columns path and label, and perhaps split, query, gallery,
    positive, negative, category and others.
    """
    table = _read(path)
    for column in ("path", "label"):
        _need(table, column)
    table = _with_composed_labels(table)
    ids, paths, beside = _find_images(table)
    split = _words(
        table,
        "split",
        SPLITS,
        "trainval (or train) or test; folds for validation are made of trainval",
    )
    class_names, labels, trainval = _classes(table, split)
    query, gallery = (
        _words(table, role, MARKS, "1 or 0, true or false, yes or no")
        for role in ("query", "gallery")
    )
    metadata = {column: cells for column, cells in table.columns.items() if column not in KNOWN}
    relations = read_relations(table, ids)
    images = ListedImages(ids, paths, labels, query, gallery, metadata, relations)
    notes = [*beside, *_notes(ids, split, query, gallery)]
    return make_dataset(
        f"table:{path.name}",
        images,
        class_names,
        trainval=trainval,
        notes=notes,
        official=False,
        progress=progress,
    )


def _read(path: Path) -> ImageTable:
    readers: dict[str, Callable[[Path], ImageTable]] = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".pq": _read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if path.is_dir() or reader is None:
        raise BadInput(
            f"table:{path} must be a .csv or .parquet file with the columns path and label"
        )
    table = reader(path)
    if not table.numbers:
        raise BadInput(f"table:{path} has no rows")
    return table


def _read_csv(path: Path) -> ImageTable:
    try:
        rows = csv.reader(read_lines(path, "utf-8-sig"), strict=True)
        lines = [[cell.strip() for cell in line] for line in rows]
    except UnicodeDecodeError:
        raise BadInput(f"table:{path} is not UTF-8; save it as CSV UTF-8") from None
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(
            f"table:{path} cannot be read as a CSV: {reason_of(error)}. Save it as CSV UTF-8 with"
            " commas, and cells that have a comma or a quote in them in double quotes"
        ) from None
    header = lines[0] if lines else []
    _check_separator(path, header)
    _check_header(path, header)
    numbers = [number for number, line in enumerate(lines[1:], 2) if line]
    for number in numbers:
        cells = lines[number - 1]
        if len(cells) != len(header):
            raise BadInput(
                f"table:{path}: row {number} has {len(cells)} cells but the header has"
                f" {len(header)}; put cells that have a comma in them in double quotes"
            )
    columns = {
        column: [lines[number - 1][place] for number in numbers]
        for place, column in enumerate(header)
    }
    return ImageTable(path, columns, numbers)


def _read_parquet(path: Path) -> ImageTable:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise BadInput(
            f"table:{path} needs pyarrow: pip install pyarrow, or save it as .csv"
        ) from None
    try:
        with open_file(path) as stream:
            file = parquet.ParquetFile(stream)
            if file.metadata.num_rows > MOST_ROWS:
                raise ValueError(f"it has {file.metadata.num_rows:,} rows, over {MOST_ROWS:,}")
            content = file.read()
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise BadInput(
            f"table:{path} cannot be read as a Parquet file: {reason_of(error)}. Write it again,"
            " or save it as .csv"
        ) from None
    _check_header(path, content.column_names)
    columns = {name: _cells(path, name, content[name]) for name in content.column_names}
    return ImageTable(path, columns, list(range(1, content.num_rows + 1)))


def _cells(path: Path, name: str, column: Any) -> list[str]:
    """Return a column of a Parquet file as text."""
    try:
        cells = column.to_pylist()
        if name in KNOWN and any(isinstance(cell, NO_TEXT) for cell in cells):
            raise TypeError("its cells are no text or numbers")
        return [_cell(cell) for cell in cells]
    except Exception as error:  # of dates, time zones and encodings, each of another type
        raise BadInput(
            f"table:{path}: the column {name} ({column.type}) cannot be read as text"
            f" ({reason_of(error)}). Save it as text in UTF-8, or remove it"
        ) from None


def _cell(cell: Any) -> str:
    """Return a cell as a CSV has it: empty where it is missing, whole numbers without a point."""
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def _check_header(path: Path, header: Sequence[str]) -> None:
    if "" in header:
        raise BadInput(
            f"table:{path}: column {header.index('') + 1} has no name; name or remove it (in"
            " pandas: index=False)"
        )
    twice = [column for place, column in enumerate(header) if column in header[:place]]
    if twice:
        raise BadInput(f"table:{path} has two columns called {twice[0]}; rename one")


def _check_separator(path: Path, header: Sequence[str]) -> None:
    """Raise `BadInput` where something other than commas separates the names of the columns."""
    for mark, name in SEPARATORS.items():
        words = {word.strip() for word in ",".join(header).split(mark)}
        if {"path", "label"} <= words:
            raise BadInput(
                f"table:{path} is separated by {name}, and Assay reads commas; save it with commas,"
                f" as pandas does: read_csv(..., sep={mark!r}).to_csv(..., index=False)"
            )


def _need(table: ImageTable, column: str) -> None:
    if column not in table.columns:
        has = ", ".join(table.columns)
        raise BadInput(
            f"table:{table.file} has no column {column} (it has {has}); it needs path and label,"
            " separated by commas"
        )
    for row, cell in enumerate(table.columns[column]):
        if not cell:
            raise table.wrong(row, f"has no {column}; fill it in or remove the row")
        if column == "label" and "\0" in cell:
            raise table.wrong(row, f"has a NUL byte in its label {cell!a}; remove it")


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _with_composed_labels(table: ImageTable) -> ImageTable:
    written: dict[str, str] = {}
    for row, label in enumerate(table.labels):
        before = written.setdefault(_composed(label), label)
        if before != label:
            raise table.wrong(
                row,
                f"has the label {label!a}, elsewhere written {before!a}; write it in one way of"
                " Unicode only",
            )
    return replace(
        table,
        columns=table.columns | {"label": [_composed(label) for label in table.labels]},
    )


def _find_images(table: ImageTable) -> tuple[list[str], list[Path], list[str]]:
    """Return name and file of each row, and notes on images without a row. Files below the folder
    of the table are named from there.
    """
    folder = table.folder
    paths = [_path(table, row) for row in range(len(table.numbers))]
    ids = [table.name_of(path) for path in paths]
    _check_once(table, ids, paths)
    there: dict[Path, set[str]] = {
        parent: files_in(parent) for parent in {path.parent for path in paths}
    }
    missing = [row for row, path in enumerate(paths) if path.name not in there[path.parent]]
    if missing:
        some = first_few([f"{ids[row]} (row {table.numbers[row]})" for row in missing])
        raise BadInput(
            f"table:{table.file}: {len(missing):,} of {len(paths):,} files are not there: {some}; "
            f"paths are relative to {folder}, the folder of the table"
        )
    check_inside(folder, [path for path in paths if path.is_relative_to(folder)])
    return ids, paths, _without_row(paths, there)


def _without_row(paths: Sequence[Path], there: Mapping[Path, set[str]]) -> list[str]:
    """Return a note on images beside the table's images that have no row."""
    named: dict[Path, set[str]] = defaultdict(set)
    for path in paths:
        named[path.parent].add(path.name)
    extra = [
        name
        for parent, files in there.items()
        for name in files - named[parent]
        if not name.startswith(".")
    ]
    images = sorted(name for name in extra if Path(name).suffix.lower() in endings())
    return (
        [f"{len(images)} images left out that have no row in the table: {first_few(images)}"]
        if images
        else []
    )


def _path(table: ImageTable, row: int) -> Path:
    cell = table.columns["path"][row]
    parts = PurePosixPath(cell).parts
    if ".." in parts:
        raise table.wrong(
            row,
            f"has .. in its path {cell!a}; move the table above its images, or write the absolute"
            " path",
        )
    if "\\" in cell or not cell.isprintable():
        raise table.wrong(
            row,
            f"has a path that cannot be read here: {cell!a}; write folders with / and names in"
            " plain text",
        )
    return table.file_of(cell)


def _check_once(table: ImageTable, ids: Sequence[str], paths: Sequence[Path]) -> None:
    labels = table.labels
    first: dict[str, int] = {}
    for row, name in enumerate(ids):
        before = first.setdefault(name, row)
        if before == row:
            continue
        if paths[before] != paths[row]:
            raise table.wrong(
                row,
                f"has the name {name!a} of row {table.numbers[before]}, written in two ways of"
                " Unicode; rename one of the files",
            )
        if labels[before] != labels[row]:
            labelled = f"{labels[before]!a} in row {table.numbers[before]}, {labels[row]!a} here"
            raise table.wrong(row, f"gives {name} a second label ({labelled}); keep the right one")
        raise table.wrong(
            row, f"repeats {name} of row {table.numbers[before]}; remove one of the two"
        )


def _words(table: ImageTable, column: str, meaning: dict[str, bool], allowed: str) -> Marks | None:
    """Return what each cell of the column means; None where the table has no such column."""
    if column not in table.columns:
        return None
    for row, cell in enumerate(table.columns[column]):
        if cell.lower() not in meaning:
            raise table.wrong(row, f"has {cell!a} as its {column}; write {allowed}")
    return np.array([meaning[cell.lower()] for cell in table.columns[column]], dtype=np.bool_)


def _classes(table: ImageTable, split: Marks | None) -> tuple[list[str], Labels, int | None]:
    """Return the class names in order, those of trainval first; the class of each row; and the
    number of classes of trainval.
    """
    labels = table.labels
    names = _in_order(table)
    trainval = None
    if split is not None:
        in_trainval = _check_disjoint(table, split)
        names = [name for name in names if name in in_trainval] + [
            name for name in names if name not in in_trainval
        ]
        trainval = len(in_trainval)
        if trainval in (0, len(names)):
            lacking = "trainval" if trainval == 0 else "test"
            raise BadInput(
                f"table:{table.file}: no row has {lacking} as its split; mark some, or remove the"
                " column for halves"
            )
    number = {name: place for place, name in enumerate(names)}
    return names, np.array([number[label] for label in labels], dtype=np.int64), trainval


def _in_order(table: ImageTable) -> list[str]:
    """Return the labels in the order of numbers where all are numbers, of text otherwise."""
    names = sorted(set(table.labels))
    if not all(NUMBER.fullmatch(name) for name in names):
        return names
    written: dict[Decimal, list[str]] = defaultdict(list)
    for name in names:
        written[Decimal(name)].append(name)
    for same in written.values():
        if len(same) > 1:
            row = table.labels.index(same[1])
            raise table.wrong(
                row,
                f"has the label {same[1]!a}, elsewhere written {same[0]!a}; write a number in one"
                " way only",
            )
    return [written[value][0] for value in sorted(written)]


def _check_disjoint(table: ImageTable, split: Marks) -> set[str]:
    """Return the labels of trainval; `BadInput` where one of them is in the test half too."""
    labels = table.labels
    in_trainval = {label for label, trains in zip(labels, split.tolist(), strict=True) if trains}
    for row, label in enumerate(labels):
        if not split[row] and label in in_trainval:
            shared = {
                label for label, trains in zip(labels, split.tolist(), strict=True) if not trains
            } & in_trainval
            raise table.wrong(
                row,
                f"has {label!a} in test, which is in trainval too ({len(shared)} such labels); the"
                " test is on classes that were never trained on: put all rows of a label on one"
                " side, or remove the column split for halves by class",
            )
    return in_trainval


def _notes(
    ids: Sequence[str], split: Marks | None, query: Marks | None, gallery: Marks | None
) -> list[str]:
    """Return notes on absolute paths and on samples of the test half that are not used."""
    notes = []
    if outside := sum(name.startswith("/") for name in ids):
        notes.append(f"{outside} absolute paths: elsewhere this data has another fingerprint")
    if split is not None and query is not None and gallery is not None:
        unused = int((~split & ~query & ~gallery).sum())
        if unused:
            notes.append(f"{unused} samples of the test half are neither query nor gallery")
    return notes
