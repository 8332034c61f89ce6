"""`assay search --sheet matches.png`: queries and their matches as pictures, a row for each query.

A match shows its score, its confidence where the index is calibrated, its id and its words. Where
the class of query and match is known, the frame is green if they are the same and red if not. An
image whose file was moved, removed or changed since it was indexed is a grey box that says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from assay.data.contact_sheet import FORMATS, Captioned, check_sheet, write_rows
from assay.data.images import Picture
from assay.errors import reason_of
from assay.hashing import digest_file
from assay.index.catalog import Entry
from assay.index.matches import Found, Match

COLUMNS, MOST_LINES = 10, 20
"""Matches beside each other, and lines of them on a sheet; what goes beyond is left out."""

SAME, OTHER = "#1f8a3b", "#d23c3c"
"""Colours of the frames of matches of the same and of another class than the query."""

QUERY = "#1a1a1a"
"""Colour of the frame of a query."""


@dataclass(frozen=True)
class Asked:
    """A query as the sheet shows it.

    Args:
        picture: its picture; None: it has none, as rows of vectors.
        word: its class, where that is known.
    """

    picture: Picture | None
    word: str | None = None


class IndexedImages(Protocol):
    """Where the images of an index are; an `Index` is one."""

    def entry(self, id_: str) -> Entry | None:
        """Return the image with this id."""

    def file_of(self, id_: str) -> Path | None:
        """Return its file, which may have been moved or changed since."""


def draw_sheet(
    found: Sequence[Found],
    out: Path,
    images: IndexedImages,
    asked: Callable[[str], Asked],
    *,
    label: str | None = None,
) -> list[str]:
    """Write the queries and their matches as a picture; return notes on what was left out.

    Args:
        found: the matches of each query.
        out: a .png or .jpg file.
        images: the images of the index.
        asked: returns what is known of a query, by its name.
        label: column with the class of an image.
    """
    check_sheet(out, tuple(FORMATS))
    shown = found[:MOST_LINES]
    lines = MOST_LINES // max(len(shown), 1)
    rows: list[list[Captioned | None]] = []
    for one in shown:
        query = asked(one.query)
        best = one.matches[: lines * COLUMNS]
        cells = [_match(match, images, query.word, label) for match in best]
        cells = cells or [Captioned(None, instead="nothing found")]
        for start in range(0, len(cells), COLUMNS):
            first = None if start else _query(one.query, query)
            rows.append([first, *cells[start : start + COLUMNS]])
    notes = _notes(found, lines * COLUMNS)
    framed = any(cell.frame in (SAME, OTHER) for row in rows for cell in row if cell is not None)
    about = _about(found, label if framed else None)
    write_rows(out, _title(found), "; ".join([about, *notes]), rows)
    return notes


def _title(found: Sequence[Found]) -> str:
    if len(found) == 1:
        return f"Matches of {PurePosixPath(found[0].query).name[-60:]}"
    return f"Matches of {len(found):,} queries"


def _about(found: Sequence[Found], label: str | None) -> str:
    calibrated = any(match.confidence is not None for one in found for match in one.matches)
    parts = ["score, and how likely a match is right" if calibrated else "score"]
    if label is not None:
        parts.append(f"green: the same {label} as the query, red: another")
    return "; ".join(parts)


def _notes(found: Sequence[Found], most: int) -> list[str]:
    notes = []
    if len(found) > MOST_LINES:
        notes.append(f"the first {MOST_LINES} of {len(found):,} queries are shown")
    longest = max((len(one.matches) for one in found[:MOST_LINES]), default=0)
    if longest > most:
        notes.append(f"the first {most} of up to {longest:,} matches are shown")
    return notes


def _query(name: str, query: Asked) -> Captioned:
    lines = ("query", *_named(name), *([query.word] if query.word else []))
    return Captioned(query.picture, lines, "no picture", QUERY)


def _match(match: Match, images: IndexedImages, word: str | None, label: str | None) -> Captioned:
    own = match.words.get(label) if label is not None else None
    known = word is not None and own is not None
    mark = (" ✓" if own == word else " ✗") if known else ""
    sure = "" if match.confidence is None else f"  {match.confidence:.0%}"
    first = f"{match.rank}.  {_score(match.score)}{sure}{mark}"
    lines = (first, *_named(match.id), *_words(match, label))
    frame = (SAME if own == word else OTHER) if known else None
    problem = _problem(match.id, images)
    if problem:
        return Captioned(None, lines, problem, frame)
    return Captioned(images.file_of(match.id), lines, frame=frame)


def _problem(id_: str, images: IndexedImages) -> str:
    """Return why the picture of an image cannot be shown; empty where it can be."""
    path, entry = images.file_of(id_), images.entry(id_)
    if path is None or entry is None:
        return "no picture"
    try:
        changed = digest_file(path) != entry.content
    except FileNotFoundError:
        return "file is missing"
    except OSError as error:
        return reason_of(error)
    return "file was changed" if changed else ""


def _score(score: float) -> str:
    """Return a score as people read it: numbers of bits are whole."""
    return f"{score:.0f}" if score.is_integer() and abs(score) > 1 else f"{score:.3f}"


def _named(name: str) -> tuple[str, ...]:
    """Return the last part of a name, and what comes before it where there is more."""
    path = PurePosixPath(name)
    return (path.name, *([] if path.parent == PurePosixPath() else [f"{path.parent}/"]))


def _words(match: Match, label: str | None) -> tuple[str, ...]:
    """Return the class of an image; where no column has the class, all its words."""
    if label is not None and label in match.words:
        return (match.words[label],)
    words = ", ".join(f"{column}: {word}" for column, word in sorted(match.words.items()))
    return (words,) if words else ()
