"""Files that are damaged, lie about their size, or are no files: each is refused in one line that
names it and says what to do, with exit code 2, and nothing is left behind.
"""

import datetime
import gc
import json
import lzma
import os
import shutil
import struct
import sys
import tarfile
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from assay import fitters
from assay.data import load
from assay.engines import InlineEngine
from assay.errors import BadInput, reason_of
from assay.files import names_in, parse_json, read_bytes, read_lines
from assay.npz import read_npy, read_npz
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.study import Execution, run_bench
from assay.verify import verify
from miniature import CLASSES, IMAGES, MINI, bench_command, make_features, make_folder

Y = np.repeat(np.arange(16), 5)
Z = np.random.default_rng(0).normal(size=(len(Y), 6))


def npy(array):
    packed = BytesIO()
    np.save(packed, array)
    return packed.getvalue()


def header(shape, dtype="<f8"):
    packed = BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(packed, about)
    return packed.getvalue()


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def claim_size(path, name, size):
    """Let the directory of a zip claim another size of a member."""
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    while content[place + 46 : place + 46 + len(name)] != name.encode():
        place = content.index(b"PK\x01\x02", place + 1)
    content[place + 24 : place + 28] = struct.pack("<I", size)
    path.write_bytes(bytes(content))


def make_sparse(path):
    """Make a file that claims 1 TB and takes no room on the disk."""
    with path.open("wb") as stream:
        stream.truncate(10**12)


def png(width, height, more=b""):
    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    about = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**7))) if more else b""
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + text + pixels + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a folder with data and a finished store."""
    root = tmp_path_factory.mktemp("bad")
    make_folder(root / "images")
    data = f"features:{make_features(root / 'mini.npz')}"
    small = customise(protocols["quick"], MINI)
    run_bench(data, ["triplet"], small, root / "store", Execution(InlineEngine()))
    return root


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "made")


def refused(assay, *words):
    """Return the message of a command that is refused: exit code 2, one line, no number of the
    system.
    """
    code, _, err = assay(*words)
    assert code == 2, err
    assert "Traceback" not in err and err.count("\n") == 1 and "Errno" not in err, err
    return err


# --- arrays ---------------------------------------------------------------------------------------

ARRAYS = {
    "an .npy": (lambda path: path.write_bytes(npy(Z)), "it is an .npy, which holds one array"),
    "empty": (lambda path: path.write_bytes(b""), "File is not a zip file"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a huge header": (
        lambda path: write_zip(path, {"z.npy": header((10**9, 10**3)), "y.npy": npy(Y)}),
        "z has 0 bytes but claims 8,000,000,000,000, of shape (1000000000, 1000)",
    ),
    "a negative shape": (
        lambda path: write_zip(path, {"z.npy": header((-2, -2)) + bytes(32), "y.npy": npy(Y)}),
        "claims 32, of shape (-2, -2)",
    ),
    "a deep header": (
        lambda path: write_zip(
            path, {"z.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000}
        ),
        "cannot be read as an .npz",
    ),
    "a text": (
        lambda path: write_zip(path, {"z.npy": b"hello", "y.npy": npy(Y)}),
        "z is no plain array",
    ),
    "objects": (
        lambda path: np.savez(path, z=Z, y=np.array([{}] * len(Y)), allow_pickle=True),
        "y holds Python objects; save labels as text or integers",
    ),
    "a claim of 4 GB": (
        lambda path: (
            write_zip(path, {"z.npy": header((4, 4)) + bytes(128), "y.npy": npy(Y)}),
            claim_size(path, "z.npy", 2**32 - 2),
        ),
        "z unpacks to 4,294,967,294 bytes, over 100 times its size in the file",
    ),
    "1 TB of nothing": (make_sparse, "File is not a zip file"),
    "a surrogate": (
        lambda path: np.savez(path, z=Z, y=Y, pretrained_on=np.array("a\ud800")),
        "is not UTF-8",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_a_bad_npz_is_refused_from_its_header(assay, place, case):
    make, expected = ARRAYS[case]
    path = place / "f.npz"
    make(path)
    for words in (
        ["data", "show", f"features:{path}"],
        ["embed", "lite0", f"features:{path}", "--out", place / "out.npz"],
        *([] if case == "a surrogate" else [["evaluate", path]]),
    ):
        message = refused(assay, *words)
        assert expected in message and "f.npz" in message, message
    assert not (place / "out.npz").exists()


def test_arrays_larger_than_half_of_the_memory_are_refused_before_they_are_read(
    tmp_path, monkeypatch
):
    np.savez(tmp_path / "f.npz", z=Z, y=Y)
    np.save(tmp_path / "f.npy", Z)
    monkeypatch.setattr("assay.npz.memory", lambda: 4000)
    monkeypatch.setattr("numpy.lib.format.read_array", None)
    for read in (lambda: read_npz(tmp_path / "f.npz", ["z"]), lambda: read_npy(tmp_path / "f.npy")):
        with pytest.raises(ValueError, match="more than half of the 4,000 of this machine"):
            read()
    assert read_npy(tmp_path / "f.npy", mapped=True).shape == Z.shape  # it stays on the disk


@contextmanager
def eager_collector():
    """Collect garbage, and call Python from it, all the time, and switch threads as often."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def callback(phase, info):
        sum(range(20))

    gc.callbacks.append(callback)
    gc.set_threshold(3)
    sys.setswitchinterval(1e-7)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)


