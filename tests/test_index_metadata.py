"""`--metadata M.csv` and `--where column=value`."""

import csv
import io
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.index.metadata import (
    LONGEST_NAME,
    LONGEST_WORD,
    MOST_COLUMNS,
    parse_where,
    read_metadata,
)

IDS = ("a.png", "b.png", "birds/c.png", "birds/ä b.png")


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(content, name="m.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path, ids=IDS):
    with pytest.raises(BadInput) as found:
        read_metadata(path, ids)
    message = str(found.value)
    assert message.startswith(f"--metadata {path}")
    assert "\n" not in message and len(message) < 600
    return message


# --- what is read ---------------------------------------------------------------------------------


def test_every_row_gives_its_image_words_and_the_rest_is_noted(table):
    path = table("id,colour,make\na.png,red,x\nbirds/c.png,blue,\nzz.png,red,y\n")
    words, notes = read_metadata(path, IDS)
    assert words == {"a.png": {"colour": "red", "make": "x"}, "birds/c.png": {"colour": "blue"}}
    assert notes == [
        "m.csv: 1 row left out, whose id is no image of the index: 'zz.png'",
        "m.csv: 2 of the 4 images of the index have no row",
    ]


def test_nothing_is_noted_where_rows_and_images_agree(table):
    assert read_metadata(table("id,c\na,1\nb,2\n"), ["b", "a"])[1] == []


WRITTEN = {
    "a mark at the beginning": "\ufeffid,colour\na.png,red\n".encode(),
    "ends of lines of Windows": b"id,colour\r\na.png,red\r\n",
    "ends of lines of old Macs": b"id,colour\ra.png,red",
    "quotes": b'"id","colour"\n"a.png","red"\n',
    "spaces around cells": b" id , colour \n a.png ,\tred \n",
    "empty lines": b"id,colour\n\n\na.png,red\n\n",
    "semicolons": b"id;colour\na.png;red\n",
    "semicolons and quotes": b'"id";"colour"\n"a.png";"red"\n',
    "semicolons and decimal commas": b"id;colour;size\na.png;red;\nb.png;red;1,5\n",
    "tabs": b"id\tcolour\na.png\tred\n",
    "another name": b"colour,Path\nred,./a.png\n",
    "no name": b"picture,colour\na.png,red\n",
    "the same row twice": b"id,colour\na.png,red\na.png, red\n",
}


@pytest.mark.parametrize("how", WRITTEN)
def test_the_same_table_written_in_another_way_is_read_alike(table, how):
    assert read_metadata(table(WRITTEN[how]), IDS)[0]["a.png"] == {"colour": "red"}


def test_a_comma_in_the_first_line_is_never_overruled(table):
    words, _ = read_metadata(table("id,size;weight\na.png,1;2\n"), IDS)
    assert words == {"a.png": {"size;weight": "1;2"}}


def test_names_and_words_in_the_other_form_of_unicode_are_the_same(table):
    other = unicodedata.normalize("NFD", "id,größe\nbirds/ä b.png,übergroß\n")
    for ids in (IDS, [unicodedata.normalize("NFD", id_) for id_ in IDS]):
        (id_,) = (one for one in ids if one.endswith("b.png") and one.startswith("birds"))
        assert read_metadata(table(other), ids)[0] == {id_: {"größe": "übergroß"}}
    wanted = parse_where([unicodedata.normalize("NFD", "größe=übergroß")])
    assert wanted == {"größe": ["übergroß"]}


def test_two_images_whose_names_differ_in_form_only_are_kept_apart(table):
    both = [unicodedata.normalize(form, "ä.png") for form in ("NFC", "NFD")]
    words, _ = read_metadata(table(f"id,c\n{both[0]},1\n"), both)
    assert words == {both[0]: {"c": "1"}}


def test_paths_below_the_root_are_understood_and_others_are_not(table, tmp_path):
    root = tmp_path / "images"
    path = table(f"file,c\n{root}/birds/c.png,1\n{tmp_path}/imagesa.png,2\n/a.png,3\n")
    words, notes = read_metadata(path, IDS, root=root)
    assert words == {"birds/c.png": {"c": "1"}}
    assert "2 rows left out" in notes[0]
    with pytest.raises(BadInput, match="none of its 3 rows names an image"):
        read_metadata(path, IDS)


def test_of_several_columns_the_one_that_names_images_is_taken(table):
    words, _ = read_metadata(table("id,path,c\n17,a.png,red\n18,b.png,red\n"), IDS)
    assert words["b.png"] == {"id": "18", "c": "red"}
    words, _ = read_metadata(table("id,path,c\na.png,/x/1,red\nb.png,a.png,red\n"), IDS)
    assert words["a.png"] == {"path": "/x/1", "c": "red"}


def test_an_image_without_any_word_has_none(table):
    assert read_metadata(table("id,c\na.png,\n"), IDS)[0] == {"a.png": {}}


names = st.text(
    st.characters(codec="utf-8", exclude_characters="=", exclude_categories=("C", "Zl", "Zp")),
    min_size=1,
    max_size=12,
).map(lambda text: unicodedata.normalize("NFC", text.strip()))
cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(names.filter(len), min_size=1, max_size=4, unique=True),
    data=st.data(),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    mark=st.booleans(),
)
def test_what_the_csv_module_writes_is_read_back(table, columns, data, quoting, mark):
    columns = [name for name in columns if name.lower() not in ("id", "path", "file", "image")]
    if not columns or not all(name.isprintable() for name in columns):
        return
    rows = data.draw(
        st.lists(st.lists(cells, min_size=len(columns), max_size=len(columns)), min_size=1)
    )
    ids = [f"{number}.png" for number in range(len(rows))]
    written = io.StringIO(newline="")
    csv.writer(written, quoting=quoting).writerows(
        [["id", *columns], *([id_, *row] for id_, row in zip(ids, rows, strict=True))]
    )
    content = ("\ufeff" if mark else "") + written.getvalue()
    words, notes = read_metadata(table(content), ids)
    tidy = [[unicodedata.normalize("NFC", cell.strip()) for cell in row] for row in rows]
    assert words == {
        id_: {name: cell for name, cell in zip(columns, row, strict=True) if cell}
        for id_, row in zip(ids, tidy, strict=True)
    }
    assert notes == []


