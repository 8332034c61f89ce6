"""`catalog.sqlite`: which image each stored vector is of, and its metadata.

A version's catalog is never changed: an update copies it and changes the copy. Tables:

- `images`: `row` of the vector, `id` of the image, `content`, the SHA-256 of the image;
- `columns`: `number`, `name` of a column of metadata;
- `words`: `number` of the column, `word`, `row`: a word for each image that has one there.
"""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import BadInput
from assay.index.backends import Mask, Rows
from assay.index.manifest import DamagedIndex

AT_ONCE = 500
"""Values that one query names."""

TABLES = """
CREATE TABLE images (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT NOT NULL);
CREATE TABLE columns (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE words (number INTEGER NOT NULL, word TEXT NOT NULL, row INTEGER NOT NULL,
    PRIMARY KEY (number, word, row)) WITHOUT ROWID;
CREATE INDEX images_by_content ON images (content);
CREATE UNIQUE INDEX words_by_row ON words (row, number);
"""


PARTS = {
    ("table", "images"),
    ("table", "columns"),
    ("table", "words"),
    ("index", "images_by_content"),
    ("index", "words_by_row"),
}
"""All that a catalog holds, by kind and name."""


@dataclass(frozen=True)
class Entry:
    """An image of an index.

    Args:
        id: its name.
        content: SHA-256 of the image.
        words: metadata by column.
    """

    id: str
    content: str
    words: Mapping[str, str] = field(default_factory=dict)