@pytest.mark.parametrize("mapped", [False, True])
def test_threads_read_arrays_at_the_same_time(tmp_path, mapped):
    """Python 3.11.7 cannot parse two literals at once, such as the headers of two arrays."""
    path = tmp_path / "z.npy"
    np.save(path, Z)
    with eager_collector(), ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: read_npy(path, mapped=mapped), range(400)))
    assert all(np.array_equal(array, Z) for array in read)


def test_an_npy_that_claims_more_than_it_has_is_refused(assay, place):
    (place / "z.npy").write_bytes(header((10**10, 100)) + b"x")
    np.save(place / "y.npy", Y)
    message = refused(assay, "evaluate", place / "z.npy", "--labels", place / "y.npy")
    assert "z.npy cannot be read as an .npy of a plain array: it has 1 bytes but claims" in message
    message = refused(assay, "evaluate", place / "y.npy", "--labels", place / "none.npy")
    assert "none.npy cannot be read" in message and "No such file" in message


# --- tables and lists -----------------------------------------------------------------------------


def table_rows():
    return [
        (f"class{number:02}/{image}.png", f"c{number}")
        for number in range(CLASSES - 1)
        for image in range(IMAGES)
    ]


def write_csv(path, *more):
    lines = ["path,label", *(",".join(row) for row in table_rows()), *more]
    path.write_text("\n".join(lines) + "\n")


CSV = {
    "1 TB of nothing": (make_sparse, "line 1 has over 10,000,000 characters"),
    "a long cell": (lambda path: write_csv(path, "a.png," + "x" * 200_000), "field larger than"),
    "a long name": (lambda path: write_csv(path, "x" * 300 + "/a.png,c1"), "1 of 65 files are not"),
    "many folders": (lambda path: write_csv(path, "x/" * 3000 + "a.png,c1"), "1 of 65 files are"),
    "a folder": (lambda path: path.mkdir(), "must be a .csv or .parquet file"),
    "NUL": (lambda path: write_csv(path, "a\0b.png,c1"), "has a path that cannot be read here"),
}


@pytest.mark.parametrize("case", CSV)
def test_a_bad_csv_is_refused(assay, place, case):
    make, expected = CSV[case]
    path = place / "images" / "t.csv"
    make(path)
    message = refused(assay, "data", "splits", f"table:{path}")
    assert expected in message and "t.csv" in message, message


