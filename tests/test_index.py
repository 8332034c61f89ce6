"""An index holds what it was given, finds it again, and is replaced in one step."""

import gc
import itertools
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from assay.embedder import load
from assay.errors import BadInput
from assay.files import lock_now
from assay.hashing import digest
from assay.index.backends import backends
from assay.index.backends.exact import Exact
from assay.index.builder import Wanted, move_root, remove, update
from assay.index.calibration import AskedGallery, Calibrated, Calibration, calibrate
from assay.index.checking import problems_of
from assay.index.index import MOST_MATCHES, Index
from assay.index.manifest import DamagedIndex, read_manifest, sums_of
from assay.index.merging import merge
from assay.index.metadata import parse_where
from assay.index.scoring import prepare
from assay.model import read_model_folder
from indexes import (
    draw,
    found_ids,
    index_of,
    make_model,
    make_photos,
    make_vectors,
    save_vectors,
    state_of,
)
from loops import for_each


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "other", seed=1)


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos")


@pytest.fixture
def z():
    return make_vectors(30)


# --- what is found --------------------------------------------------------------------------------


def slow_search(z, query, k):
    """The ids of the k rows with the largest cosines, one pair at a time."""

    def cosine(row):
        dot = sum(float(a) * float(b) for a, b in zip(row, query, strict=True))
        lengths = [sum(float(a) ** 2 for a in vector) ** 0.5 for vector in (row, query)]
        return dot / (lengths[0] * lengths[1])

    scores = [cosine(row) for row in z]
    return sorted(range(len(z)), key=lambda row: -scores[row])[:k], sorted(scores)[::-1][:k]


def test_matches_and_scores_are_those_of_a_loop(tmp_path, z):
    index = index_of(tmp_path / "index", z)
    query = make_vectors(1, seed=9)[0]
    found = index.search(query, k=7)
    rows, scores = slow_search(z, query, 7)
    assert found_ids(found) == [str(row) for row in rows]
    assert [match.score for match in found.matches] == pytest.approx(scores, abs=1e-6)
    assert [match.rank for match in found.matches] == [1, 2, 3, 4, 5, 6, 7]


def test_pages_continue_where_the_one_before_ended(tmp_path, z):
    index = index_of(tmp_path / "index", z)
    whole = index.search(z[3], k=30).matches
    pages = [index.search(z[3], k=7, skip=skip).matches for skip in range(0, 35, 7)]
    assert [match for page in pages for match in page] == list(whole)
    assert len(pages[-1]) == 2


def test_an_image_of_the_index_finds_all_but_itself(tmp_path, z):
    index = index_of(tmp_path / "index", z)
    found = found_ids(index.search_like("4", k=100))
    assert sorted(map(int, found)) == [row for row in range(30) if row != 4]
    with pytest.raises(BadInput, match="no image with the id 'x'"):
        index.search_like("x")


def test_a_score_below_the_least_is_no_match(tmp_path, z):
    index = index_of(tmp_path / "index", z)
    every = index.search(z[0], k=30).matches
    some = index.search(z[0], k=30, min_score=every[4].score).matches
    assert some == every[:5]
    assert index.search(z[0], min_score=2.0).matches == ()


@for_each("k, skip", [(0, 0), (-1, 0), (1, -1), (MOST_MATCHES, 1)])
def test_numbers_of_matches_that_make_no_sense_are_refused(k, skip):
    index = Index.build("as_is", make_vectors(3))
    with pytest.raises(BadInput, match="matches"):
        index.search(make_vectors(1)[0], k=k, skip=skip)
    index.close()


def test_a_query_of_another_width_or_without_a_number_is_refused(tmp_path, z):
    index = index_of(tmp_path / "index", z)
    with pytest.raises(BadInput, match="8"):
        index.search(np.ones(9, dtype=np.float32))
    with pytest.raises(BadInput, match="a query has 9 numbers"):
        index.search_vectors(np.ones((1, 9)))
    with pytest.raises(BadInput, match="NaN"):
        index.search_vectors(np.full((1, 8), np.nan))
    assert index.search_vectors(np.empty((0, 8))) == []


def test_photos_are_found_by_path_by_picture_and_by_pixels(tmp_path, photos, model):
    index = Index.build(model, photos, tmp_path / "index")
    path = photos / "2" / "1.png"
    picture = Image.open(path)
    found = [index.search(query, k=3) for query in (path, picture, np.asarray(picture))]
    assert found[0].matches == found[1].matches == found[2].matches
    first = found[0].matches[0]
    assert (first.id, first.path, first.words) == ("2/1.png", path, {"folder": "2"})
    assert first.score == pytest.approx(1, abs=1e-6)
    many = index.search_many(photos, k=1)
    assert [one.query for one in many] == [found_ids(one)[0] for one in many]
    assert len(many) == 12


def test_a_temporary_index_goes_with_its_object(z):
    index = Index.build("as_is", z)
    root = index.root
    assert root.exists()
    index.close()
    assert not root.exists()


