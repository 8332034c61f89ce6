"""`assay index` and `search`: what a person types, and what is printed."""

import json
import shutil
import socket
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
    assert assay("search", "i", "photos/1/0.png", "--min-score", "2")[1] == "nothing found\n"


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
    assert out.endswith("nothing found\n")


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
