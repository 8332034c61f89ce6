"""`assay evaluate` on files of embeddings: as they are, and by the parts of a data set. Runs of a
store: test_look.py.
"""

import csv
import io
import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

import assay as package
from assay.cli import progress
from assay.data import load, splits
from assay.data.splits import parts
from assay.evaluation.embeddings import read_embeddings
from assay.evaluation.evaluated_model import validation_rows
from assay.protocols import customise, protocols
from loops import for_each

N, WIDTH, CLASSES = 80, 12, 16
DEFAULTS = ("precision_at_1", "r_precision", "map_at_r")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def arrays():
    """Return embeddings of 16 classes with 5 samples each, in no order, with their labels."""
    draw = np.random.default_rng(0)
    y = draw.permutation(np.repeat(np.arange(CLASSES), N // CLASSES))
    return {"z": draw.normal(size=(CLASSES, WIDTH))[y] + 0.9 * draw.normal(size=(N, WIDTH)), "y": y}


@pytest.fixture
def data(tmp_path, arrays):
    """Write a data set whose sample i is row i of the embeddings, and return its name."""
    np.savez(tmp_path / "data.npz", z=np.random.default_rng(1).normal(size=(N, 3)), y=arrays["y"])
    return "features:data.npz"


def save(path, arrays, **others):
    np.savez(path, **{**arrays, **others})


def result(answer):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def rows_of(part, folds=4):
    """Return the rows of the data set that belong to a part."""
    protocol = (
        protocols["quick"] if folds == 4 else customise(protocols["quick"], [f"folds={folds}"])
    )
    return np.flatnonzero(np.array(parts(load("features:data.npz"), protocol)) == part)


def plain(scores):
    return json.loads(json.dumps(scores.to_dict()))


# --- as they are ----------------------------------------------------------------------------------


def test_an_archive_is_scored_as_it_is(assay, tmp_path, arrays):
    save(tmp_path / "f.npz", arrays)
    found = result(assay("evaluate", "f.npz", "--json"))
    expected = package.evaluate(arrays["z"], arrays["y"])
    assert found == {
        "what": "f.npz",
        "data": None,
        "test": False,
        "parts": {"all": plain(expected)},
        "mean": dict(expected),
    }


def test_the_table_shows_means_intervals_and_counts(assay, tmp_path):
    y = ["ant", "bee", "cat", "dog", "elk"]
    np.savez(
        tmp_path / "f.npz", z=np.vstack([np.eye(5), np.eye(5), np.ones((1, 5))]), y=[*y, *y, "owl"]
    )
    code, out, err = assay("evaluate", "f.npz", "--metrics", "map_at_r,pi_inter")
    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0] == ["f.npz,", "95%", "intervals"]
    assert lines[1] == ["metric", "mean", "over", "queries", "over", "classes"]
    assert lines[3] == ["map_at_r", "1.0000", "[1.0000,", "1.0000]", "[1.0000,", "1.0000]"]
    assert lines[4][2:] == ["-", "-"]
    assert out.splitlines()[-1] == "10 queries of 5 classes, 1 skipped (nothing to find); cosine"


def test_one_class_has_no_interval_over_classes(assay, tmp_path):
    np.savez(tmp_path / "f.npz", z=np.eye(4), y=[7, 7, 7, 8])  # nothing to find for the last
    assert result(assay("evaluate", "f.npz", "--json"))["parts"]["all"]["metrics"]["map_at_r"][
        "over_classes"
    ] == [None, None]
    assert assay("evaluate", "f.npz")[1].splitlines()[3].split()[-1] == "-"


def test_masks_say_what_is_looked_up_in_what_and_ids_name_it(assay, tmp_path, arrays):
    query = np.arange(N) % 3 == 0
    ids = np.array([f"sample {number}" for number in range(N)])
    save(tmp_path / "f.npz", arrays, query=query, gallery=~query, ids=ids)
    expected = package.evaluate(
        arrays["z"], arrays["y"], queries=query, gallery=~query, ids=list(ids)
    )
    found = result(assay("evaluate", "f.npz", "--json", "--per-query", "q.csv"))
    assert found["parts"]["all"] == plain(expected)
    with (tmp_path / "q.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == list(ids[query])
    assert [int(row["label"]) for row in rows] == arrays["y"][query].tolist()
    assert {row["part"] for row in rows} == {"all"}
    for name in DEFAULTS:
        assert [float(row[name]) for row in rows] == expected.per_query(name).tolist()


def test_a_query_mask_alone_leaves_all_in_the_gallery(assay, tmp_path, arrays):
    query = np.arange(N) % 3 == 0
    save(tmp_path / "f.npz", arrays, query=query)
    expected = package.evaluate(arrays["z"], arrays["y"], queries=query)
    assert result(assay("evaluate", "f.npz", "--json"))["parts"]["all"] == plain(expected)


def test_rows_that_take_no_part_may_be_anything(assay, tmp_path, arrays):
    used = np.arange(N) < 60
    arrays["z"][70] = np.nan
    save(tmp_path / "f.npz", arrays, query=used, gallery=used)
    assert assay("evaluate", "f.npz")[0] == 0


def test_a_query_with_nothing_to_find_has_empty_cells(assay, tmp_path):
    np.savez(tmp_path / "f.npz", z=np.eye(3), y=["a", "a", "b"])
    assert assay("evaluate", "f.npz", "--metrics", "nmi,map_at_r", "--per-query", "q.csv")[0] == 0
    assert (tmp_path / "q.csv").read_text().splitlines() == [
        "part,id,label,map_at_r",
        "all,0,a,1.0",
        "all,1,a,1.0",
        "all,2,b,",
    ]


@for_each("kind", [np.float64, np.float32, np.float16])
def test_an_array_file_is_memory_mapped_and_gives_the_same(assay, tmp_path, arrays, kind):
    z = arrays["z"].astype(kind)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", arrays["y"])
    found = result(assay("evaluate", "z.npy", "--labels", "y.npy", "--json"))
    assert found["parts"]["all"] == plain(package.evaluate(z, arrays["y"]))
    embeddings = read_embeddings(tmp_path / "z.npy", tmp_path / "y.npy", needs_labels=True)
    assert isinstance(embeddings.z, np.memmap)
    assert isinstance(embeddings.whole().z, np.memmap)


@for_each("similarity", ["dot", "euclidean", "hamming"])
def test_the_similarity_can_be_chosen(assay, tmp_path, arrays, similarity):
    z = np.packbits(arrays["z"] > 0, axis=1) if similarity == "hamming" else arrays["z"]
    save(tmp_path / "f.npz", arrays, z=z)
    found = result(assay("evaluate", "f.npz", "--similarity", similarity, "--json"))
    assert found["parts"]["all"] == plain(package.evaluate(z, arrays["y"], similarity=similarity))


def test_what_is_not_finite_is_written_by_its_name(assay, tmp_path, arrays):
    z = np.hstack([arrays["z"], np.zeros((N, 1))])
    save(tmp_path / "f.npz", arrays, z=z)
    found = result(assay("evaluate", "f.npz", "--metrics", "spectral_decay", "--json"))
    assert found["mean"] == {"spectral_decay": "inf"}
    assert float(found["parts"]["all"]["metrics"]["spectral_decay"]["mean"]) == np.inf
    assert " inf " in assay("evaluate", "f.npz", "--metrics", "spectral_decay")[1]


def test_labels_may_be_words_in_bytes(assay, tmp_path, arrays):
    save(tmp_path / "f.npz", arrays, y=np.array([f"ü{label}".encode() for label in arrays["y"]]))
    assert assay("evaluate", "f.npz", "--per-query", "q.csv")[0] == 0
    assert f",ü{arrays['y'][0]}," in (tmp_path / "q.csv").read_text().splitlines()[1]


# --- by the parts of a data set -------------------------------------------------------------------


def test_each_fold_is_searched_by_itself_with_the_labels_of_the_data(assay, tmp_path, arrays, data):
    np.savez(tmp_path / "f.npz", z=arrays["z"])
    found = result(assay("evaluate", "f.npz", "--data", data, "--json", "--per-query", "q.csv"))
    expected = {}
    for number in range(4):
        rows = rows_of(f"fold {number}")
        expected[f"fold {number}"] = package.evaluate(arrays["z"][rows], arrays["y"][rows])
    assert {name: part["metrics"]["map_at_r"]["mean"] for name, part in found["parts"].items()} == {
        name: scores["map_at_r"] for name, scores in expected.items()
    }
    assert found["mean"]["map_at_r"] == pytest.approx(
        np.mean([scores["map_at_r"] for scores in expected.values()])
    )
    assert [part["classes"] for part in found["parts"].values()] == [2, 2, 2, 2]
    with (tmp_path / "q.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    dataset = load(data)
    places = [row for number in range(4) for row in rows_of(f"fold {number}")]
    assert [row["id"] for row in rows] == [dataset.ids[place] for place in places]
    assert [row["label"] for row in rows] == [
        dataset.class_names[dataset.labels[place]] for place in places
    ]


def test_folds_and_their_mean_stand_in_columns(assay, tmp_path, arrays, data):
    save(tmp_path / "f.npz", arrays)
    code, out, err = assay("evaluate", "f.npz", "--data", data)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "f.npz on features:data.npz"
    assert lines[1].split() == [
        "metric",
        *(word for number in range(4) for word in ("fold", str(number))),
        "mean",
    ]
    assert lines[-1] == "40 queries of 8 classes; cosine"
    *folds, mean = [float(cell) for cell in lines[5].split()[1:]]
    assert mean == pytest.approx(np.mean(folds), abs=1e-4)


def test_the_protocol_decides_the_folds(assay, tmp_path, arrays, data):
    save(tmp_path / "f.npz", arrays)
    found = result(assay("evaluate", "f.npz", "--data", data, "--set", "folds=2", "--json"))
    assert [part["classes"] for part in found["parts"].values()] == [4, 4]


def test_roles_of_the_data_count_at_the_test_and_nowhere_else(assay, tmp_path, arrays, data):
    """As they do for a model: in validation everything is looked up in everything else."""
    query = np.arange(N) % 3 == 0
    np.savez(
        tmp_path / "data.npz", z=load(data).items.z, y=arrays["y"], query=query, gallery=~query
    )
    np.savez(tmp_path / "f.npz", z=arrays["z"])
    found = result(assay("evaluate", "f.npz", "--data", data, "--test", "--json"))
    rows = rows_of("test")
    expected = package.evaluate(
        arrays["z"][rows], arrays["y"][rows], queries=query[rows], gallery=~query[rows]
    )
    assert found["mean"] == dict(expected)
    assert found["parts"]["test"]["queries"] == expected.queries < len(rows)
    found = result(assay("evaluate", "f.npz", "--data", data, "--json"))
    assert [part["queries"] for part in found["parts"].values()] == [10, 10, 10, 10]


@pytest.mark.parametrize("test", [[], ["--test"]])
def test_roles_of_the_file_do_not_count_beside_those_of_the_data(
    assay, tmp_path, arrays, data, test
):
    """Not even those that would leave nothing to look up."""
    save(tmp_path / "plain.npz", arrays)
    save(tmp_path / "marked.npz", arrays, query=np.zeros(N, bool), gallery=np.arange(N) < 5)
    plain, marked = (
        result(assay("evaluate", name, "--data", data, *test, "--json"))
        for name in ("plain.npz", "marked.npz")
    )
    assert marked["parts"] == plain["parts"]


def test_test_scores_the_test_half_and_notes_where_the_look_is_recorded(
    assay, tmp_path, arrays, data, looks_folder
):
    save(tmp_path / "f.npz", arrays)
    code, out, err = assay("evaluate", "f.npz", "--data", data, "--test", "--json")
    rows = rows_of("test")
    found = json.loads(out)
    assert code == 0
    assert list(found["parts"]) == ["test"]
    assert found["mean"] == dict(package.evaluate(arrays["z"][rows], arrays["y"][rows]))
    assert (
        err == "note: no study is known to have opened the test half of features:data.npz; this"
        f" look at it is recorded as look 1 in the index of looks ({looks_folder})\n"
    )


def test_an_array_file_goes_with_data_too(assay, tmp_path, arrays, data):
    save(tmp_path / "f.npz", arrays)
    np.save(tmp_path / "z.npy", arrays["z"])
    of_array, of_archive = (
        result(assay("evaluate", name, "--data", data, "--json")) for name in ("z.npy", "f.npz")
    )
    assert of_array["parts"] == of_archive["parts"]


def test_rows_in_the_order_of_classes_are_not_copied(tmp_path, arrays):
    order = np.argsort(arrays["y"], kind="stable")
    np.savez(tmp_path / "data.npz", z=arrays["z"], y=arrays["y"][order])
    np.save(tmp_path / "z.npy", arrays["z"][order])
    embeddings = read_embeddings(tmp_path / "z.npy", None, needs_labels=False)
    trainval, _ = splits.of(load(f"features:{tmp_path / 'data.npz'}"), protocols["quick"])
    found = list(embeddings.parts(trainval, validation_rows(trainval, 4)))
    assert all(np.shares_memory(part.z, embeddings.z) for part in found)


def test_without_test_nothing_of_the_test_half_can_change_a_byte(assay, tmp_path, arrays, data):
    """Labels, samples and embeddings of the test half are out of reach."""
    save(tmp_path / "f.npz", arrays)
    words = [
        "evaluate",
        "f.npz",
        "--data",
        data,
        "--metrics",
        "map_at_r,recall_at_4,nmi",
        "--json",
        "--per-query",
        "q.csv",
        "--force",
    ]
    before, queries = assay(*words), (tmp_path / "q.csv").read_bytes()
    rows, draw = rows_of("test"), np.random.default_rng(3)
    y, z = arrays["y"].copy(), arrays["z"].copy()
    y[rows], z[rows] = draw.permutation(y[rows]), np.nan
    np.savez(
        tmp_path / "data.npz",
        z=np.where(np.isin(np.arange(N), rows)[:, None], 9, load(data).items.z),
        y=y,
    )
    save(tmp_path / "f.npz", {"z": z, "y": y})
    assert assay(*words) == before
    assert before[0] == 0
    assert (tmp_path / "q.csv").read_bytes() == queries
    code, _, err = assay(*words, "--test")
    assert code == 2
    assert f"row {rows[0]} of z (and {len(rows) - 1} other rows) is NaN" in err


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_rows_of_zeros_are_noted_once_and_scored(assay, tmp_path, arrays, data, similarity):
    y = arrays["y"]
    first, second = rows_of("fold 1")[0], rows_of("test")[0]
    arrays["z"][[first, second]] = 0
    save(tmp_path / "f.npz", arrays)
    words = ["evaluate", "f.npz", "--similarity", similarity]
    code, _, err = assay(*words)
    noted = f"note: f.npz: 2 of 80 rows of z hold zeros only, the first is row {min(first, second)}"
    assert (code, noted in err, err.count("\n")) == (0, *[similarity != "euclidean"] * 2)
    err = assay(*words, "--data", data)[2]
    assert (f"1 of 40 rows of z hold zeros only, the first is row {first}" in err) == (
        similarity != "euclidean"
    )
    found = result(assay(*words, "--json"))["parts"]["all"]
    assert found == plain(package.evaluate(arrays["z"], y, similarity=similarity))


def test_the_spectrum_of_one_class_is_measured(assay, tmp_path, arrays):
    save(tmp_path / "f.npz", arrays, y=np.zeros(N, int))
    assert assay("evaluate", "f.npz", "--metrics", "spectral_decay")[0] == 0


# --- bad input ------------------------------------------------------------------------------------


def nothing(path, arrays):
    pass


def changed(**others):
    return lambda path, arrays: save(path / "f.npz", arrays, **others)


def spoilt(path, arrays):
    save(path / "f.npz", arrays)
    content = (path / "f.npz").read_bytes()
    (path / "f.npz").write_bytes(content[: len(content) // 2])


def without(name):
    return lambda path, arrays: np.savez(
        path / "f.npz", **{key: value for key, value in arrays.items() if key != name}
    )


def nan_rows(path, arrays):
    arrays["z"][7], arrays["z"][9] = np.nan, np.inf
    save(path / "f.npz", arrays)


def array_file(path, arrays, z=None, y=None):
    np.save(path / "z.npy", arrays["z"] if z is None else z)
    np.save(path / "y.npy", arrays["y"] if y is None else y)


BAD = {
    "missing file": (nothing, ["f.npz"], "there is no f.npz"),
    "no z": (without("z"), ["f.npz"], "f.npz has no array 'z' (it has y)"),
    "no y": (without("y"), ["f.npz"], "f.npz has no array 'y' (it has z)"),
    "spoilt": (spoilt, ["f.npz"], "f.npz cannot be read as an .npz of plain arrays"),
    "a folder": (
        lambda path, arrays: (path / "f.npz").mkdir(),
        ["f.npz"],
        "f.npz cannot be read as an .npz",
    ),
    "pickled": (
        changed(y=np.array([{}] * N, dtype=object)),
        ["f.npz"],
        "y holds Python objects; save labels as text",
    ),
    "z of one axis": (changed(z=np.ones(N)), ["f.npz"], "f.npz: z is float64 of shape (80,)"),
    "z of words": (changed(z=np.full((N, 2), "a")), ["f.npz"], "f.npz: z is <U1 of shape (80, 2)"),
    "lengths differ": (
        changed(y=np.arange(N - 1)),
        ["f.npz"],
        "f.npz: y has shape (79,); z has 80 rows",
    ),
    "labels are floats": (
        changed(y=np.ones(N)),
        ["f.npz"],
        "f.npz: y is float64; labels are integers or strings",
    ),
    "a mask of numbers": (
        changed(query=np.arange(N)),
        ["f.npz"],
        "f.npz: query is int64 of shape (80,); it must be booleans",
    ),
    "a short mask": (
        changed(gallery=np.ones(3, bool)),
        ["f.npz"],
        "f.npz: gallery is bool of shape (3,)",
    ),
    "an empty mask": (
        changed(query=np.zeros(N, bool)),
        ["f.npz"],
        "f.npz: there is no row in queries",
    ),
    "ids of floats": (
        changed(ids=np.ones(N)),
        ["f.npz"],
        "f.npz: ids is float64 of shape (80,); it must be integers or strings",
    ),
    "NaN rows": (nan_rows, ["f.npz"], "f.npz: row 7 of z (and 1 other row) is NaN or infinite"),
    "all singletons": (
        changed(y=np.arange(N)),
        ["f.npz"],
        "f.npz: all 80 queries have no sample of their class to find",
    ),
    "one class": (
        changed(y=np.full(N, 7)),
        ["f.npz"],
        "f.npz: all 80 samples have the label 7, so every search is right and nothing is measured",
    ),
    "one class to find": (
        lambda path, arrays: save(path / "f.npz", arrays, gallery=arrays["y"] == 3),
        ["f.npz"],
        "f.npz: all 5 samples of the gallery have the label 3, so every search is right",
    ),
    "a label with a NUL byte": (
        changed(y=np.array(["a", "b\0c"] * (N // 2))),
        ["f.npz"],
        "f.npz: row 1 of y has a NUL byte in the label 'b\\x00c'; remove it",
    ),
    "bytes with a NUL byte": (
        lambda path, arrays: array_file(path, arrays, y=np.array([b"a", b"b\0c"] * (N // 2))),
        ["z.npy", "--labels", "y.npy"],
        "y.npy: row 1 of y has a NUL byte in the label 'b\\x00c'; remove it",
    ),
    "no array": (
        lambda path, arrays: np.savez(path / "f.npz"),
        ["f.npz"],
        "f.npz is an .npz without a single array; save it with np.savez(path, z=..., y=...)",
    ),
    "k too large": (
        changed(),
        ["f.npz", "--metrics", "recall_at_80"],
        "f.npz: recall_at_80 looks at 80 references",
    ),
    "k too large in a fold": (
        changed(),
        ["f.npz", "--data", "features:data.npz", "--metrics", "recall_at_10"],
        "f.npz, fold 0: recall_at_10 looks at 10 references, but a query has 9",
    ),
    "a metric that is not of bits": (
        changed(),
        ["f.npz", "--similarity", "hamming", "--metrics", "map_at_r,nmi"],
        "f.npz: nmi is not a metric of bits",
    ),
    "unknown metric": (changed(), ["f.npz", "--metrics", "map_at_rr"], "did you mean 'map_at_r'?"),
    "no metric": (changed(), ["f.npz", "--metrics", ","], "name at least one metric"),
    "k of 0": (
        changed(),
        ["f.npz", "--metrics", "recall_at_0"],
        "--metrics 'recall_at_0': recall_at_0: the number in it is at least 1",
    ),
    "k too large in the test half": (
        changed(),
        ["f.npz", "--data", "features:data.npz", "--test", "--metrics", "recall_at_40"],
        "f.npz, test: recall_at_40 looks at 40 references, but a query has 39",
    ),
    "--test without data": (changed(), ["f.npz", "--test"], "--test needs --data"),
    "rows are not samples": (
        lambda path, arrays: np.savez(path / "f.npz", z=arrays["z"][:-1]),
        ["f.npz", "--data", "features:data.npz"],
        (
            "f.npz has 79 rows, features:data.npz has 80 samples; row i must be sample i, in the"
            " order in which `assay data splits features:data.npz` lists them"
        ),
    ),
    "no such data": (
        changed(),
        ["f.npz", "--data", "features:nowhere.npz"],
        "there is no nowhere.npz",
    ),
    "no such protocol": (changed(), ["f.npz", "--protocol", "quik"], "did you mean"),
    "no such field": (
        changed(),
        ["f.npz", "--data", "glyphs", "--set", "fold=2"],
        "no field 'fold'",
    ),
    "a field of no data": (
        changed(),
        ["f.npz", "--set", "folds=2"],
        "--set changes how a data set is split, and no data set is given",
    ),
    "no such import": (
        changed(),
        ["f.npz", "--import", "mine.py"],
        "--import mine.py: there is no such file",
    ),
    "labels missing": (
        array_file,
        ["z.npy"],
        "z.npy holds no labels: give --labels Y.npy, or --data",
    ),
    "labels of an archive": (
        changed(),
        ["f.npz", "--labels", "y.npy"],
        "--labels y.npy: it goes with an .npy, which f.npz is not",
    ),
    "labels twice": (
        array_file,
        ["z.npy", "--labels", "y.npy", "--data", "features:data.npz"],
        "labels come from --data",
    ),
    "no labels file": (
        array_file,
        ["z.npy", "--labels", "n.npy"],
        "n.npy cannot be read as an .npy",
    ),
    "labels of another length": (
        lambda path, arrays: array_file(path, arrays, y=np.arange(3)),
        ["z.npy", "--labels", "y.npy"],
        "y.npy: y has shape (3,); z has 80 rows",
    ),
    "an archive called .npy": (
        lambda path, arrays: (
            save(path / "f.npz", arrays),
            (path / "f.npz").rename(path / "z.npy"),
        ),
        ["z.npy", "--data", "features:data.npz"],
        "z.npy cannot be read as an .npy of a plain array: it is an archive; call it .npz",
    ),
    "neither": (
        lambda path, arrays: (path / "f.txt").write_text("hello"),
        ["f.txt"],
        "f.txt is neither a file of embeddings",
    ),
    "a folder that is no run": (
        nothing,
        ["."],
        (
            ". is neither a file of embeddings (.npz or .npy), nor a model folder, nor a finished"
            " run of a store"
        ),
    ),
    "no folder for queries": (
        changed(),
        ["f.npz", "--per-query", "no/q.csv"],
        "--per-query no/q.csv: there is no folder no",
    ),
    "nothing of queries": (
        changed(),
        ["f.npz", "--metrics", "nmi", "--per-query", "q.csv"],
        "nmi is a metric of the whole",
    ),
}


@for_each("name", BAD)
def test_bad_input_is_one_line_that_names_it(assay, monkeypatch, tmp_path, arrays, data, name):
    make, words, message = BAD[name]
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(tmp_path / "data.npz", folder)
    monkeypatch.chdir(folder)
    make(folder, {name: array.copy() for name, array in arrays.items()})
    before = sorted(folder.rglob("*"))
    if "--per-query" not in words:
        words = [*words, "--per-query", "out.csv"]
    code, out, err = assay("evaluate", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


def test_own_metrics_can_be_imported(tmp_path, arrays):
    """In a process of its own, since what is registered stays."""
    save(tmp_path / "f.npz", arrays)
    (tmp_path / "mine.py").write_text(
        "from assay.metrics.metric import metric\n\n@metric('always_one')\ndef always_one(relevant,"
        " total):\n    return total.double() * 0 + 1\n"
    )
    command = [
        sys.executable,
        "-m",
        "assay",
        "evaluate",
        "f.npz",
        "--import",
        "mine.py",
        "--metrics",
        "always_one",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean"] == {"always_one": 1.0}


# --- around it ------------------------------------------------------------------------------------


def test_families_of_metrics_say_what_their_name_stands_for(assay):
    rows = {row["name"]: row for row in json.loads(assay("list", "metrics", "--json")[1])}
    assert rows["recall_at_k"]["numbers"] == "1, 2, 4, 8, 16, 32"
    assert rows["tar_at_far"]["numbers"] == "1e-2, 1e-3, 1e-4"
    assert rows["map_at_r"]["numbers"] == ""
    assert rows["nmi"]["from"] == "clusters"
    assert rows["map_at_r"]["about"].startswith("Mean average precision at R")


def test_long_work_reports_its_progress_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress.follow() as tell:
        for second in range(25):
            now[0] = float(second)
            tell("neighbours", second, 25)
    assert capsys.readouterr().err == "[10 s] neighbours: 10 of 25\n[20 s] neighbours: 20 of 25\n"


def test_someone_who_watches_gets_a_bar_for_each_stage(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80)
    )
    with progress.follow() as tell:
        tell("fold 0, neighbours", 1, 2)
        tell("fold 0, [k-means]", 5, 20)
        tell("fold 0, neighbours", 2, 2)
    assert "fold 0, neighbours" in screen.getvalue()
    assert "fold 0, [k-means]" in screen.getvalue()
    assert "25%" in screen.getvalue()