# --- filters --------------------------------------------------------------------------------------


@pytest.fixture
def filtered(tmp_path, z):
    """An index whose images have a colour; four of them are red, one has no colour."""
    table = tmp_path / "m.csv"
    colours = ["red" if row % 8 == 1 else "blue" for row in range(29)]
    rows = [f"{row},{colour},{row % 3}" for row, colour in enumerate(colours)]
    table.write_text("\n".join(["id,colour,size", *rows]))
    return index_of(tmp_path / "index", z, metadata=table)


def test_a_filter_leaves_all_matches_that_there_are(filtered, z):
    red = {str(row) for row in range(29) if row % 8 == 1}
    assert set(found_ids(filtered.search(z[0], k=30, where={"colour": ["red"]}))) == red
    two = filtered.search(z[0], k=2, where={"colour": ["red"]})
    assert set(found_ids(two)) < red
    assert [match.words["colour"] for match in two.matches] == ["red", "red"]


def test_columns_are_joined_by_and_words_by_or(filtered, z):
    found = filtered.search(z[0], k=30, where={"colour": ["red", "blue"], "size": ["0", "2"]})
    assert set(found_ids(found)) == {str(row) for row in range(29) if row % 3 != 1}
    assert filtered.search(z[0], where={"colour": ["green"]}).matches == ()


def test_a_column_that_is_not_there_is_refused_with_those_that_are(filtered, z):
    with pytest.raises(BadInput, match=r"no column 'make' \(it has colour, size\)"):
        filtered.search(z[0], where={"make": ["x"]})


def test_words_are_counted_the_most_frequent_first(filtered):
    assert filtered.catalog.words_of("colour", 10) == [("blue", 25), ("red", 4)]
    assert filtered.catalog.words_of("size", 2) == [("0", 10), ("1", 10)]


# --- adding, updating, removing -------------------------------------------------------------------


def test_a_second_run_does_nothing(tmp_path, photos, model):
    first = update(tmp_path / "index", model, photos, Wanted())
    second = update(tmp_path / "index", model, photos, Wanted())
    assert (first.added, first.embedded) == (12, 12)
    assert (second.is_new, second.unchanged, second.embedded) == (False, 12, 0)
    assert second.manifest == first.manifest


