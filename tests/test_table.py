"""A table of images: the meaning of its columns, and errors with the number of the row."""

import builtins
import random
import re
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data import Dataset, load, splits
from assay.errors import BadInput
from assay.protocols import Protocol
from official import jpg, put, write_csv
from refusals import refusal

Row = dict[str, object]
PROTOCOL = Protocol("p.v1")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))


def rows_of(classes: int = 16, images: int = 2) -> list[Row]:
    return [
        {"path": f"photos/{label}-{image}.jpg", "label": label}
        for label in range(classes)
        for image in range(images)
    ]


def write(folder: Path, rows: Sequence[Row], name: str = "table.csv") -> Path:
    """Write a table with its images beside it."""
    for number, row in enumerate(rows):
        if not (folder / str(row["path"])).exists():
            put(folder / str(row["path"]), jpg(number))
    return write_csv(folder / name, list(rows[0]), [list(row.values()) for row in rows])


def table(folder: Path, rows: Sequence[Row]) -> Dataset:
    return load(f"table:{write(folder, rows)}")


def fingerprint(dataset: Dataset) -> str:
    return dataset.fingerprint(np.arange(len(dataset.labels)))


def test_paths_and_labels_make_a_data_set(tmp_path: Path) -> None:
    dataset = table(tmp_path, rows_of())
    assert dataset.class_names == tuple(str(label) for label in range(16))
    assert dataset.ids[:3] == ["photos/0-0.jpg", "photos/0-1.jpg", "photos/1-0.jpg"]
    assert dataset.labels.tolist() == np.repeat(np.arange(16), 2).tolist()
    assert (
        dataset.name,
        dataset.trainval,
        dataset.query,
        dataset.gallery,
        dataset.metadata,
        dataset.notes,
    ) == (
        *("table:table.csv", None, None, None),
        *({}, ()),
    )


def test_images_without_a_row_are_counted(tmp_path: Path) -> None:
    write(tmp_path, rows_of())
    for name in ("spare.jpg", "other.jpg", ".hidden.jpg", "notes.txt"):
        put(tmp_path / "photos" / name, jpg(99))
    assert table(tmp_path, rows_of()).notes == (
        "2 images left out that have no row in the table: other.jpg, spare.jpg",
    )


def test_neither_row_order_nor_place_matters_but_every_image_does(tmp_path: Path) -> None:
    rows: list[Row] = [
        row | {"split": "train" if number < 20 else "test"} for number, row in enumerate(rows_of())
    ]
    first = table(tmp_path / "one", rows)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    other = table(tmp_path / "two", random.Random(0).sample(rows, len(rows)))
    assert fingerprint(other) == fingerprint(first)
    assert splits.parts(other, PROTOCOL) == splits.parts(first, PROTOCOL)
    put(tmp_path / "two" / "photos" / "3-1.jpg", jpg(999))
    assert fingerprint(load(f"table:{tmp_path / 'two' / 'table.csv'}")) != fingerprint(first)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "2", "-1", "1.5"], ("-1", "1.5", "2", "10")),
        (["10", "2", "b"], ("10", "2", "b")),
        (["zebra", "Ant", "ox"], ("Ant", "ox", "zebra")),
        (["1e3", "20"], ("1e3", "20")),
    ],
)
def test_labels_that_are_all_numbers_sort_as_numbers(
    tmp_path: Path, labels: list[str], order: tuple[str, ...]
) -> None:
    dataset = table(tmp_path, [{"path": f"{label}.jpg", "label": label} for label in labels])
    assert dataset.class_names == order
    assert dataset.ids == [f"{label}.jpg" for label in order]


def test_the_split_puts_classes_of_trainval_first(tmp_path: Path) -> None:
    words = ("test", "Train", "trainval")
    dataset = table(
        tmp_path, [{"path": f"{n}.jpg", "label": n, "split": words[n % 3]} for n in range(12)]
    )
    assert dataset.class_names == ("1", "2", "4", "5", "7", "8", "10", "11", "0", "3", "6", "9")
    assert dataset.trainval == 8