class Catalog:
    """The catalog of a version, to be read from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # One connection for all threads: an open file keeps its content even when a writer removes
        # the version, and no thread can open it after that.
        self._turn = threading.Lock()
        try:
            place = f"file:{_quoted(path)}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(place, uri=True, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise DamagedIndex(f"{path} cannot be read ({error})") from None
        try:
            self._check_tables()
            found = self._all("SELECT name, number FROM columns")
        except BadInput:
            self._connection.close()
            raise
        self._numbers = {str(name): int(number) for name, number in found}

    def _check_tables(self) -> None:
        """Raise `BadInput` where the file holds anything but the tables that are written here.

        A view in the place of a table could keep every reader busy for ever.
        """
        self._all("PRAGMA trusted_schema = OFF")
        found = set(
            self._all("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
        )
        if found != PARTS:
            raise DamagedIndex(f"{self.path} has other tables than a catalog: it was altered")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of metadata, sorted."""
        return tuple(sorted(self._numbers))

    def entries(self, rows: Sequence[int]) -> dict[int, Entry]:
        """Return the images of these rows."""
        names = {number: name for name, number in self._numbers.items()}
        found = {row: (id_, content) for row, id_, content in self._some("row, id, content", rows)}
        words: dict[int, dict[str, str]] = {row: {} for row in found}
        for part in _parts(list(found)):
            asked = f"SELECT row, number, word FROM words WHERE row IN ({_marks(part)})"
            for row, number, word in self._all(asked, part):
                words[row][names[number]] = word
        return {row: Entry(*found[row], words[row]) for row in found}

    def row_of(self, id_: str) -> int | None:
        """Return the row of the image with this id."""
        found = self._all("SELECT row FROM images WHERE id = ?", [id_])
        return found[0][0] if found else None

    def contents_of(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the hash of the content of each image, by id."""
        found: dict[str, str] = {}
        for part in _parts(ids):
            asked = f"SELECT id, content FROM images WHERE id IN ({_marks(part)})"
            found.update(self._all(asked, part))
        return found

    def words_of(self, column: str, most: int) -> list[tuple[str, int]]:
        """Return the words of a column and how many images have each, the most frequent first."""
        self.check_column(column)
        asked = (
            "SELECT word, count(*) FROM words WHERE number = ? GROUP BY word"
            " ORDER BY count(*) DESC, word LIMIT ?"
        )
        return self._all(asked, [self._numbers[column], most])

    def where(self, wanted: Mapping[str, Sequence[str]], rows: int) -> Mask:
        """Return which rows have, in each of these columns, one of its words."""
        allowed = np.ones(rows, dtype=np.bool_)
        for column, words in wanted.items():
            self.check_column(column)
            here = np.zeros(rows, dtype=np.bool_)
            for part in _parts(list(words)):
                asked = f"SELECT row FROM words WHERE number = ? AND word IN ({_marks(part)})"
                found = self._all(asked, [self._numbers[column], *part])
                here[np.fromiter((row for (row,) in found), dtype=np.int64)] = True
            allowed &= here
        return allowed

    def check_column(self, column: str) -> None:
        """Raise `BadInput` where the index has no such column."""
        if column not in self._numbers:
            known = ", ".join(self.columns) or "none; give some with --metadata when indexing"
            raise BadInput(f"the index has no column {column!r} (it has {known})")

    def images(self) -> list[tuple[int, str, str]]:
        """Return row, id and content of every image, by row."""
        return self._all("SELECT row, id, content FROM images ORDER BY row")

    def words(self, column: str) -> dict[int, str]:
        """Return the word of each row that has one in a column."""
        self.check_column(column)
        asked = "SELECT row, word FROM words WHERE number = ?"
        return dict(self._all(asked, [self._numbers[column]]))

    def check(self) -> list[str]:
        """Return what SQLite finds wrong with the file."""
        found = [line for (line,) in self._all("PRAGMA integrity_check")]
        return [] if found == ["ok"] else [f"{self.path}: {line}" for line in found]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _all(self, asked: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            with self._turn:
                return self._connection.execute(asked, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise DamagedIndex(f"{self.path} cannot be read ({error})") from None

    def _some(self, fields: str, rows: Sequence[int]) -> Iterator[Any]:
        for part in _parts(list(rows)):
            yield from self._all(f"SELECT {fields} FROM images WHERE row IN ({_marks(part)})", part)


class CatalogDraft:
    """A catalog that is being written, from nothing or from a copy of an earlier one."""

    def __init__(self, path: Path, before: Path | None) -> None:
        if before is not None:
            shutil.copyfile(before, path)
        self._file = sqlite3.connect(path, isolation_level=None)
        # The folder is synced and put in place as a whole; a draft that was cut short is removed.
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("BEGIN")
        if before is None:
            for statement in TABLES.split(";"):
                self._file.execute(statement)

    def remove(self, rows: Iterable[int]) -> None:
        """Remove the images of these rows."""
        numbers = [(row,) for row in rows]
        self._file.executemany("DELETE FROM images WHERE row = ?", numbers)
        self._file.executemany("DELETE FROM words WHERE row = ?", numbers)

    def add(self, first: int, entries: Iterable[Entry]) -> None:
        """Add images, the first of them as row `first`."""
        numbered = list(enumerate(entries, start=first))
        self._file.executemany(
            "INSERT INTO images VALUES (?, ?, ?)",
            ((row, entry.id, entry.content) for row, entry in numbered),
        )
        self._insert_words((row, entry.words) for row, entry in numbered)

    def describe(self, words: Mapping[int, Mapping[str, str]]) -> None:
        """Replace the metadata of these rows."""
        self._file.executemany("DELETE FROM words WHERE row = ?", [(row,) for row in words])
        self._insert_words(words.items())

    def renumber(self, kept: Rows) -> None:
        """Give the rows `kept` (in rising order) the numbers 0, 1, ...; all others were removed."""
        self._file.execute("CREATE TEMP TABLE numbers (before INTEGER PRIMARY KEY, now INTEGER)")
        pairs = zip(kept.tolist(), range(len(kept)), strict=True)
        self._file.executemany("INSERT INTO numbers VALUES (?, ?)", pairs)
        for table in ("images", "words"):
            # Rows fall, each onto a place that is free by then: in rising order nothing collides.
            columns = "now, id, content" if table == "images" else "number, word, now"
            self._file.execute(
                f"CREATE TEMP TABLE moved AS SELECT {columns} FROM {table}"
                f" JOIN numbers ON {table}.row = numbers.before"
            )
            self._file.execute(f"DELETE FROM {table}")
            self._file.execute(f"INSERT INTO {table} SELECT * FROM moved")
            self._file.execute("DROP TABLE moved")
        self._file.execute("DROP TABLE numbers")

    def finish(self) -> tuple[str, ...]:
        """Close the file and return the names of the columns that images have words in."""
        self._file.execute(
            "DELETE FROM columns WHERE number NOT IN (SELECT DISTINCT number FROM words)"
        )
        names = self._file.execute("SELECT name FROM columns ORDER BY name").fetchall()
        self._file.execute("COMMIT")
        self._file.execute("ANALYZE")
        self._file.close()
        return tuple(name for (name,) in names)

    def close(self) -> None:
        """Give the file up."""
        self._file.close()

    def _insert_words(self, words: Iterable[tuple[int, Mapping[str, str]]]) -> None:
        numbers: dict[str, int] = dict(self._file.execute("SELECT name, number FROM columns"))

        def rows() -> Iterator[tuple[int, str, int]]:
            for row, own in words:
                for column, word in own.items():
                    if column not in numbers:
                        added = "INSERT INTO columns (name) VALUES (?) RETURNING number"
                        (numbers[column],) = self._file.execute(added, (column,)).fetchone()
                    yield numbers[column], word, row

        self._file.executemany("INSERT INTO words VALUES (?, ?, ?)", list(rows()))


@contextmanager
def drafting(path: Path, before: Path | None) -> Iterator[CatalogDraft]:
    """Yield a catalog to write, from nothing or from a copy of `before`."""
    try:
        draft = CatalogDraft(path, before)
        try:
            yield draft
        finally:
            draft.close()
    except sqlite3.OperationalError as error:
        number = errno.ENOSPC if "full" in str(error) else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def _parts(values: Sequence[object]) -> Iterator[list[object]]:
    for start in range(0, len(values), AT_ONCE):
        yield list(values[start : start + AT_ONCE])


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _quoted(path: Path) -> str:
    """Return a path as a URI has it."""
    return path.absolute().as_uri().removeprefix("file://")