# --- what is refused ------------------------------------------------------------------------------

BAD = {
    "empty": ("", "", "it is empty"),
    "no rows": ("id,c\n", "", "no rows"),
    "one column": ("id\na.png\n", "", "says nothing of the images"),
    "another width": ("id,c\na.png,1\nb.png,1,2\n", "3", "3 cells but there are 2 columns"),
    "another width after a long cell": ('id,c\na.png,"1\n2"\nb.png\n', "4", "1 cells"),
    "a column without a name": ("id,,c\na.png,1,2\n", "1", "column 2 has no name"),
    "two columns of one name": ("id,c, c\na.png,1,2\n", "1", "two columns are called 'c'"),
    "an = in a name": ("id,a=b\na.png,1\n", "1", "'a=b' is no name of a column"),
    "a long name": (f"id,{'x' * (LONGEST_NAME + 1)}\na.png,1\n", "1", "is no name of a column"),
    "a control character": ("id,a\x07\na.png,1\n", "1", r"'a\x07' is no name of a column"),
    "too many columns": (
        ",".join(["id", *(f"c{number}" for number in range(MOST_COLUMNS))]) + "\n",
        "1",
        f"{MOST_COLUMNS + 1} columns",
    ),
    "a NUL": ("id,c\na.png,1\nb.png,x\0y\n", "3", r"c has a NUL character: 'x\x00y'"),
    "a huge cell": (f"id,c\na.png,{'x' * (LONGEST_WORD + 1)}\n", "2", "1,001 characters"),
    "an enormous cell": (f"id,c\na.png,{'x' * 200_000}\n", "2", "larger than field limit"),
    "a quote that is not closed": ('id,c\na.png,1\nb.png,"red\n', "3", "cannot be read"),
    "no image": ("id,c\na.png,1\n ,2\n", "3", "no id is given"),
    "other words for an image": (
        "id,c,d\na.png,red,1\nb.png,red,1\n./a.png,blue,1\n",
        "4",
        "'a.png' is also on line 2, with other words (c: 'blue' and 'red')",
    ),
    "a word that is missing the second time": (
        "id,c\na.png,red\na.png,\n",
        "3",
        "(c: '' and 'red')",
    ),
    "no image of the index": (
        "id,c\nx.png,red\ny.png,red\n",
        "",
        "none of its 2 rows names an image of the index by 'id': it has 'x.png', 'y.png', the"
        " index has 'a.png', 'b.png', 'birds/c.png', ...",
    ),
    "two marks": ("id;c\td\na.png;1\t2\n", "1", "has semicolons and tabs and no comma"),
    "another encoding": ("id,c\na.png,größe\n".encode("latin-1"), "", "not UTF-8"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_table_that_cannot_be_used_is_refused_with_its_line_and_a_remedy(table, what):
    content, line, message = BAD[what]
    path = table(content)
    found = refusal(path)
    assert found.startswith(f"--metadata {path}{f', line {line}' if line else ''}: ")
    assert message in found


def test_other_kinds_of_files_are_refused(table, tmp_path):
    assert "save it as .csv" in refusal(table(b"PAR1", "m.parquet"))
    assert "No such file" in refusal(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "cannot be read" in refusal(tmp_path / "folder.csv")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(table, content):
    try:
        words, _ = read_metadata(table(b"id,c\na.png,1\n" + content), IDS)
    except BadInput:
        return
    assert words["a.png"] == {"c": "1"} and set(words) <= set(IDS)


# --- filters --------------------------------------------------------------------------------------


def test_words_of_one_column_are_collected_once_in_their_order():
    filters = ["b=2", "a=1", " b = 1 ", "b=2", "make=a=b"]
    assert parse_where(filters) == {"b": ["2", "1"], "a": ["1"], "make": ["a=b"]}
    assert parse_where([]) == {}


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("red", "an ="),
        ("=red", "a column"),
        ("colour= ", "a word"),
        ("", "an ="),
        ("=", "a column"),
    ],
)
def test_a_filter_without_column_or_word_is_refused(text, lacks):
    with pytest.raises(BadInput, match=f"lacks {lacks}.*write column=word, such as colour=red"):
        parse_where([text])


@given(column=names.filter(len), word=cells)
def test_every_word_of_a_table_can_be_asked_for(column, word):
    word = unicodedata.normalize("NFC", word.strip())
    if word:
        assert parse_where([f"{column}={word}"]) == {column: [word]}