def test_marks_and_other_columns_follow_their_rows(tmp_path: Path) -> None:
    marks = ["1", "0", "True", "false", "YES", "no", ""]
    rows: list[Row] = [
        {
            "path": f"{n}.jpg",
            "label": 7 - n,
            "query": mark,
            "gallery": marks[-n],
            "category": f"kind {n}",
            "photographer": n,
        }
        for n, mark in enumerate(marks)
    ]
    dataset = table(tmp_path, rows)
    assert dataset.ids == [f"{n}.jpg" for n in reversed(range(7))]
    assert dataset.query is not None
    assert dataset.gallery is not None
    assert dataset.query.tolist() == [True, False, True, False, True, False, False][::-1]
    assert dataset.gallery.tolist() == [
        marks[-n] in ("1", "True", "YES") for n in reversed(range(7))
    ]
    assert dataset.metadata == {
        "category": [f"kind {n}" for n in reversed(range(7))],
        "photographer": [f"{n}" for n in reversed(range(7))],
    }


def test_samples_that_are_neither_query_nor_gallery_are_counted(tmp_path: Path) -> None:
    rows: list[Row] = [row | {"split": "test", "query": 1, "gallery": 0} for row in rows_of(3)]
    rows[0] |= {"query": 0}
    rows.append({"path": "t.jpg", "label": 99, "split": "train", "query": "", "gallery": ""})
    assert table(tmp_path, rows).notes == (
        "1 samples of the test half are neither query nor gallery",
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_unicode_is_read_with_a_mark_and_without(
    tmp_path: Path, encoding: str, newline: str
) -> None:
    put(tmp_path / "größe, ß.jpg", jpg(0))
    lines = ["path, label", '"größe, ß.jpg", Größe', "", ""]
    (tmp_path / "t.csv").write_bytes(newline.join(lines).encode(encoding))
    dataset = load(f"table:{tmp_path / 't.csv'}")
    assert (dataset.ids, dataset.class_names) == (["größe, ß.jpg"], ("Größe",))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_both_ways_of_unicode_are_one_data_set(tmp_path: Path, form: Any) -> None:
    rows: list[Row] = [{"path": f"größe/{n}é.jpg", "label": f"Größe {n}"} for n in range(4)]
    other: list[Row] = [
        {key: unicodedata.normalize(form, str(value)) for key, value in row.items()} for row in rows
    ]
    first, second = table(tmp_path / "one", rows), table(tmp_path / form, other)
    assert fingerprint(second) == fingerprint(first)
    assert (second.ids, second.class_names) == (first.ids, first.class_names)


def test_names_and_labels_that_coincide_are_refused(tmp_path: Path) -> None:
    composed, apart = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    twice: list[Row] = [
        {"path": f"{composed}.jpg", "label": 1},
        {"path": f"{apart}.jpg", "label": 2},
    ]
    with pytest.raises(
        BadInput,
        match=(
            r"row 3 has the name '\\xe9\.jpg' of row 2, written in two ways of Unicode; rename one"
        ),
    ):
        table(tmp_path / "names", twice)
    mixed: list[Row] = [{"path": "a.jpg", "label": composed}, {"path": "b.jpg", "label": apart}]
    with pytest.raises(
        BadInput,
        match=r"row 3 has the label 'e\\u0301', elsewhere written '\\xe9'; write it in one way",
    ):
        table(tmp_path / "labels", mixed)


def test_a_home_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "photos" / "a.jpg", jpg(0))
    put(tmp_path / "tables" / "~b.jpg", jpg(1))
    write_csv(
        tmp_path / "tables" / "t.csv", ["path", "label"], [["~/photos/a.jpg", 1], ["~b.jpg", 2]]
    )
    assert load("table:~/tables/t.csv").ids == [str(tmp_path / "photos" / "a.jpg"), "~b.jpg"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "t.csv").write_bytes("path,label\na.jpg,Größe\n".encode(encoding))
    with pytest.raises(BadInput, match=r"t\.csv is not UTF-8; save it as CSV UTF-8"):
        load(f"table:{tmp_path / 't.csv'}")


def change(row: int, **cells: object) -> Callable[[list[Row]], None]:
    return lambda rows: rows[row].update(cells)


def repeat(row: int, **cells: object) -> Callable[[list[Row]], None]:
    return lambda rows: rows.append(rows[row] | cells)