def test_only_new_content_is_embedded(tmp_path, photos, model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    draw(5).save(photos / "0" / "0.png")
    draw(6).save(photos / "1" / "new.png")
    shutil.copy(photos / "2" / "0.png", photos / "3" / "copy.png")
    (photos / "2" / "2.png").unlink()
    done = update(out, model, photos, Wanted())
    counts = (done.added, done.changed, done.gone, done.embedded, done.manifest.count)
    assert counts == (2, 1, 1, 2, 14)
    with Index.open(out) as index:
        assert found_ids(index.search(photos / "0" / "0.png", k=1)) == ["0/0.png"]
        copies = index.search(photos / "2" / "0.png", k=2)
        assert set(found_ids(copies)) == {"2/0.png", "3/copy.png"}
        assert copies.matches[0].score == copies.matches[1].score
        assert index.entry("2/2.png") is not None


def test_an_index_by_many_updates_is_the_one_made_at_once(tmp_path, photos, model):
    out = tmp_path / "index"
    for folder in ("3", "1", "0", "2"):
        update(out, model, photos / folder, Wanted(root=photos))
    draw(9).save(photos / "1" / "0.png")
    update(out, model, photos, Wanted())
    (photos / "2" / "0.png").unlink()
    update(out, model, photos, Wanted(prune=True))
    update(tmp_path / "at once", model, photos, Wanted())
    assert state_of(out).keys() == state_of(tmp_path / "at once").keys()
    with Index.open(out) as index, Index.open(tmp_path / "at once") as other:
        for query in index.search_many(photos, k=11), other.search_many(photos, k=11):
            assert len(query) == 11
        pairs = zip(index.search_many(photos, k=11), other.search_many(photos, k=11), strict=True)
        for ours, theirs in pairs:
            scores = [[match.score for match in found.matches] for found in (ours, theirs)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert problems_of(out) == []


def test_pruning_a_folder_leaves_the_others_alone(tmp_path, photos, model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    (photos / "0" / "0.png").unlink()
    (photos / "1" / "0.png").unlink()
    done = update(out, model, photos / "1", Wanted(prune=True))
    assert (done.removed, done.gone, done.manifest.count) == (1, 0, 11)
    done = update(out, model, photos, Wanted(prune=True))
    assert (done.removed, done.manifest.count) == (1, 10)


def test_removed_images_are_not_found_and_unknown_ids_remove_nothing(tmp_path, z):
    out = tmp_path / "index"
    index = index_of(out, z)
    with pytest.raises(BadInput, match="no image with the id 'x' and 1 more; nothing was removed"):
        remove(out, ["1", "x", "y"])
    assert index.is_current()
    assert remove(out, ["1", "2"]).manifest.count == 28
    assert not index.is_current()
    with Index.open(out) as later:
        assert not {"1", "2"} & set(found_ids(later.search(z[1], k=30)))
    assert found_ids(index.search(z[1], k=1)) == ["1"], "an open index stays as it was"


def test_rows_that_were_given_up_are_dropped_once_they_are_many(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z)
    few = remove(out, ["0", "1"]).manifest
    assert (few.rows, few.count, few.generation) == (30, 28, 1)
    many = remove(out, [str(row) for row in range(2, 12)]).manifest
    assert (many.rows, many.count, many.generation) == (18, 18, 2)
    with Index.open(out) as index:
        for row in range(12, 30):
            assert found_ids(index.search(z[row], k=1)) == [str(row)]
    assert problems_of(out) == []


def test_an_index_can_become_empty_and_be_filled_again(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z)
    assert remove(out, [str(row) for row in range(30)]).manifest.count == 0
    with Index.open(out) as index:
        assert index.search(z[0]).matches == ()
    assert problems_of(out) == []
    assert update(out, "as_is", z[:3], Wanted()).manifest.count == 3


def test_vectors_are_linked_where_no_row_changes(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z)
    before = (out / read_manifest(out).folder / "vectors.npy").stat().st_ino
    remove(out, ["0"])
    assert (out / read_manifest(out).folder / "vectors.npy").stat().st_ino == before


def test_metadata_of_earlier_runs_stay_and_new_words_replace_old_ones(tmp_path, photos, model):
    out, table = tmp_path / "index", tmp_path / "m.csv"
    table.write_text("path,colour\n0/0.png,red\n0/1.png,blue\n")
    update(out, model, photos, Wanted(metadata=table))
    update(out, model, photos, Wanted())
    table.write_text("path,colour\n0/0.png,green\n")
    done = update(out, model, photos, Wanted(metadata=table))
    assert (done.described, done.embedded) == (1, 0)
    with Index.open(out) as index:
        assert index.entry("0/0.png").words == {"colour": "green", "folder": "0"}
        assert index.entry("0/1.png").words == {"colour": "blue", "folder": "0"}


def test_labels_that_no_image_has_are_refused(tmp_path, photos, model):
    with pytest.raises(BadInput, match="--label make: no image has a word"):
        update(tmp_path / "index", model, photos, Wanted(label="make"))


# --- roots ----------------------------------------------------------------------------------------


def test_the_folder_of_images_can_move(tmp_path, photos, model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    moved = photos.rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="say where they are now with --root"):
        update(out, model, moved, Wanted())
    with pytest.raises(BadInput, match="none of the images"):
        move_root(out, tmp_path)
    move_root(out, moved)
    assert update(out, model, moved, Wanted()).embedded == 0
    with Index.open(out) as index:
        assert index.file_of("0/0.png") == moved / "0" / "0.png"


def test_no_id_leads_out_of_the_root(tmp_path, photos, model):
    index = Index.build(model, photos, tmp_path / "index")
    (tmp_path / "secret.png").write_bytes(b"")
    assert index.file_of("../secret.png") is None
    assert index.file_of("/etc/passwd") is None
    index.close()


def test_a_link_out_of_the_folder_is_refused(tmp_path, photos, model):
    draw(1).save(tmp_path / "outside.png")
    (photos / "0" / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(BadInput, match=r"link\.png leads out of"):
        update(tmp_path / "index", model, photos, Wanted())


# --- models ---------------------------------------------------------------------------------------


def test_another_model_is_refused_and_rebuild_takes_it(tmp_path, photos, model, other_model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    with pytest.raises(BadInput, match="--rebuild"):
        update(out, other_model, photos, Wanted())
    with pytest.raises(BadInput, match="embedded by another model"):
        Index.open(out, model=other_model)
    Index.open(out, model=model).close()
    done = update(out, other_model, photos, Wanted(rebuild=True))
    assert (done.embedded, done.manifest.version, done.manifest.generation) == (12, 2, 2)
    Index.open(out, model=other_model).close()
    assert [path.name for path in (out / "models").iterdir()] == [done.manifest.model.print]
    assert state_of(out) == state_of_new(tmp_path / "new", other_model, photos)


def state_of_new(out, model, photos):
    update(out, model, photos, Wanted())
    return state_of(out)


def test_a_rebuild_loses_no_image_unasked(tmp_path, photos, model, other_model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    with pytest.raises(
        BadInput, match=r"3 images that are not among those given, such as 0/0\.png"
    ):
        update(out, other_model, make_without(photos, "0"), Wanted(rebuild=True))
    assert read_manifest(out).version == 1
    done = update(out, other_model, photos, Wanted(rebuild=True, prune=True))
    assert done.manifest.count == 9


def make_without(photos, name):
    shutil.rmtree(photos / name)
    return photos


def test_the_model_in_an_index_is_the_one_that_was_given(tmp_path, photos, model):
    out = tmp_path / "index"
    done = update(out, model, photos, Wanted())
    copied, card = read_model_folder(out / "models" / done.manifest.model.print)
    given, _ = read_model_folder(model)
    assert card["sha256"] == done.manifest.model.print
    for ours, theirs in zip(copied.parameters(), given.parameters(), strict=True):
        assert (ours == theirs).all()


def test_a_model_of_hamming_distance_stores_bits(tmp_path, photos):
    model = make_model(tmp_path / "bits", similarity="hamming")
    done = update(tmp_path / "index", model, photos, Wanted())
    facts = (done.manifest.backend, done.manifest.precision, done.manifest.similarity)
    assert facts == ("bits", "bits", "hamming")
    with Index.open(tmp_path / "index") as index:
        found = index.search(photos / "1" / "1.png", k=12)
        assert found.matches[0].score == 0
        assert index.search_like("1/1.png", k=1).matches[0].score == found.matches[1].score


def test_half_precision_takes_half_the_file_and_cannot_be_undone(tmp_path, z):
    out = tmp_path / "index"
    whole = index_of(out, z).search(z[0], k=5)
    half = index_of(out, z, precision="float16")
    assert half.vectors.rows.dtype == np.float16
    assert found_ids(half.search(z[0], k=5)) == found_ids(whole)
    with pytest.raises(BadInput, match="stores float16, of which no float32 can be made"):
        update(out, "as_is", z, Wanted(precision="float32"))


def test_vectors_keep_ids_and_labels_of_their_file(tmp_path, z):
    path = save_vectors(tmp_path / "v.npz", z, ids=[f"v{row}" for row in range(30)], y=[0, 1] * 15)
    index = Index.build("as_is", path, tmp_path / "index")
    first = index.search_many(path, k=1)[4]
    assert (first.query, found_ids(first)) == ("v4", ["v4"])
    assert first.matches[0].words == {"class": "0"}
    index.close()


def test_a_model_that_gives_no_numbers_is_refused(tmp_path, z):
    z[3] = np.nan
    with pytest.raises(BadInput, match="NaN"):
        update(tmp_path / "index", "as_is", z, Wanted())


# --- writers and readers --------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z)
    with lock_now(out / ".lock"):
        with pytest.raises(BadInput, match="being written by another process"):
            update(out, "as_is", z, Wanted())
        with pytest.raises(BadInput, match="being written by another process"):
            remove(out, ["0"])
        with Index.open(out) as index:
            assert found_ids(index.search(z[5], k=1)) == ["5"]


def test_readers_in_many_threads_see_one_version_or_another_while_one_writes(tmp_path, z):
    """Every opened index is whole: image i is found by its own vector, of this version."""
    out, problems, stop = tmp_path / "index", [], threading.Event()
    index_of(out, z)

    def read():
        while not stop.is_set():
            try:
                with Index.open(out) as index:
                    sign = 1 if index.manifest.version % 2 else -1
                    found = index.search_vectors(sign * z, k=1)
                    wrong = [one for one in found if abs(one.matches[0].score - 1) > 1e-6]
                    problems.extend(wrong)
            except Exception as error:
                problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for version in range(2, 14):
            update(out, "as_is", z if version % 2 else -z, Wanted(prune=True))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert read_manifest(out).version == 13


def test_an_interrupted_update_continues(tmp_path, photos, model, monkeypatch):
    out = tmp_path / "index"
    monkeypatch.setattr("assay.index.pending.CHUNK", 4)

    def interrupt(stage, done, total):
        if stage == "embedding" and done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(out, model, photos, Wanted(), progress=interrupt)
    with pytest.raises(BadInput, match="never finished; run its `assay index` command again"):
        Index.open(out)
    done = update(out, model, photos, Wanted())
    assert (done.embedded, done.resumed, done.added) == (4, 8, 12)
    assert not (out / ".pending").exists()


# --- damage ---------------------------------------------------------------------------------------


def damaged(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z).close()
    return out, out / read_manifest(out).folder


def test_a_file_that_lost_bytes_is_found_on_opening(tmp_path, z):
    out, folder = damaged(tmp_path, z)
    path = folder / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"vectors\.npy has 1,087 bytes, not 1,088.*--rebuild"):
        Index.open(out)


def test_a_byte_that_was_changed_is_found_by_checking(tmp_path, z):
    out, folder = damaged(tmp_path, z)
    content = bytearray((folder / "vectors.npy").read_bytes())
    content[-1] ^= 1
    (folder / "vectors.npy").write_bytes(content)
    Index.open(out).close()
    assert problems_of(out) == [f"{folder / 'vectors.npy'} has other bytes than were written"]


def test_a_changed_manifest_another_format_and_no_index_are_refused(tmp_path, z):
    out, folder = damaged(tmp_path, z)
    path = out / "index.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"count": 3}))
    with pytest.raises(BadInput, match=r"index\.json was altered"):
        Index.open(out)
    path.write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(BadInput, match=r"format 99.*update Assay"):
        Index.open(out)
    path.write_text("{")
    with pytest.raises(BadInput, match="no JSON"):
        Index.open(out)
    path.write_text("[]")
    with pytest.raises(BadInput, match=r"is not the index\.json of an index"):
        Index.open(out)
    with pytest.raises(BadInput, match=r"is not an index \(no index\.json in it\); give the"):
        Index.open(tmp_path / "nowhere")
    path.write_text(json.dumps(document))
    shutil.rmtree(folder)
    with pytest.raises(BadInput, match="is missing: the index was altered"):
        Index.open(out)


def test_a_folder_with_other_files_is_not_made_an_index(tmp_path, z):
    (tmp_path / "holiday.txt").write_text("mine")
    with pytest.raises(BadInput, match="holds files and is no index"):
        update(tmp_path, "as_is", z, Wanted())
    with pytest.raises(BadInput, match="is a file; give the folder of an index"):
        update(tmp_path / "holiday.txt", "as_is", z, Wanted())


# --- merging --------------------------------------------------------------------------------------


def test_merged_indexes_find_what_each_of_them_finds(tmp_path, photos, model):
    for name in ("0", "1"):
        update(tmp_path / name, model, photos / name, Wanted())
    done = merge([tmp_path / "0", tmp_path / "1"], tmp_path / "both")
    assert (done.manifest.count, done.manifest.root) == (6, str(photos))
    with Index.open(tmp_path / "both") as index:
        assert found_ids(index.search(photos / "1" / "2.png", k=1)) == ["1/2.png"]
        assert index.file_of("0/0.png") == photos / "0" / "0.png"
    assert update(tmp_path / "both", model, photos, Wanted()).embedded == 6


def test_what_cannot_be_merged_is_refused(tmp_path, photos, model, other_model, z):
    update(tmp_path / "one", model, photos, Wanted())
    update(tmp_path / "two", other_model, photos, Wanted())
    index_of(tmp_path / "v", z)
    index_of(tmp_path / "w", -z)
    with pytest.raises(BadInput, match="differ in their model"):
        merge([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    with pytest.raises(BadInput, match="another image called 0"):
        merge([tmp_path / "v", tmp_path / "w"], tmp_path / "out")
    with pytest.raises(BadInput, match="is an index already"):
        merge([tmp_path / "v"], tmp_path / "w")
    with pytest.raises(BadInput, match="nowhere is not an index"):
        merge([tmp_path / "v", tmp_path / "nowhere"], tmp_path / "out")


# --- a process of its own -------------------------------------------------------------------------


def test_an_index_of_another_process_is_the_same(tmp_path, z):
    out = tmp_path / "index"
    here = index_of(out, z).search(z[7], k=5)
    code = (
        "import sys, numpy as np; from assay.index.index import Index;"
        "query = np.array(eval(sys.argv[2]), dtype=np.float32);"
        "found = Index.open(sys.argv[1]).search(query, k=5);"
        "print([(match.id, match.score) for match in found.matches])"
    )
    words = [sys.executable, "-c", code, str(out), str(z[7].tolist())]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert eval(done.stdout) == [(match.id, match.score) for match in here.matches]


# --- back ends that keep a part elsewhere ---------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """A back end `elsewhere` with a list of what its server holds; `down` makes it unreachable."""
    held: dict[str, str] = {}
    state, numbers = SimpleNamespace(held=held, down=False), itertools.count()

    @dataclass(frozen=True)
    class Elsewhere(Exact):
        name = "elsewhere"

        def build(self, folder, *others):
            key = f"collection {next(numbers)}"
            held[key] = "rows"
            (folder / "key").write_text(key)

        def discard(self, folder, kept):
            if (folder / "key").exists():
                if state.down:
                    raise BadInput("the server cannot be reached")
                held.pop((folder / "key").read_text(), None)

    parts = {**vars(backends)["_parts"], "elsewhere": Elsewhere}
    monkeypatch.setattr(backends, "_parts", parts)
    return state


def test_what_a_server_holds_of_a_version_goes_with_the_version(tmp_path, z, server):
    out = tmp_path / "index"
    index_of(out, z, backend="elsewhere").close()
    remove(out, ["0"])
    assert list(server.held) == ["collection 1"]
    update(out, "as_is", z, Wanted(backend="exact"))
    assert server.held == {}


def test_a_version_stays_until_its_server_can_be_reached(tmp_path, z, server):
    out = tmp_path / "index"
    index_of(out, z, backend="elsewhere").close()
    server.down = True
    remove(out, ["0"])
    assert len(list((out / "versions").iterdir())) == 2
    server.down = False
    update(out, "as_is", z[1:], Wanted(prune=True))
    assert len(list((out / "versions").iterdir())) == 1
    assert len(server.held) == 1
    assert problems_of(out) == []


def test_a_folder_is_filtered_by_its_name_however_its_letters_are_composed(tmp_path, model):
    decomposed = "cafe\u0301"
    photos = make_photos(tmp_path / "photos", classes=2)
    (photos / "0").rename(photos / decomposed)
    index = Index.build(model, photos, tmp_path / "index")
    where = parse_where(["folder=caf\u00e9"])
    found = index.search(photos / "1" / "0.png", where=where)
    assert set(found_ids(found)) == {f"{decomposed}/{image}.png" for image in range(3)}
    assert all(index.file_of(match.id).exists() for match in found.matches)
    index.close()


# --- every damage, and the remedy that its message names ------------------------------------------


def cut_vectors(out, folder):
    path = folder / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-5])


def alter_manifest(out, folder):
    document = json.loads((out / "index.json").read_text())
    (out / "index.json").write_text(json.dumps(document | {"count": 3}))


def newer_format(out, folder):
    document = json.loads((out / "index.json").read_text())
    (out / "index.json").write_text(json.dumps(document | {"format": 99}))


def no_json(out, folder):
    (out / "index.json").write_text("{")


def spoil_catalog(out, folder):
    size = (folder / "catalog.sqlite").stat().st_size
    (folder / "catalog.sqlite").write_bytes(b"x" * size)


def lose_version(out, folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage",
    [cut_vectors, alter_manifest, newer_format, no_json, spoil_catalog, lose_version],
    ids=lambda one: one.__name__,
)
def test_the_remedy_of_a_damaged_index_works(tmp_path, z, damage):
    out, folder = damaged(tmp_path, z)
    damage(out, folder)
    with pytest.raises(DamagedIndex, match="--rebuild"):
        Index.open(out).search(z[0])
    with pytest.raises(DamagedIndex):
        update(out, "as_is", z, Wanted())
    done = update(out, "as_is", z, Wanted(rebuild=True))
    assert "the index was damaged and is made again" in done.notes[0]
    assert problems_of(out) == []
    with Index.open(out) as index:
        assert found_ids(index.search(z[4], k=1)) == ["4"]
    assert len(list((out / "versions").iterdir())) == 1


def test_a_damaged_calibration_is_removed_by_the_next_update_and_named_by_a_check(tmp_path, z):
    out, _ = damaged(tmp_path, z)
    (out / "calibration.json").write_text("{}")
    assert "calibrate again" in problems_of(out)[0]
    with pytest.raises(BadInput, match="calibrate again"):
        Index.open(out)
    done = update(out, "as_is", z, Wanted())
    assert "the calibration was damaged and was removed" in done.notes[-1]
    Index.open(out).close()


def test_a_check_reads_the_model_too_and_an_update_brings_a_lost_one_back(tmp_path, z):
    out, _ = damaged(tmp_path, z)
    (folder,) = (out / "models").iterdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    assert problems_of(out) == [f"{weights} is not the model that embedded the images"]
    shutil.rmtree(folder)
    assert "cannot be read as a model" in problems_of(out)[0]
    assert not update(out, "as_is", z, Wanted()).is_new
    assert problems_of(out) == []


BACKENDS = ["exact", "hnsw", "ivfpq", "bits"]


@for_each("after", BACKENDS)
@for_each("before", BACKENDS)
def test_any_back_end_can_follow_any_other_or_says_that_it_cannot(before, after):
    z = make_vectors(40)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "index"
        index_of(out, z, backend=before).close()
        if (before == "bits") != (after == "bits"):
            with pytest.raises(BadInput, match="give --rebuild"):
                update(out, "as_is", z, Wanted(backend=after))
            after = before
        else:
            update(out, "as_is", z, Wanted(backend=after))
        with Index.open(out) as index:
            assert index.manifest.backend == after
            assert "7" in found_ids(index.search(z[7], k=40))
        assert problems_of(out) == []


def test_settings_stay_until_others_are_given(tmp_path, z):
    out = tmp_path / "index"
    index_of(out, z, backend="hnsw", settings={"links": 8}).close()
    assert not update(out, "as_is", z, Wanted(backend="hnsw")).is_new
    assert read_manifest(out).settings["links"] == 8
    Index.build("as_is", z, out).close()
    assert read_manifest(out).backend == "hnsw"


def test_numbers_that_half_precision_cannot_hold_are_refused(tmp_path):
    model = make_model(tmp_path / "model", similarity="euclidean")
    embedder = load(model)
    with torch.no_grad():
        embedder.model.head.weight *= 1e7
    update(tmp_path / "index", embedder, make_photos(tmp_path / "photos"), Wanted())
    before = state_of(tmp_path / "index")
    with pytest.raises(BadInput, match="above 7e"):
        update(tmp_path / "index", embedder, tmp_path / "photos", Wanted(precision="float16"))
    assert state_of(tmp_path / "index") == before


def test_a_folder_that_a_killed_writer_left_is_not_taken_for_a_version(tmp_path, z, server):
    out = tmp_path / "index"
    index_of(out, z, backend="elsewhere").close()
    left = shutil.copytree(out / "versions" / "v000001", out / "versions" / "v000002")
    (left / "backend" / "key").write_text("collection 99")
    server.down = True
    remove(out, ["0"])
    assert read_manifest(out).version == 3
    assert problems_of(out) == []
    with Index.open(out) as index:
        assert len(index) == 29


def test_a_model_that_is_not_there_leaves_no_folder(tmp_path, photos):
    with pytest.raises(BadInput):
        update(tmp_path / "index", "nosuch", photos, Wanted())
    assert not (tmp_path / "index").exists()


def test_classes_that_are_gone_are_pruned(tmp_path, photos, model):
    out = tmp_path / "index"
    update(out, model, f"folder:{photos}", Wanted())
    for name in ("1", "2", "3"):
        shutil.rmtree(photos / name)
    done = update(out, model, f"folder:{photos}", Wanted(prune=True))
    assert (done.removed, done.manifest.count) == (9, 3)


def test_another_root_for_names_that_are_there_is_refused(tmp_path, photos, model):
    out = tmp_path / "index"
    update(out, model, photos, Wanted())
    with pytest.raises(BadInput, match="the names in this index are relative to"):
        update(out, model, photos, Wanted(root=tmp_path))
    assert update(out, model, photos, Wanted(root=photos)).unchanged == 12


def test_a_failed_opening_leaves_no_file_open(tmp_path, z):
    out, _ = damaged(tmp_path, z)
    other = make_model(tmp_path / "other")
    open_files = Path("/proc/self/fd")
    with pytest.raises(BadInput):
        Index.open(out, model=other)
    before = len(list(open_files.iterdir()))
    for _ in range(5):
        with pytest.raises(BadInput, match="another model"):
            Index.open(out, model=other)
    assert len(list(open_files.iterdir())) == before


def test_a_closed_index_gives_its_memory_back(tmp_path, filtered, z):
    filtered.search(z[0], where={"colour": ["red"]})
    root = filtered.root
    filtered.close()
    gc.disable()
    try:
        index = Index.open(root)
        index.search(z[0], where={"colour": ["red"]})
        searcher = weakref.ref(index._searcher)
        index.close()
        del index
        assert searcher() is None, "a cycle keeps a closed index in memory"
    finally:
        gc.enable()


def test_an_index_that_was_rebuilt_says_so_to_those_who_still_have_it_open(
    tmp_path, photos, model, other_model
):
    out = tmp_path / "index"
    index = Index.build(model, photos, out)
    update(out, other_model, photos, Wanted(rebuild=True))
    with pytest.raises(BadInput, match="made again with another model since it was opened"):
        index.search(photos / "0" / "0.png")
    index.close()


# --- what a stranger's index, or a stranger's folder, must not do ---------------------------------


def signed(document):
    own = {name: value for name, value in document.items() if name != "sha256"}
    return json.dumps(own | {"sha256": digest(own)})


def test_a_folder_with_a_lock_of_others_is_not_taken_for_an_index(tmp_path, z):
    mine = tmp_path / "mine" / "models" / "prod"
    mine.mkdir(parents=True)
    (mine / "w").write_text("weights")
    (tmp_path / "mine" / ".lock").touch()
    with pytest.raises(BadInput, match="holds files and is no index"):
        update(tmp_path / "mine", "as_is", z, Wanted())
    assert (mine / "w").read_text() == "weights"


@for_each("name", ["versions", "models", ".pending"])
def test_a_link_in_an_index_is_not_followed(name):
    with tempfile.TemporaryDirectory() as place:
        out, home = Path(place) / "index", Path(place) / "home"
        index_of(out, make_vectors(5)).close()
        (home / "thesis").mkdir(parents=True)
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).symlink_to(home)
        with pytest.raises(BadInput, match="is a link, and an index holds none"):
            remove(out, ["3"])
        assert (home / "thesis").is_dir()


def test_folders_that_no_writer_made_stay(tmp_path, z):
    out, _ = damaged(tmp_path, z)
    (out / "versions" / "notes").mkdir()
    (out / "models" / "mine").mkdir()
    remove(out, ["0"])
    assert (out / "versions" / "notes").is_dir()
    assert (out / "models" / "mine").is_dir()


def test_an_exchanged_model_is_not_searched_with(tmp_path, photos, model, other_model):
    out = tmp_path / "index"
    index = Index.build(model, photos, out)
    folder = out / "models" / index.manifest.model.print
    shutil.rmtree(folder)
    shutil.copytree(other_model, folder)
    assert "is not the model that embedded the images" in problems_of(out)[0]
    with pytest.raises(DamagedIndex, match="another model than the one that embedded"):
        index.search(photos / "0" / "0.png")
    index.close()


def test_a_manifest_that_lists_too_little_or_files_elsewhere_is_found(tmp_path, z):
    out, folder = damaged(tmp_path, z)
    document = json.loads((out / "index.json").read_text())
    (out / "index.json").write_text(signed(document | {"files": {}}))
    found = problems_of(out)
    assert f"{folder / 'vectors.npy'} is not listed" in found
    outside = {"../../../etc/passwd": document["files"]["vectors.npy"]}
    (out / "index.json").write_text(signed(document | {"files": outside}))
    with pytest.raises(DamagedIndex, match="names files outside of the index"):
        Index.open(out)
    elsewhere = document["model"] | {"print": "../../m2"}
    (out / "index.json").write_text(signed(document | {"model": elsewhere}))
    with pytest.raises(DamagedIndex, match="names files outside of the index"):
        Index.open(out)


def test_a_view_in_the_place_of_a_table_cannot_keep_a_reader_busy(tmp_path, z):
    out, folder = damaged(tmp_path, z)
    endless = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c)"
        " SELECT x AS name, x AS number FROM c"
    )
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as file:
        file.executescript(f"DROP TABLE columns; CREATE VIEW columns AS {endless};")
    document = json.loads((out / "index.json").read_text())
    files = {name: vars(one) for name, one in sums_of(folder).items()}
    (out / "index.json").write_text(signed(document | {"files": files}))
    with pytest.raises(DamagedIndex, match="has other tables than a catalog"):
        Index.open(out)


# --- how sure a match is --------------------------------------------------------------------------


def calibrated_index(out, label=None, classes=60, each=3, words=None):
    """Index vectors around centres, and calibrate on other classes of the same kind."""
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), each)

    def sample(seed):
        centres = np.random.default_rng(seed).normal(size=(classes, 12))
        return (centres[y] + 0.35 * draw.normal(size=(len(y), 12))).astype(np.float32)

    z, table = sample(1), out.with_suffix(".csv")
    words = [str(one) for one in y] if words is None else words
    rows = [f"{row},{word}" for row, word in enumerate(words) if word]
    table.write_text("\n".join(["id,kind", *rows]))
    update(out, "as_is", z, Wanted(metadata=table, label=label))
    manifest = read_manifest(out)
    of = Calibrated(manifest.model.print, "cosine", "float32", "others", "all")
    calibrate(prepare(sample(2), "cosine"), y, of).write(out / "calibration.json")
    return Index.open(out), z


