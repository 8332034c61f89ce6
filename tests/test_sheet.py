"""`assay search --sheet`: queries and their matches as pictures."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.data.contact_sheet import (
    GAP,
    MARGIN,
    MOUNT,
    SIDE,
    SMALL,
    TITLE,
    Captioned,
    _font,
    _in_one_line,
    draw_rows,
)
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.index import sheet as module
from assay.index.catalog import Entry
from assay.index.matches import Found, Match
from assay.index.sheet import COLUMNS, MOST_LINES, OTHER, QUERY, SAME, Asked, draw_sheet

COLOURS = {"red": (200, 60, 50), "green": (60, 160, 80), "blue": (60, 90, 200)}
TOP = MARGIN + TITLE + SMALL + 4 * GAP


@dataclass
class Images:
    """The images of an index, of which only files and hashes are asked for."""

    root: Path
    entries: dict = field(default_factory=dict)

    def add(self, id_: str, colour: str, size=(60, 60)) -> None:
        path = self.root / id_
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, COLOURS[colour]).save(path)
        self.entries[id_] = Entry(id_, digest_file(path), {"colour": colour})

    def entry(self, id_):
        return self.entries.get(id_)

    def file_of(self, id_):
        return None if id_ == "vector" else self.root / id_

    def found(self, query, ids, *, confidence=None, score=0.5):
        return Found(
            query,
            tuple(
                Match(place + 1, id_, score, confidence, self.entries[id_].words)
                for place, id_ in enumerate(ids)
            ),
        )


@pytest.fixture
def images(tmp_path):
    found = Images(tmp_path / "images")
    for colour in COLOURS:
        found.add(f"{colour}.png", colour)
    return found


def nothing_known(query):
    return Asked(None)


def hex_of(colour):
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


class Sheet:
    """A drawn sheet, of which the cells can be looked at."""

    def __init__(self, path, lines):
        with Image.open(path) as image:
            self.format, self.size = image.format, image.size
            self.pixels = np.asarray(image.convert("RGB")).astype(int)
        self.height = SIDE + GAP + lines * 18 + 2 * GAP

    def corner(self, row, place):
        left = MARGIN + place * (SIDE + 2 * GAP) + (3 * GAP if place else 0)
        return TOP + row * self.height, left

    def picture(self, row, place):
        top, left = self.corner(row, place)
        return self.pixels[top : top + SIDE, left : left + SIDE]

    def frame(self, row, place):
        """Return the colour just left of the picture."""
        top, left = self.corner(row, place)
        return tuple(self.pixels[top + SIDE // 2, left - 2])

    def words(self, row, place):
        """Return the pixels of the words below the picture."""
        top, left = self.corner(row, place)
        return self.pixels[top + SIDE + GAP : top + self.height - GAP, left : left + SIDE]


WHITE = (255, 255, 255)


# --- what is drawn --------------------------------------------------------------------------------


def test_the_query_and_its_matches_stand_in_a_row(images, tmp_path):
    out = tmp_path / "sheet.png"
    found = images.found("q.png", ["red.png", "blue.png"])
    assert draw_sheet([found], out, images, lambda query: Asked(images.root / "green.png")) == []
    sheet = Sheet(out, lines=3)
    for place, colour in enumerate(("green", "red", "blue")):
        assert (sheet.picture(0, place) == COLOURS[colour]).all()
        assert sheet.words(0, place).min() < 80
    assert sheet.frame(0, 0) == hex_of(QUERY)
    assert sheet.frame(0, 1) == sheet.frame(0, 2) == WHITE
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_frame_says_whether_the_class_is_the_same_where_both_are_known(images, tmp_path):
    images.entries["blue.png"] = Entry("blue.png", images.entry("blue.png").content, {})
    found = images.found("q", ["red.png", "green.png", "blue.png"])
    for word, label, frames in (
        ("red", "colour", [hex_of(SAME), hex_of(OTHER), WHITE]),
        (None, "colour", [WHITE] * 3),
        ("red", None, [WHITE] * 3),
    ):
        out = tmp_path / "sheet.png"
        asked = Asked(images.root / "red.png", word)
        draw_sheet([found], out, images, lambda query, asked=asked: asked, label=label)
        sheet = Sheet(out, lines=3)
        assert [sheet.frame(0, place) for place in (1, 2, 3)] == frames


def test_the_colours_are_explained_where_there_are_any(images, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "write_rows", lambda path, title, about, rows: seen.append(about))
    found = images.found("q", ["red.png"], confidence=0.9)
    for word in (None, "red"):
        asked = Asked(None, word)
        draw_sheet([found], tmp_path / "s.png", images, lambda query, a=asked: a, label="colour")
    assert seen == [
        "score, and how likely a match is right",
        "score, and how likely a match is right; green: the same colour as the query, red: another",
    ]


def test_each_query_has_its_row(images, tmp_path):
    found = [images.found(colour, [f"{colour}.png"]) for colour in COLOURS]
    draw_sheet(
        found,
        tmp_path / "s.png",
        images,
        lambda query: Asked(np.full((20, 30, 3), 7, dtype=np.uint8)),
    )
    sheet = Sheet(tmp_path / "s.png", lines=3)
    for row, colour in enumerate(COLOURS):
        assert (sheet.picture(row, 1) == COLOURS[colour]).all()
        assert (sheet.picture(row, 0)[SIDE // 2, SIDE // 2] == 7).all()
        assert (sheet.picture(row, 0)[2, SIDE // 2] == hex_of(MOUNT)).all(), "its shape is kept"


def test_a_query_may_be_pillows_image_or_have_no_picture_or_no_matches(images, tmp_path):
    asked = {"pillow": Asked(Image.new("RGB", (9, 9), COLOURS["blue"])), "row 3": Asked(None)}
    found = [images.found("pillow", ["red.png"]), Found("row 3", ())]
    draw_sheet(found, tmp_path / "s.png", images, asked.__getitem__)
    sheet = Sheet(tmp_path / "s.png", lines=3)
    assert (sheet.picture(0, 0) == COLOURS["blue"]).all()
    for place in (0, 1):
        box = sheet.picture(1, place)
        assert (box[10, 10] == hex_of(MOUNT)).all()
        assert box[SIDE // 2 - 8 : SIDE // 2 + 8].min() < 150, "it has words in it"


def instead_of(images, tmp_path, monkeypatch, id_):
    """Return the words that are drawn in place of a match."""
    seen = []
    monkeypatch.setattr(module, "write_rows", lambda path, title, about, rows: seen.extend(rows))
    draw_sheet([images.found("q", [id_])], tmp_path / "s.png", images, nothing_known)
    return seen[0][1]


DAMAGE = {
    "missing": (lambda path: path.unlink(), "file is missing"),
    "changed": (lambda path: Image.new("RGB", (9, 9)).save(path), "file was changed"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_is_not_as_it_was_indexed_is_not_shown(images, tmp_path, monkeypatch, how):
    damage, words = DAMAGE[how]
    damage(images.root / "red.png")
    cell = instead_of(images, tmp_path, monkeypatch, "red.png")
    assert (cell.picture, cell.instead) == (None, words)
    monkeypatch.undo()
    draw_sheet([images.found("q", ["red.png"])], tmp_path / "s.png", images, nothing_known)
    assert (Sheet(tmp_path / "s.png", lines=3).picture(0, 1)[10, 10] == hex_of(MOUNT)).all()


def test_a_row_of_vectors_and_an_image_that_is_gone_from_the_index_have_no_picture(
    images, tmp_path, monkeypatch
):
    images.entries["vector"] = Entry("vector", "0" * 64)
    assert instead_of(images, tmp_path, monkeypatch, "vector").instead == "no picture"
    found = images.found("q", ["red.png"])
    del images.entries["red.png"]
    monkeypatch.undo()
    draw_sheet([found], tmp_path / "s.png", images, nothing_known)


def test_a_broken_image_that_was_indexed_is_a_box(images, tmp_path):
    path = images.root / "red.png"
    path.write_bytes(b"no image")
    images.entries["red.png"] = Entry("red.png", digest_file(path), {})
    draw_sheet([images.found("q", ["red.png"])], tmp_path / "s.png", images, nothing_known)
    assert (Sheet(tmp_path / "s.png", lines=2).picture(0, 1)[10, 10] == hex_of(MOUNT)).all()


def test_an_image_of_any_shape_is_shown_whole_or_its_middle(images, tmp_path):
    images.add("wide.png", "blue", (300, 100))
    images.add("thread.png", "red", (20, 2000))
    draw_sheet(
        [images.found("q", ["wide.png", "thread.png"])], tmp_path / "s.png", images, nothing_known
    )
    sheet = Sheet(tmp_path / "s.png", lines=3)
    wide = sheet.picture(0, 1)
    assert (wide[SIDE // 2] == COLOURS["blue"]).all()
    assert (wide[SIDE // 4] == hex_of(MOUNT)).all()
    assert (sheet.picture(0, 2) == COLOURS["red"]).all()


# --- words ----------------------------------------------------------------------------------------


def lines_of(match, word=None, label=None):
    return module._match(match, Images(Path("nowhere")), word, label).lines


def test_the_words_say_rank_score_confidence_name_and_class():
    match = Match(3, "birds/owl/1.png", 0.8765, 0.934, {"bird": "owl", "place": "wood"})
    assert lines_of(match, "owl", "bird") == ("3.  0.876  93% ✓", "1.png", "birds/owl/", "owl")
    assert lines_of(match, "jay", "bird")[0] == "3.  0.876  93% ✗"
    assert lines_of(match)[-1] == "bird: owl, place: wood"
    assert lines_of(Match(1, "1.png", 0.5)) == ("1.  0.500", "1.png")
    assert lines_of(Match(1, "1.png", -17.0))[0] == "1.  -17"
    assert lines_of(Match(1, "1.png", -17.25))[0] == "1.  -17.250"
    assert lines_of(Match(1, "1.png", 1.0))[0] == "1.  1.000"


LONG = [
    "x" * 5000,
    "Übergrößenträger_мышь_λόγος_0123456789.png",
    "日本語の名前" * 30,
    "a\nb\x00c\u202edef" * 20,
    "",
]


@pytest.mark.parametrize("name", LONG)
def test_a_long_name_is_cut_in_its_middle_to_the_width(name):
    short = _in_one_line(name, _font(SMALL), SIDE)
    assert _font(SMALL).getlength(short) <= SIDE
    assert short.isprintable()
    if name and len(short) < len(name):
        assert short.count("…") == 1
        first, last = short.split("…")
        clean = "".join(letter if letter.isprintable() else "?" for letter in name)
        assert clean.startswith(first) and clean.endswith(last) and first and last


def test_letters_beyond_ascii_are_drawn_as_letters():
    empty = bytes(_font(SMALL).getmask("\uffff"))
    for letter in "äßłØжλ✓✗…":
        assert bytes(_font(SMALL).getmask(letter)) != empty


@pytest.mark.parametrize("name", [*LONG, "deep/" * 400 + "x.png"])
def test_any_name_is_drawn_without_touching_its_neighbour(images, tmp_path, name):
    images.entries[name] = Entry(name, "0" * 64, {"colour": name or "?"})
    images.file_of = lambda id_: None
    draw_sheet([images.found(name, [name, name])], tmp_path / "s.png", images, nothing_known)
    sheet = Sheet(tmp_path / "s.png", lines=4)
    for place in (1, 2):
        top, left = sheet.corner(0, place)
        gap = sheet.pixels[
            top + SIDE + GAP : top + sheet.height, left + SIDE + 2 : left + SIDE + GAP
        ]
        assert (gap == 255).all()


# --- bounds and files -----------------------------------------------------------------------------


def test_what_does_not_fit_is_left_out_and_said_so(images, tmp_path):
    few = images.found("q", ["red.png"] * 2)
    notes = draw_sheet([few] * (MOST_LINES + 5), tmp_path / "s.png", images, nothing_known)
    assert notes == [f"the first {MOST_LINES} of {MOST_LINES + 5} queries are shown"]
    many = images.found("q", ["red.png"] * (COLUMNS * 2 + 1))
    found = [many] * (MOST_LINES // 2)
    notes = draw_sheet(found, tmp_path / "most.png", images, nothing_known)
    assert notes == [f"the first {2 * COLUMNS} of up to {2 * COLUMNS + 1} matches are shown"]
    with Image.open(tmp_path / "most.png") as sheet:
        assert sheet.size[0] < 2000 and sheet.size[1] < 6000


def test_files_of_matches_that_are_left_out_are_not_read(images, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "digest_file", lambda path: seen.append(path) or "0" * 64)
    found = images.found("q", ["red.png"] * 5000)
    draw_sheet([found], tmp_path / "s.png", images, nothing_known)
    assert len(seen) == MOST_LINES * COLUMNS


def test_many_matches_of_one_query_go_on_in_the_next_line(images, tmp_path):
    found = images.found("q", ["red.png"] * COLUMNS + ["blue.png"])
    draw_sheet([found], tmp_path / "s.png", images, lambda query: Asked(images.root / "green.png"))
    sheet = Sheet(tmp_path / "s.png", lines=3)
    assert (sheet.picture(1, 1) == COLOURS["blue"]).all()
    assert (sheet.picture(1, 0) == 255).all()
    assert (sheet.picture(1, 2) == 255).all()


def test_no_queries_give_a_sheet_with_its_title_alone(images, tmp_path):
    assert draw_sheet([], tmp_path / "s.png", images, nothing_known) == []
    assert np.asarray(draw_rows("", "", [])).min() == 255
    assert np.asarray(draw_rows("title", "", [[None, Captioned(None)]])).min() < 80


@pytest.mark.parametrize(
    ("name", "kind"), [("s.png", "PNG"), ("s.JPG", "JPEG"), ("s.jpeg", "JPEG")]
)
def test_the_ending_says_the_format(images, tmp_path, name, kind):
    draw_sheet([images.found("q", ["red.png"])], tmp_path / name, images, nothing_known)
    assert Sheet(tmp_path / name, lines=2).format == kind


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s.gif", "a contact sheet is a .png or .jpg or .jpeg file, for example --sheet s.png"),
        ("s", "a contact sheet is a .png"),
        ("nowhere/s.png", "there is no folder"),
        ("folder.png", "a contact sheet is a .png"),
    ],
)
def test_a_sheet_is_not_put_where_it_does_not_belong(images, tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(BadInput, match=message):
        draw_sheet([images.found("q", ["red.png"])], tmp_path / name, images, nothing_known)


def test_the_same_matches_give_the_same_bytes(images, tmp_path):
    found = [images.found("q", ["red.png", "blue.png"], confidence=0.5)]
    for name in ("a.png", "b.png"):
        draw_sheet(found, tmp_path / name, images, nothing_known)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