WRONG_ROWS: list[tuple[Callable[[list[Row]], None], str]] = [
    (change(3, path=""), "row 5 has no path; fill it in"),
    (change(3, label=" "), "row 5 has no label; fill it in"),
    (repeat(3), "row 34 repeats photos/1-1.jpg of row 5; remove one"),
    (repeat(3, path="./photos//1-1.jpg"), "row 34 repeats photos/1-1.jpg of row 5"),
    (
        repeat(3, label=7),
        ("row 34 gives photos/1-1.jpg a second label ('1' in row 5, '7' here); keep the right one"),
    ),
    (
        change(3, label="01"),
        "row 4 has the label '1', elsewhere written '01'; write a number in one way only",
    ),
    (change(3, split="val"), "row 5 has 'val' as its split; write trainval (or train) or test"),
    (change(3, split=""), "row 5 has '' as its split; write trainval"),
    (
        change(3, split="test"),
        "row 5 has '1' in test, which is in trainval too (1 such labels)",
    ),
    (
        change(3, query="maybe"),
        "row 5 has 'maybe' as its query; write 1 or 0, true or false, yes or no",
    ),
    (change(3, gallery="2"), "row 5 has '2' as its gallery; write 1 or 0"),
    (change(3, path="../secret.jpg"), "row 5 has .. in its path '../secret.jpg'"),
    (change(3, path="photos/../../secret.jpg"), "row 5 has .. in its path"),
    (
        change(3, path="photos\\1.jpg"),
        "row 5 has a path that cannot be read here: 'photos\\\\1.jpg'; write folders with /",
    ),
]


def test_what_is_wrong_with_a_row_is_said_with_its_number(tmp_path: Path) -> None:
    put(tmp_path / "secret.jpg", jpg(0))
    for damage, wanted in WRONG_ROWS:
        rows: list[Row] = [
            row | {"split": "train" if number < 20 else "test", "query": 1, "gallery": 1}
            for number, row in enumerate(rows_of())
        ]
        write(tmp_path / "data", rows)
        damage(rows)
        file = write_csv(
            tmp_path / "data" / "table.csv", list(rows[0]), [list(row.values()) for row in rows]
        )
        message = refusal(wanted, lambda file=file: load(f"table:{file}"))
        assert message.startswith(f"table:{file}: {wanted}"), message


WRONG_TABLES = [
    ("", "has no rows"),
    ("path,label\n", "has no rows"),
    ("path,class\na.jpg,1\n", "has no column label (it has path, class)"),
    (
        "path;label;price\na.jpg;1;1,5\n",
        "is separated by semicolons, and Assay reads commas; save it with commas, as pandas does: "
        "read_csv(..., sep=';').to_csv(..., index=False)",
    ),
    ("label\tpath\n1\ta.jpg\n", "is separated by tabs, and Assay reads commas"),
    ("name;label\na.jpg;1\n", "has no column path (it has name;label)"),
    ("path,label\na.jpg,1\nc.jpg,a\0b\n", "row 3 has a NUL byte in its label 'a\\x00b'; remove"),
    ("path,label,label\na.jpg,1,1\n", "has two columns called label"),
    (
        ",path,label\n0,a.jpg,1\n",
        "column 1 has no name; name or remove it (in pandas: index=False)",
    ),
    ("path,label\na.jpg,1\nb,c.jpg,2\n", "row 3 has 3 cells but the header has 2"),
    ("path,label\n\na.jpg\n", "row 3 has 1 cells but the header has 2"),
    ('path,label\n"a.jpg,1\n', "cannot be read as a CSV"),
    ("path,label,split\na.jpg,1,train\n", "no row has test as its split"),
    ("path,label,split\na.jpg,1,test\n", "no row has trainval as its split"),
]


def test_what_is_wrong_with_a_table_is_said(tmp_path: Path) -> None:
    for name in ("a.jpg", "c.jpg"):
        put(tmp_path / name, jpg(0))
    for content, wanted in WRONG_TABLES:
        file = put(tmp_path / "t.csv", content)
        message = refusal(wanted, lambda file=file: load(f"table:{file}"))
        assert re.match(f"table:{re.escape(str(file))}:? {re.escape(wanted)}", message), message