def parquet(path, **columns):
    import pyarrow
    import pyarrow.parquet

    paths, labels = zip(*table_rows(), strict=True)
    table = pyarrow.table({"path": list(paths), "label": list(labels), **columns})
    pyarrow.parquet.write_table(table, path)


def of_type(kind, *values):
    import pyarrow

    count = len(table_rows())
    return pyarrow.array([values[row % len(values)] for row in range(count)], kind)


def broken_text():
    import pyarrow

    values = of_type(pyarrow.binary(), b"\xff\xfe1", b"\xff\xfe2")
    return pyarrow.Array.from_buffers(pyarrow.string(), len(values), values.buffers())


def timestamps(unit, zone, *values):
    import pyarrow

    return of_type(pyarrow.int64(), *values).cast(pyarrow.timestamp(unit, zone))


PARQUET = {
    "broken text": (lambda: {"label": broken_text()}, "column label (string)", "not UTF-8"),
    "a time zone": (
        lambda: {"when": timestamps("ms", "Mars/Base", 10**12)},
        "column when (timestamp[ms, tz=Mars/Base])",
        "",
    ),
    "a date too far": (
        lambda: {"when": timestamps("us", None, 2**61)},
        "column when (timestamp[us])",
        "",
    ),
}


@pytest.mark.parametrize("case", PARQUET)
def test_a_column_of_parquet_that_is_no_text_is_named_with_its_type(assay, place, case):
    columns, named, reason = PARQUET[case]
    path = place / "images" / "t.parquet"
    parquet(path, **columns())
    message = refused(assay, "data", "splits", f"table:{path}")
    assert named in message and reason in message and "Save it as text" in message, message


def test_dates_of_parquet_are_labels(place):
    import pyarrow

    dates = [datetime.date(2020, 1, 1 + row) for row in range(CLASSES)]
    parquet(place / "images" / "t.parquet", label=of_type(pyarrow.date32(), *dates))
    assert load(f"table:{place / 'images' / 't.parquet'}").class_names[0] == "2020-01-01"


def test_a_parquet_that_claims_too_many_rows_is_refused_before_they_are_read(
    assay, place, monkeypatch
):
    path = place / "images" / "t.parquet"
    parquet(path)
    monkeypatch.setattr("assay.data.sources.table.MOST_ROWS", 10)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", None)
    assert "it has 64 rows, over 10" in refused(assay, "data", "splits", f"table:{path}")


# --- images and archives --------------------------------------------------------------------------

IMAGES_MADE = {
    "40,000 x 40,000": (lambda path: path.write_bytes(png(40_000, 40_000)), "enormous image"),
    "2^31 x 2^31": (lambda path: path.write_bytes(png(2**31 - 1, 2**31 - 1)), "enormous image"),
    "a text of 10 MB": (lambda path: path.write_bytes(png(16, 16, b"text")), "too large"),
    "1 TB of nothing": (make_sparse, "it has 1,000,000,000,000 bytes, more than"),
}


@pytest.mark.parametrize("case", IMAGES_MADE)
def test_a_bomb_in_place_of_an_image_is_refused_from_its_header(assay, place, case):
    make, expected = IMAGES_MADE[case]
    make(place / "images" / "class00" / "0.png")
    message = refused(assay, "data", "splits", f"folder:{place / 'images'}")
    assert expected in message and "class00/0.png" in message and "remove it" in message, message


def bomb(path, size, mode):
    """Write a tar with one member that claims `size` bytes, and has 200 kB of zeros."""
    about = tarfile.TarInfo("CUB_200_2011/images.txt")
    about.size = size
    content = about.tobuf() + bytes(200_000)
    path.write_bytes(lzma.compress(content) if mode == "xz" else zlib_gzip(content))


def zlib_gzip(content):
    packer = zlib.compressobj(wbits=31)
    return packer.compress(content) + packer.flush()


