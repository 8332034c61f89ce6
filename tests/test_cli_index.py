"""`assay index` and `search`: what a person types, and what is printed."""

import json
import shutil
import socket
import sqlite3
import threading

import numpy as np
import pytest
from PIL import Image

from assay.index.manifest import read_manifest
from indexes import draw, make_model, make_photos, make_vectors, save_vectors


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, photos of four classes, and a table of their colours."""
    folder = tmp_path_factory.mktemp("made")
    make_model(folder / "model")
    make_model(folder / "other", seed=1)
    make_photos(folder / "photos")
    rows = [f"{number}/0.png,{'red' if number % 2 else 'blue'}" for number in range(4)]
    (folder / "m.csv").write_text("\n".join(["path,colour", *rows]))
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def indexed(place, assay):
    assert assay("index", "model", "photos", "--out", "i", "--metadata", "m.csv")[0] == 0
    return place


def found(out):
    return [match["id"] for match in json.loads(out)["queries"][0]["matches"]]


def test_an_index_is_made_shown_searched_and_checked(place, assay):
    code, out, err = assay("index", "model", "photos", "--out", "i")
    assert (code, err) == (0, "")
    assert out.startswith("12 added\ni: 12 images, version 1, ")
    assert out.endswith("next: assay search i QUERY.jpg\n")
    assert "back end: exact\n" in out
    code, out, _ = assay("search", "i", "photos/2/1.png", "-k", "2")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["score", "image"]
    assert lines[2].split() == ["1", "1.0000", str(place / "photos/2/1.png")]
    assert len(lines) == 4
    assert assay("verify", "i") == (0, "i: 3 files, 12 images, 0 wrong\n", "")


def test_a_second_run_says_what_it_did(indexed, assay):
    assert assay("index", "model", "photos", "--out", "i")[1].startswith("12 unchanged\n")
    draw(7).save(indexed / "photos" / "0" / "0.png")
    (indexed / "photos" / "1" / "0.png").unlink()
    out = assay("index", "model", "photos", "--out", "i")[1]
    assert out.startswith(
        "1 changed, 10 unchanged\n1 image of the index was not among those given; --prune"
    )
    out = assay("index", "model", "photos", "--out", "i", "--prune", "--json")[1]
    facts = json.loads(out)
    assert (facts["removed"], facts["images"], facts["embedded"]) == (1, 11, 0)
    assert facts["recall_at_10"] == 1


def test_json_of_a_search_has_all_that_is_printed(indexed, assay):
    code, out, _ = assay("search", "i", "photos/1/0.png", "-k", "3", "--json")
    document = json.loads(out)
    (query,) = document["queries"]
    first = query["matches"][0]
    assert code == 0
    assert first == {
        "rank": 1,
        "id": "1/0.png",
        "score": pytest.approx(1, abs=1e-6),
        "confidence": None,
        "words": {"colour": "red", "folder": "1"},
        "path": str(indexed / "photos" / "1" / "0.png"),
    }
    assert (query["query"], len(query["matches"]), document["version"]) == ("0.png", 3, 1)


def test_filters_pages_and_ids(indexed, assay):
    words = ["search", "i", "photos/1/0.png", "--json"]
    red = found(assay(*words, "--where", "colour=red")[1])
    assert sorted(red) == ["1/0.png", "3/0.png"]
    both = found(assay(*words, "--where", "colour=red", "--where", "colour=blue")[1])
    assert len(both) == 4
    second = found(assay(*words, "-k", "2", "--page", "2")[1])
    assert second == found(assay(*words, "-k", "4")[1])[2:]
    assert "1/0.png" not in found(assay("search", "i", "1/0.png", "--id", "--json")[1])
    assert assay("search", "i", "photos/1/0.png", "--min-score", "2")[1] == (
        "nothing found: no image is similar enough\n"
    )


def test_matches_vote_on_a_class(indexed, assay):
    code, _, err = assay("search", "i", "photos/1/0.png", "--classify")
    assert code == 2
    assert "name one when indexing: --label COLUMN" in err
    assay("index", "model", "photos", "--out", "i", "--label", "folder")
    out = assay("search", "i", "photos/1/0.png", "--classify", "-k", "3")[1]
    assert out.startswith("class: 1 (")
    vote = json.loads(assay("search", "i", "photos", "--classify", "--json", "-k", "1")[1])
    assert [one["vote"]["label"] for one in vote["queries"]] == [
        one["query"].split("/")[0] for one in vote["queries"]
    ]
    out = assay("search", "i", "photos/1/0.png", "--classify", "--min-score", "2")[1]
    assert out.startswith("class: unknown (")
    assert out.endswith("nothing found: no image is similar enough\n")


def test_a_sheet_shows_query_and_matches(indexed, assay):
    code, out, _ = assay("search", "i", "photos", "-k", "3", "--sheet", "sheet.png")
    assert code == 0
    assert out.endswith("sheet: sheet.png\n")
    with Image.open(indexed / "sheet.png") as sheet:
        assert sheet.width > 300
        assert len(np.unique(np.asarray(sheet))) > 20
    code, _, err = assay("search", "i", "photos", "--sheet", "sheet.png")
    assert code == 2
    assert "sheet.png is there already" in err


def test_vectors_and_other_back_ends(place, assay):
    save_vectors(place / "v.npz", make_vectors(60))
    code, out, _ = assay(
        "index", "as_is", "v.npz", "--out", "v", "--backend", "hnsw", "--param", "links=8"
    )
    assert code == 0
    assert "back end: hnsw (links=8, construction=64), recall@10 1.000 of exact search" in out
    exact = assay("index", "as_is", "v.npz", "--out", "v", "--backend", "exact")[1]
    assert exact.startswith("60 unchanged\nv: 60 images, version 2")
    code, out, _ = assay("search", "v", "v.npz", "-k", "1", "--json")
    assert [one["matches"][0]["id"] for one in json.loads(out)["queries"]] == [
        str(row) for row in range(60)
    ]


def test_images_are_removed_and_the_root_is_moved(indexed, assay):
    assert assay("index", "--out", "i", "--remove", "0/0.png")[1].startswith("1 removed\n")
    (indexed / "photos").rename(indexed / "pictures")
    code, _, err = assay("index", "model", "pictures", "--out", "i")
    assert code == 2
    assert "--root" in err
    assert assay("index", "--out", "i", "--root", "pictures")[0] == 0
    assert read_manifest(indexed / "i").root == str(indexed / "pictures")
    assert json.loads(assay("index", "--out", "i", "--json")[1])["images"] == 11


def test_indexes_are_merged(place, assay):
    for name in ("0", "1"):
        assay("index", "model", f"photos/{name}", "--out", f"i{name}")
    code, out, _ = assay("merge", "i0", "i1", "--out", "both")
    assert code == 0
    assert out.startswith("6 added\nboth: 6 images")


def test_verify_finds_a_damaged_file(indexed, assay):
    folder = indexed / "i" / read_manifest(indexed / "i").folder
    content = bytearray((folder / "vectors.npy").read_bytes())
    content[-1] ^= 1
    (folder / "vectors.npy").write_bytes(content)
    code, out, _ = assay("verify", "i")
    assert code == 1
    assert out.startswith("WRONG i/versions/v000001/vectors.npy has other bytes")
    assert assay("verify", "i", "--data", "glyphs")[0] == 2


REFUSED = [
    (["index", "model", "--out", "i"], "name the images too: assay index model IMAGES --out i"),
    (["index", "--out", "nowhere"], "nowhere is not an index (no index.json in it)"),
    (["index", "--out", "i", "--prune"], "--prune: name the model and the images too"),
    (["index", "model", "photos", "--out", "i", "--remove", "x"], "--remove goes without MODEL"),
    (["index", "--out", "i", "--remove", "x"], "no image with the id 'x'; nothing was removed"),
    (["index", "nosuch", "photos", "--out", "i"], "neither a model folder nor a trunk"),
    (["index", "model", "nowhere", "--out", "j"], "there is no nowhere"),
    (["index", "other", "photos", "--out", "i"], "i was embedded by another model"),
    (["index", "as_is", "photos", "--out", "j"], "the model as_is takes vectors"),
    (["index", "model", "photos", "--out", "j", "--backend", "hnws"], "did you mean 'hnsw'?"),
    (["index", "model", "photos", "--out", "j", "--backend", "bitss"], "no back end is called"),
    (["index", "model", "photos", "--out", "j", "--param", "links=3"], "name it with --backend"),
    (
        ["index", "model", "photos", "--out", "j", "--backend", "hnsw", "--param", "links=x"],
        "--param links: 'x' is not a whole number",
    ),
    (
        ["index", "model", "photos", "--out", "j", "--backend", "hnsw", "--param", "width=3"],
        "the back end hnsw has no setting 'width' (it has links, construction)",
    ),
    (["index", "model", "photos", "--out", "j", "--data", "x"], "--data x goes with --best"),
    (["index", "model", "photos", "--out", "m.csv"], "is a file; give the folder of an index"),
    (["index", "model", "photos", "--out", "photos"], "holds files and is no index"),
    (["search", "nowhere", "photos/0/0.png"], "nowhere is not an index"),
    (["search", "model", "photos/0/0.png"], "model is not an index"),
    (["search", "i", "nowhere.png"], "there is no nowhere.png"),
    (["search", "i", "m.csv"], "m.csv"),
    (["search", "i", "x", "--id"], "no image with the id 'x'"),
    (["search", "i", "photos/0/0.png", "--where", "colour"], "colour"),
    (["search", "i", "photos/0/0.png", "--where", "make=x"], "it has colour, folder"),
    (["search", "i", "photos/0/0.png", "--min-precision", "0.9"], "run `assay calibrate i"),
    (["search", "i", "photos/0/0.png", "--runtime", "onnx"], "assay export"),
    (["search", "i", "photos/0/0.png", "--classify", "--page", "2"], "--classify goes with"),
    (["merge", "i", "nowhere", "--out", "j"], "nowhere is not an index"),
]


def test_bad_input_is_one_line_with_a_remedy(indexed, assay):
    wrong = {}
    for words, said in REFUSED:
        code, out, err = assay(*words)
        lines = err.rstrip("\n").split("\n")
        if (code, out, len(lines)) != (2, "", 1) or said not in err:
            wrong[" ".join(words)] = (code, out, err)
    assert wrong == {}


def test_a_pipe_as_query_is_refused_at_once(indexed, assay):
    import os

    os.mkfifo("pipe.png")
    code, _, err = assay("search", "i", "pipe.png")
    assert code == 2
    assert "pipe" in err


def test_no_search_leaves_the_machine(indexed, assay, monkeypatch):
    def refuse(*address):
        raise AssertionError(f"connected to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert assay("search", "i", "photos/0/0.png")[0] == 0
    assert threading.active_count() < 50


# --- folders as people have them ------------------------------------------------------------------


@pytest.fixture
def nested(place):
    """Photos at the top, in a folder and two folders down."""
    for name in ("top.png", "2025/a.png", "2026/jan/b.png", "2026/jan/c.png"):
        path = place / "nested" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(len(name), 0).save(path)
    return place / "nested"


def test_a_folder_of_queries_is_read_as_a_folder_of_images_is(nested, assay):
    assert assay("index", "model", "nested", "--out", "n")[1].startswith("4 added")
    out = assay("search", "n", "nested", "-k", "1", "--json")[1]
    names = [query["query"] for query in json.loads(out)["queries"]]
    assert names == ["top.png", "2025/a.png", "2026/jan/b.png", "2026/jan/c.png"]
    shutil.rmtree(nested / "2026")
    (nested / "top.png").unlink()
    assert assay("search", "n", "nested", "-k", "1")[1].startswith("2025/a.png\n")


def test_a_part_of_the_images_given_by_itself_keeps_its_names_and_folders(nested, assay):
    assay("index", "model", "nested", "--out", "n")
    for part in ("nested/2026", "nested/2026/jan", "nested"):
        out = assay("index", "model", part, "--out", "n", "--prune")[1]
        assert " unchanged\n" in out.split("n: ")[0], part
        assert "metadata" not in out
    found = assay("search", "n", "nested/top.png", "--where", "folder=2026/jan", "--json")[1]
    assert {match["words"]["folder"] for match in json.loads(found)["queries"][0]["matches"]} == {
        "2026/jan"
    }


def test_images_that_need_a_reader_are_counted(nested, assay, monkeypatch):
    monkeypatch.setattr(
        "assay.data.given.missing_reader",
        lambda ending: "HEIC images need a reader" if ending.lower() == ".heic" else None,
    )
    for name in ("IMG_1.HEIC", "2025/IMG_2.heic"):
        (nested / name).write_bytes(b"x")
    monkeypatch.setattr("assay.data.given.endings", lambda: {".png"})
    code, out, err = assay("index", "model", "nested", "--out", "n")
    assert (code, out.split("\n")[0]) == (0, "4 added")
    assert "note: 2 images left out: HEIC images need a reader" in err


def test_files_with_names_that_cannot_be_used_are_left_out_where_that_is_asked_for(nested, assay):
    draw(1).save(nested / "new\nline.png")
    (nested / "dead.png").symlink_to("/nonexistent.png")
    draw(2).save(nested.parent / "outside.png")
    (nested / "out.png").symlink_to(nested.parent / "outside.png")
    code, _, err = assay("index", "model", "nested", "--out", "n")
    assert code == 2
    assert "(3 such files)" in err
    assert "--skip-broken" in err
    code, out, err = assay("index", "model", "nested", "--out", "n", "--skip-broken")
    assert (code, out.split("\n")[0]) == (0, "4 added")
    assert err.count("note: left out: ") == 3
    assert "is a link to /nonexistent.png, which is not there" in err


def test_a_broken_query_is_left_out_where_that_is_asked_for(nested, assay):
    assay("index", "model", "nested", "--out", "n")
    (nested / "broken.png").write_bytes(b"x")
    assert assay("search", "n", "nested")[0] == 2
    code, out, err = assay("search", "n", "nested", "--skip-broken", "--json")
    assert (code, len(json.loads(out)["queries"])) == (0, 4)
    assert "left out" in err


def test_files_that_have_moved_are_noticed_where_matches_are_shown(nested, assay):
    assay("index", "model", "nested", "--out", "n")
    query = nested.parent / "photos" / "0" / "0.png"
    nested.rename(nested.with_name("moved"))
    err = assay("search", "n", query)[2]
    assert "4 of 4 files are not there" in err
    assert "assay index --out n --root DIR" in err


def test_nothing_found_says_why(indexed, assay):
    words = ["search", "i", "photos/0/0.png"]
    said = {
        ("--where", "folder=9"): "nothing found: no image has folder=9\n",
        ("--page", "9"): "nothing found: there are 12 images, all on earlier pages\n",
        ("--min-score", "5"): "nothing found: no image is similar enough\n",
    }
    for more, answer in said.items():
        assert assay(*words, *more)[1] == answer
    assert assay(*words, "--min-score", "nan")[0] == 2


def test_rows_without_ids_do_not_replace_those_of_another_file(place, assay):
    save_vectors(place / "v.npz", make_vectors(20))
    save_vectors(place / "w.npz", make_vectors(5, seed=1))
    assay("index", "as_is", "v.npz", "--out", "v")
    code, _, err = assay("index", "as_is", "w.npz", "--out", "v")
    assert code == 2
    assert "5 of them are other vectors than those of v; give ids (np.savez(..., ids=...))" in err
    assert read_manifest(place / "v").version == 1
    assert assay("index", "as_is", "w.npz", "--out", "v", "--prune")[0] == 0
    bad = make_vectors(3)
    bad[1, 1] = np.nan
    save_vectors(place / "bad.npz", bad)
    assert "bad.npz: row 1" in assay("index", "as_is", "bad.npz", "--out", "b")[2]
    save_vectors(place / "zero.npz", np.zeros((4, 8)))
    err = assay("index", "as_is", "zero.npz", "--out", "z")[2]
    assert "4 of 4 vectors hold zeros only" in err


def test_a_full_disk_is_said_in_words(indexed, assay, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def execute(self, *words):
            if words[0] == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return self.file.execute(*words)

    connect = sqlite3.connect

    def full(*words, **more):
        return (
            Full(connect(*words, **more)) if "isolation_level" in more else connect(*words, **more)
        )

    monkeypatch.setattr("assay.index.catalog.sqlite3.connect", full)
    code, _, err = assay("index", "--out", "i", "--remove", "0/0.png")
    assert code == 1
    assert "No space left on device; make room there and run the same command again" in err
    monkeypatch.undo()
    assert read_manifest(indexed / "i").version == 1


def test_metadata_cannot_take_the_place_of_folders(indexed, assay):
    (indexed / "f.csv").write_text("path,folder\n0/0.png,x\n")
    code, _, err = assay("index", "model", "photos", "--out", "i", "--metadata", "f.csv")
    assert code == 2
    assert "has the column folder, which the images have by themselves" in err


def test_a_half_and_a_whole_precision_are_merged_after_one_command(place, assay):
    assay("index", "model", "photos/0", "--out", "a")
    assay("index", "model", "photos/1", "--out", "b", "--precision", "float16")
    code, _, err = assay("merge", "a", "b", "--out", "c")
    assert code == 2
    assert "--precision float16 on the other one first; nothing is embedded" in err
    assay("index", "model", "photos/0", "--out", "a", "--precision", "float16")
    assert assay("merge", "a", "b", "--out", "c")[0] == 0