def test_only_a_column_of_classes_says_how_many_images_show_the_same(tmp_path):
    index, z = calibrated_index(tmp_path / "plain")
    assert index.gallery is None, "no column was said to be the class"
    assert index.search(z[0]).matches[0].confidence is None
    with pytest.raises(BadInput, match="--same N"):
        index.search(z[0], min_precision=0.5)
    index.close()
    index, z = calibrated_index(tmp_path / "labelled", label="kind")
    assert (index.gallery.images, index.gallery.same) == (180, 3)
    assert index.search(z[0]).matches[0].confidence > 0.5
    index.close()
    few = ["checked"] * 40 + [""] * 140
    index, z = calibrated_index(tmp_path / "few", label="kind", words=few)
    assert index.gallery is None, "most images have no class"
    index.close()


def test_what_the_user_said_of_the_gallery_counts(tmp_path):
    index, z = calibrated_index(tmp_path / "index", label="kind")
    usual = index.search(z[0]).matches[3].confidence
    index.close()
    path = tmp_path / "index" / "calibration.json"
    replace(Calibration.read(path), asked=AskedGallery(None, 0.01)).write(path)
    with Index.open(tmp_path / "index") as index:
        assert (index.gallery.images, index.gallery.same) == (180, 0.01)
        assert index.search(z[0]).matches[3].confidence < usual