def long_name(path):
    about = tarfile.TarInfo("././@LongLink")
    about.type, about.size = tarfile.GNUTYPE_LONGNAME, 3 * 10**9
    path.write_bytes(zlib_gzip(about.tobuf() + bytes(10**6)))


def zip_bomb(path):
    write_zip(path, {"CUB_200_2011/images.txt": bytes(10**5)})
    claim_size(path, "CUB_200_2011/images.txt", 2**32 - 2)


ARCHIVES = {
    "tgz of 1 PB": ("tgz", lambda path: bomb(path, 10**15, "gz"), "claims to hold 1,000,000.0 GB"),
    "tgz of 3 GB": ("tgz", lambda path: bomb(path, 3 * 10**9, "gz"), "claims to hold 3.0 GB"),
    "xz of 3 GB": ("tar.xz", lambda path: bomb(path, 3 * 10**9, "xz"), "claims to hold 3.0 GB"),
    "a name of 3 GB": ("tgz", long_name, "it has a name of 3,000,000,000 bytes"),
    "zip of 4 GB": ("zip", zip_bomb, "claims to hold 4.3 GB"),
    "no tar": ("tgz", lambda path: path.write_bytes(b"hello" * 1000), "could not be opened"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_an_archive_that_would_fill_the_disk_is_refused_before_it_is_unpacked(assay, place, case):
    ending, make, expected = ARCHIVES[case]
    path = place / f"CUB_200_2011.{ending}"
    make(path)
    message = refused(assay, "data", "show", f"cub:{path}")
    assert expected in message and path.name in message, message
    assert not names_in(Path(os.environ["ASSAY_CACHE"]) / "unpacked")


def test_what_follows_the_end_of_a_tar_is_not_read_without_end(assay, place, monkeypatch):
    monkeypatch.setattr("assay.data.sources.archives.MOST_AFTER_END", 10**6)
    path = place / "CUB_200_2011.tgz"
    about = tarfile.TarInfo("CUB_200_2011/images.txt")
    path.write_bytes(zlib_gzip(about.tobuf() + bytes(5 * 10**6)))
    assert "over 1,000,000 bytes follow its end" in refused(assay, "data", "show", f"cub:{path}")


# --- models ---------------------------------------------------------------------------------------


def with_fields(**fields):
    def edit(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


CARDS = {
    "1 TB of nothing": (make_sparse, "it has 1,000,000,000,000 bytes"),
    "too many levels": (lambda path: path.write_text("[" * 100_000), "is no JSON"),
    "a surrogate": (with_fields(data="\ud800"), "is no JSON"),
    "NaN": (with_fields(fold=float("nan")), "is no JSON"),
    "a list": (lambda path: path.write_text("[1]"), "is no JSON object"),
    "a number of 5,000 digits": (lambda path: path.write_text("9" * 5000), "is no JSON"),
    "a fold that is a text": (with_fields(fold="0"), "fold is '0', not a whole number"),
    "a fold that is not there": (with_fields(fold=99), "fold 99 of 2 folds is none"),
    "negative folds": (with_fields(folds=-4), "of -4 folds is none"),
    "folds without end": (with_fields(folds=10**9), "of 1000000000 folds is none"),
    "classes that are a number": (with_fields(classes=4), "classes is no JSON array"),
    "classes that are lists": (with_fields(classes=[["a"]]), "classes[0] is ['a'], not a text"),
    "a run that is a list": (with_fields(run=["x"]), "run is ['x'], not a text"),
}


def model_in(place):
    return next(path.parent for path in (place / "store").glob("models/*triplet*/model.json"))


@pytest.mark.parametrize("case", CARDS)
def test_a_damaged_card_of_a_model_is_named_with_the_field(assay, place, case):
    make, expected = CARDS[case]
    model = model_in(place)
    make(model / "model.json")
    data = f"features:{place / 'mini.npz'}"
    for words in (
        ["evaluate", model, "--data", data],
        ["embed", model, data, "--out", place / "out.npz"],
    ):
        message = refused(assay, *words)
        assert expected in message and "model.json" in message, message
        assert "make the model again in another folder" in message, message
    assert not (place / "out.npz").exists()


def with_architecture(**fields):
    def edit(path):
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        about = json.loads(content[8:end])
        architecture = json.loads(about["__metadata__"]["architecture"]) | fields
        about["__metadata__"]["architecture"] = json.dumps(architecture)
        packed = json.dumps(about).encode()
        path.write_bytes(struct.pack("<Q", len(packed)) + packed + content[end:])

    return edit


WEIGHTS = {
    "empty": (lambda path: path.write_bytes(b""), "header too small"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "cannot be read as"),
    "missing": (Path.unlink, "No such file or directory"),
    "a huge head": (with_architecture(dim=10**8), "its head has 8 dimensions, not 100000000"),
    "a huge side": (with_architecture(size=10**6), "no model has the architecture"),
    "a negative side": (with_architecture(size=-4), "no model has the architecture"),
    "a word for a width": (with_architecture(dim="8"), "dim is '8', not a whole number"),
    "an unknown similarity": (with_architecture(similarity="x"), "similarity is 'x', not one of"),
    "parts of another width": (
        with_architecture(parts=[3, 4]),
        "its head has 8 dimensions, its parts have 7",
    ),
    "an empty part": (with_architecture(parts=[8, 0]), "have at least one number each, got (8, 0)"),
    "parts that are a number": (with_architecture(parts=8), "parts is no JSON array"),
    "a part that is a fraction": (with_architecture(parts=[3.5, 4.5]), "parts[0] is 3.5, not a"),
    "a weight too few": (
        with_architecture(parts=[3, 5], part_weights=[1.0]),
        "as many weights above 0, got (1.0,)",
    ),
    "a negative weight": (
        with_architecture(parts=[3, 5], part_weights=[1.0, -1.0]),
        "above 0, got (1.0, -1.0)",
    ),
    "a dropout of all": (with_architecture(dropout=1.0), "below 1, got 1.0"),
    "a bias that the head does not have": (with_architecture(bias=False), "head.bias"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_damaged_weights_of_a_model_are_refused_before_the_model_is_made(assay, place, case):
    make, expected = WEIGHTS[case]
    model = model_in(place)
    make(model / "model.safetensors")
    message = refused(assay, "evaluate", model, "--data", f"features:{place / 'mini.npz'}")
    assert expected in message and "model.safetensors" in message, message


# --- stores ---------------------------------------------------------------------------------------

TIMES = {
    "no JSON": lambda path: path.write_text("hello"),
    "too many levels": lambda path: path.write_text("[" * 100_000),
    "1 TB of nothing": make_sparse,
    "infinite": with_fields(seconds="inf", seconds_left="inf"),
    "not a number": with_fields(seconds="nan", seconds_left="nan"),
    "negative": with_fields(seconds=-5.0, seconds_left=-5.0),
    "beyond floats": with_fields(seconds=10**400, at=10**400),
    "surrogates": with_fields(host="\ud800", studies="\ud800"),
    "no workers": with_fields(workers=0, seconds="x"),
}


def unfinished(store):
    """Take the last lines from the study's ledger, so that the time left must be estimated."""
    ledger = next(store.glob("studies/*/ledger.jsonl"))
    lines = ledger.read_bytes().splitlines(keepends=True)
    if len(lines) > 3:
        ledger.write_bytes(b"".join(lines[:3]))


def test_damaged_times_stop_no_command_and_decide_nothing(assay, place):
    store = place / "store"
    before = [finding.problem for finding in verify(Store(store))]
    times = [*store.glob("runs/*/*/timing.json"), store / "progress.json"]
    sound = {path: path.read_bytes() for path in times}
    unfinished(store)
    broken = [finding.problem for finding in verify(Store(store))]
    assert any(broken) != any(before)
    for case, damage in TIMES.items():
        for path, content in sound.items():
            path.write_bytes(content)
            damage(path)
        for words in (["status", store], ["status", store, "--json"]):
            code, out, err = assay(*words)
            assert (code, err) == (0, ""), (case, err)
            assert "about" not in out, (case, out)
        assert json.loads(out)["seconds_left"] is None, case
    assert [finding.problem for finding in verify(Store(store))] == broken
    assert assay("report", store)[0] == 0


LEDGERS = {
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "too many levels": lambda path: path.write_text("[" * 100_000 + "\n"),
    "1 TB of nothing": make_sparse,
}


@pytest.mark.parametrize("case", LEDGERS)
def test_a_ledger_that_cannot_be_read_is_told_and_merges_nothing(assay, place, case):
    ledger = next((place / "store").glob("studies/*/ledger.jsonl"))
    LEDGERS[case](ledger)
    code, out, _ = assay("status", place / "store", "--json")
    assert code == 0 and "ledger.jsonl" in out
    assert "ledger.jsonl" in refused(assay, "merge", place / "store", "--out", place / "both")
    assert not (place / "both").exists()
    assert any("ledger.jsonl" in finding.problem for finding in verify(Store(place / "store")))


def test_a_refused_merge_leaves_a_store_that_was_there(assay, place):
    shutil.copytree(place / "store", place / "both")
    os.mkfifo(place / "store" / "runs" / "pipe")
    message = refused(assay, "merge", place / "store", "--out", place / "both")
    assert "runs/pipe cannot be merged: it is a pipe" in message
    assert Store(place / "both").studies() == Store(place / "store").studies()


def test_no_remedy_sends_a_store_to_the_path_of_a_file(assay, place):
    message = refused(assay, "status", place / "mini.npz")
    assert "mini.npz is not a run store" in message and "assay bench --out" not in message
    assert f"`assay bench --out {place / 'none'}` makes one" in refused(
        assay, "status", place / "none"
    )


# --- paths ----------------------------------------------------------------------------------------


def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_done(assay, place):
    broken = os.fsdecode(os.fsencode(place) + b"/\xff")
    data = f"features:{place / 'mini.npz'}"
    for words in (
        ["data", "show", f"features:{broken}.npz"],
        ["embed", model_in(place), data, "--out", f"{broken}.npz"],
        ["train", "--data", data, "--method", "triplet", "--out", broken],
        ["status", broken],
    ):
        message = refused(assay, *words)
        assert "\\udcff" in message and "is not UTF-8; rename" in message
    assert not Path(broken).exists()


def test_data_in_a_folder_whose_name_is_not_utf_8_are_refused(place, monkeypatch):
    folder = os.fsdecode(os.fsencode(place) + b"/\xff")
    (place / "images").rename(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(BadInput, match="is not UTF-8; write it in UTF-8"):
        load("folder:.")


@pytest.mark.parametrize("where", ["cwd", "link", "ASSAY_CACHE", "ASSAY_LOOKS", "HOME"])
def test_a_bench_in_a_folder_whose_name_is_not_utf_8_is_refused_before_its_first_run(
    assay, place, monkeypatch, where
):
    """The index of looks names the store by its whole path."""
    folder = Path(os.fsdecode(os.fsencode(place) + b"/\xff"))
    folder.mkdir()
    out = Path("st") if where == "cwd" else place / "st"
    if where == "cwd":
        monkeypatch.chdir(folder)
    elif where == "link":
        out = place / "link" / "st"
        (place / "link").symlink_to(folder)
    else:
        for name in ("ASSAY_CACHE", "ASSAY_LOOKS", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(where, str(folder))
    bench = bench_command(f"features:{place / 'mini.npz'}", out, "triplet")
    message = refused(assay, *bench[3:])
    assert "\\udcff" in message and "is not UTF-8; rename" in message
    assert not out.exists()


def test_a_message_is_one_line_whatever_the_names_in_it_are(assay, place):
    (place / "images" / "class00" / "0.png").rename(place / "images" / "class00" / "a\n\x1b[1m.png")
    (place / "images" / "class00" / "a\n\x1b[1m.png").write_bytes(b"hello")
    message = refused(assay, "data", "splits", f"folder:{place / 'images'}")
    assert "a\\n\\x1b[1m.png cannot be read as an image" in message


def test_a_folder_that_may_not_be_read_is_not_called_empty(assay, place, monkeypatch):
    allowed = Path.iterdir

    def refuse(self):
        if self.name in ("images", "studies"):
            raise PermissionError(13, "Permission denied", str(self))
        return allowed(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    for words in (
        ["data", "show", f"folder:{place / 'images'}"],
        ["embed", "lite0", place / "images", "--out", place / "o.npz"],
        ["status", place / "store"],
    ):
        assert "Permission denied; change its permissions" in refused(assay, *words)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: None])
def test_an_output_that_cannot_be_written_is_bad_input(assay, place, make):
    out = place / "q.csv"
    make(out)
    if not out.exists():
        out = place / "mini.npz" / "q.csv"
    assert "q.csv" in refused(assay, "evaluate", place / "mini.npz", "--per-query", out)


# --- the readers ----------------------------------------------------------------------------------


def test_a_file_is_measured_before_it_is_read(tmp_path):
    make_sparse(tmp_path / "large")
    with pytest.raises(OSError, match="it has 1,000,000,000,000 bytes, more than 1,073,741,824"):
        read_bytes(tmp_path / "large")
    with pytest.raises(ValueError, match="line 1 has over"):
        list(read_lines(tmp_path / "large"))


def test_json_that_could_not_be_written_again_is_refused():
    for text in ("NaN", "[Infinity]", '"\\ud800"', '"\\uDFFF"', "[" * 10_000, "x", '{"a": 1,}'):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text.encode())
    assert parse_json(b'["\\ud83d\\ude00", "\\\\ud800", 1e300]') == ["\U0001f600", "\\ud800", 1e300]


def test_reasons_are_one_line_without_numbers_of_the_system():
    assert reason_of(IsADirectoryError(21, "Is a directory", "x")) == "Is a directory"
    assert reason_of(ValueError("a\n  b")) == "a b"
    assert reason_of(MemoryError()) == "MemoryError"


# --- PCA ------------------------------------------------------------------------------------------


@pytest.fixture
def products(monkeypatch):
    """Return the sizes of the matrices whose eigenvectors are computed."""
    sizes, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(
        "torch.linalg.eigh", lambda matrix: sizes.append(len(matrix)) or eigh(matrix)
    )
    monkeypatch.setattr(fitters, "SQUARE", 0)
    return sizes


def fitted_pca(features, width):
    return fitters.pca(features, torch.zeros(len(features), dtype=torch.long), width)


def test_pca_of_wide_features_is_that_of_their_covariances(products, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn(20, 150, generator=draw) * torch.logspace(0, -2, 150) + 3
    narrow = fitted_pca(wide, 19)
    again = fitted_pca(wide, 19)
    monkeypatch.setattr(fitters, "SQUARE", 150)
    usual = fitted_pca(wide, 19)
    assert products == [20, 20, 150]
    assert torch.equal(narrow.weight, again.weight) and torch.equal(narrow.bias, again.bias)
    torch.testing.assert_close(narrow.weight, usual.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(narrow.bias, usual.bias, rtol=0, atol=1e-5)


def test_pca_of_wide_features_with_twins_has_directions_of_length_one(products):
    half = torch.randn(6, 80, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        weight = fitted_pca(torch.cat([half, half]), 11).weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(11), rtol=0, atol=1e-5)
    assert products == [12]


def test_pca_of_100_000_features_takes_no_square_of_them(products):
    layer = fitted_pca(torch.randn(6, 100_000), 5)
    assert products == [6] and layer.weight.shape == (5, 100_000)