def test_missing_files_are_counted_and_the_first_three_named(tmp_path: Path) -> None:
    file = write(tmp_path, rows_of())
    for name in ("2-0", "2-1", "5-0", "9-1"):
        (tmp_path / "photos" / f"{name}.jpg").unlink()
    (tmp_path / "photos" / "9-1.jpg").mkdir()
    named = (
        "photos/2-0.jpg (row 6), photos/2-1.jpg (row 7), photos/5-0.jpg (row 12), ...; paths are"
        " relative to "
    )
    with pytest.raises(
        BadInput, match=f"4 of 32 files are not there: {re.escape(named + str(tmp_path))}"
    ):
        load(f"table:{file}")


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ""])
def test_other_files_and_folders_are_no_tables(tmp_path: Path, suffix: str) -> None:
    file = put(tmp_path / f"table{suffix}", "path,label\n")
    for path in (file, tmp_path):
        with pytest.raises(BadInput, match=r"must be a \.csv or \.parquet file"):
            load(f"table:{path}")


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    put(tmp_path / "secret.jpg", jpg(0))
    put(tmp_path / "data" / "real.jpg", jpg(1))
    link = tmp_path / "data" / "link.jpg"
    link.symlink_to("real.jpg")
    file = write_csv(
        tmp_path / "data" / "t.csv", ["path", "label"], [["real.jpg", 1], ["link.jpg", 2]]
    )
    assert load(f"table:{file}").ids == ["real.jpg", "link.jpg"]
    link.unlink()
    link.symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(BadInput, match=f"^{re.escape(str(link))} leads out of "):
        load(f"table:{file}")


def test_absolute_paths_are_taken_and_noted_unless_they_are_beside_the_table(
    tmp_path: Path,
) -> None:
    outside, beside = (
        put(tmp_path / "outside.jpg", jpg(0)),
        put(tmp_path / "data" / "beside.jpg", jpg(1)),
    )
    file = write_csv(tmp_path / "data" / "t.csv", ["path", "label"], [[outside, 1], [beside, 2]])
    dataset = load(f"table:{file}")
    assert dataset.ids == [str(outside), "beside.jpg"]
    assert dataset.notes == ("1 absolute paths: elsewhere this data has another fingerprint",)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, rows_of())
    damaged = put(tmp_path / "photos" / "3-1.jpg", b"no image")
    with pytest.raises(BadInput, match=f"^{re.escape(str(damaged))} cannot be read as an image"):
        load(f"table:{file}")


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)
    return path


def test_parquet_is_the_same_data_as_csv(tmp_path: Path) -> None:
    rows: list[Row] = [
        row
        | {
            "split": "train" if number < 20 else "test",
            "query": number % 2 == 0,
            "note": None if number == 3 else float(number),
        }
        for number, row in enumerate(rows_of())
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    other = (
        load(f"table:{write_parquet(tmp_path / 't.parquet', columns)}")
        if write(tmp_path, rows)
        else None
    )
    first = load(f"table:{tmp_path / 'table.csv'}")
    assert other is not None
    assert fingerprint(other) == fingerprint(first)
    assert (other.class_names, other.trainval, other.ids) == (
        first.class_names,
        first.trainval,
        first.ids,
    )
    assert other.metadata["note"][:5] == ["0", "1", "2", "", "4"]


def test_a_label_that_is_no_text_or_number_is_refused_with_its_column_and_type(
    tmp_path: Path,
) -> None:
    put(tmp_path / "a.jpg", jpg(0))
    for cell, kind in ((b"a", "binary"), ([1], "list<.*int64>"), ({"a": 1}, "struct<a: int64>")):
        columns = {"path": ["a.jpg"], "label": [cell]}
        file = write_parquet(tmp_path / "t.parquet", columns)
        said = rf"the column label \({kind}\) cannot be read as text \(its cells are no text"
        with pytest.raises(BadInput, match=said):
            load(f"table:{file}")


def test_rows_of_parquet_count_from_one_and_damaged_files_are_named(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg", jpg(0))
    file = write_parquet(tmp_path / "t.parquet", {"path": ["a.jpg", "b.jpg"], "label": [1, None]})
    with pytest.raises(BadInput, match="row 2 has no label"):
        load(f"table:{file}")
    put(file, file.read_bytes()[:50])
    with pytest.raises(BadInput, match="cannot be read as a Parquet file"):
        load(f"table:{file}")


def test_parquet_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=re.escape("pip install pyarrow")):
        load(f"table:{put(tmp_path / 't.parquet', b'')}")