def test_an_image_of_the_index_is_no_match_of_its_own_and_does_not_count_as_one(tmp_path):
    index, _ = calibrated_index(tmp_path / "index", label="kind", classes=150, each=2)
    vector = index.vectors.read(np.array([0]))
    found = index.search_vectors(vector, k=5)[0].matches[1:]
    alone = index.search_like("0", k=4).matches
    assert [one.id for one in found] == [one.id for one in alone]
    assert all(one.confidence < two.confidence for one, two in zip(alone, found, strict=True))
    index.close()
    words = [str(row) for row in range(180)]
    index, _ = calibrated_index(tmp_path / "single", label="kind", words=words)
    assert {one.confidence for one in index.search_like("0", k=4).matches} == {0.0}
    assert index.search_like("0", k=4, min_precision=0.1).matches == ()
    index.close()


def test_an_index_json_of_another_program_is_left_alone(tmp_path, z):
    (tmp_path / "index.json").write_text('{"name": "my site"}')
    for rebuild in (False, True):
        with pytest.raises(BadInput, match="holds files and is no index"):
            update(tmp_path, "as_is", z, Wanted(rebuild=rebuild))
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]


def test_a_writer_that_was_killed_before_it_began_is_followed_by_another(tmp_path, z):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / ".lock").touch()
    assert update(tmp_path / "index", "as_is", z, Wanted()).added == 30


def test_a_check_asks_no_server(tmp_path, z, monkeypatch):
    @dataclass(frozen=True)
    class Far(Exact):
        name = "far"
        is_remote = True

        def open(self, folder, vectors):
            raise AssertionError("connected")

    monkeypatch.setattr(backends, "_parts", {**vars(backends)["_parts"], "far": Far})
    out = tmp_path / "index"
    update(out, "as_is", z, Wanted(backend="far"))
    assert problems_of(out) == []
    with pytest.raises(AssertionError, match="connected"):
        Index.open(out)
