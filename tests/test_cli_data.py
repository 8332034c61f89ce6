"""`assay data`: commands on miniature folders with every kind of problem planted in them."""

import csv
import json
import re
import shutil
from collections import namedtuple
from io import StringIO

import numpy as np
import pytest
from PIL import Image

from assay.cli import progress
from assay.cli.data import _bytes
from assay.data import load, splits
from assay.data import packs as packing
from assay.data.packs import place_pack, read_pack
from assay.data.partial_pack import PartialPack
from assay.data.seal import read_test
from assay.errors import BadInput
from assay.protocols import FirstStep, protocols
from assay.records.ledger import SealError
from loops import for_each
from miniature import CLASSES, SIDE
from sealed import receipt


@pytest.fixture
def damaged(mini_folder):
    """Plant every kind of problem in the miniature folder."""
    for number in range(12):
        (mini_folder / "class03" / f"broken{number:02}.png").write_bytes(b"no image")
    shutil.copy(mini_folder / "class00/0.png", mini_folder / "class00/again.png")
    shutil.copy(mini_folder / "class01/0.png", mini_folder / "class02/noise.png")
    shutil.copy(mini_folder / "class04/0.png", mini_folder / "class12/leak.png")
    Image.new("RGB", (300, 40), "red").save(mini_folder / "class05" / "long.png")
    (mini_folder / "class05" / "notes.txt").write_text("a note")
    return mini_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return a cache without packs."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def packs(cache):
    return (
        sorted(path.name for path in (cache / "packs").glob("*"))
        if (cache / "packs").exists()
        else []
    )


# --- show -----------------------------------------------------------------------------------------


def test_show_names_problems_and_what_they_mean(assay, damaged):
    code, out, err = assay("data", "show", f"folder:{damaged}")
    assert (code, err) == (0, "")
    assert (
        "LEAK: 1 image in both trainval and test\n    models are trained on what they are tested"
        " with" in out
    )
    assert "class04/0.png = class12/leak.png\n" in out
    assert "2 images with more than one label" in out
    assert "class01/0.png = class02/noise.png\n" in out
    assert "1 image more than once in a class" in out
    assert "class00/0.png = class00/again.png\n" in out
    assert "1 image more than 5 times as long as wide" in out
    assert "class05/long.png (300 x 40)\n" in out
    assert "images with a short side below 32 pixels" in out
    assert "1 class with one sample" in out
    assert "1 file left out, no image that can be read: .txt" in out
    assert f"most often {SIDE} x {SIDE}" in out


def test_show_names_the_first_ten_of_many(assay, damaged):
    _, out, _ = assay("data", "show", f"folder:{damaged}")
    assert (
        "12 files that cannot be read\n    no bench starts before they are fixed or removed\n"
        in out
    )
    assert out.count("cannot be read as an image (not a format it knows)") == 10
    assert "      and 2 more, which --json lists\n" in out


def test_json_of_show_is_complete(assay, damaged):
    code, out, _ = assay("data", "show", f"folder:{damaged}", "--json")
    facts = json.loads(out)
    problems = facts["problems"]
    assert code == 0
    assert (facts["name"], facts["modality"], facts["classes"], facts["samples"]) == (
        "folder:mini",
        "photo",
        CLASSES,
        65 + 16,
    )
    assert [one["sample"] for one in problems["unreadable"]] == [
        f"class03/broken{number:02}.png" for number in range(12)
    ]
    assert problems["leaks"] == [
        {"samples": ["class04/0.png", "class12/leak.png"], "classes": ["class04", "class12"]}
    ]
    assert len(problems["ambiguous"]) == 2
    assert [copies["samples"] for copies in problems["repeats"]] == [
        ["class00/0.png", "class00/again.png"]
    ]
    assert len(problems["tiny"]) == 68
    assert problems["single"] == ["class16"]
    assert facts["samples_per_class"]["most"] == 16
    assert sum(bar["classes"] for bar in facts["histogram"]) == CLASSES
    assert facts["sizes"]["largest"] == {"width": 300, "height": 40, "images": 1}
    assert facts["no_splits"] is None


def test_show_gives_the_fingerprints_that_a_bench_goes_by(assay, mini_folder, tmp_path):
    _, out, _ = assay("data", "show", f"folder:{mini_folder}", "--json")
    trainval, test = splits.of(load(f"folder:{mini_folder}"), protocols["quick"])
    opened = test.open(receipt(tmp_path / "study", trainval.fingerprint))
    both = {"trainval": trainval.fingerprint, "test": opened.fingerprint}
    assert json.loads(out)["fingerprints"] == both
    _, out, _ = assay("data", "show", f"folder:{mini_folder}")
    assert all(fingerprint in out for fingerprint in both.values())
    assert "halves are by class order" in out


def test_show_of_data_too_small_to_split_prints_the_survey_and_then_the_reason(assay, tmp_path):
    for number in range(8):
        (tmp_path / "few" / f"c{number}").mkdir(parents=True)
        for image in range(3):
            Image.new("RGB", (40, 40), (number, image, 0)).save(
                tmp_path / "few" / f"c{number}" / f"{image}.png"
            )
    code, out, err = assay("data", "show", f"folder:{tmp_path / 'few'}")
    assert code == 2
    assert err == (
        "assay: folder:few has 8 classes; two halves with 4 folds need at least 16; add classes\n"
    )
    assert "samples per class" in out
    assert "none found" in out
    assert "none can be made" in out
    code, out, err = assay("data", "show", f"folder:{tmp_path / 'few'}", "--json")
    facts = json.loads(out)
    assert (code, err.count("\n")) == (2, 1)
    assert facts["no_splits"].startswith("folder:few has 8 classes")
    assert (facts["parts"], facts["fingerprints"], facts["samples"]) == ([], None, 24)


def test_show_follows_the_settings_of_the_protocol(assay, mini_features):
    _, out, _ = assay("data", "show", f"features:{mini_features}", "--set", "folds=2", "--json")
    assert [part["part"] for part in json.loads(out)["parts"]] == ["fold 0", "fold 1", "test"]
    assert json.loads(out)["protocol"].startswith("quick.v2+custom-")
    code, _, err = assay("data", "show", f"features:{mini_features}", "--protocol", "quik")
    assert (code, err.count("\n")) == (2, 1)


def test_show_of_vectors_and_of_glyphs(assay, mini_features):
    code, out, _ = assay("data", "show", f"features:{mini_features}")
    assert code == 0
    assert "vectors of 12 numbers" in out
    assert "image sizes" not in out
    code, out, _ = assay("data", "show", "glyphs")
    assert code == 0
    assert "drawings in grey" in out
    assert "all 28 x 28" in out


def test_names_cannot_command_the_terminal(assay, tmp_path):
    names = np.array([f"class \x1b[31m{number:02}\n" for number in range(16)])
    np.savez(tmp_path / "odd.npz", z=np.ones((48, 2)), y=np.repeat(np.arange(16), 3), classes=names)
    code, out, _ = assay("data", "show", f"features:{tmp_path / 'odd.npz'}")
    assert code == 0
    assert "\x1b" not in out
    assert "class \\x1b[31m00\\n" in out


def test_long_names_are_cut_in_the_table_only(assay, mini_folder):
    name = "class16_" + "Geococcyx_californianus" * 5
    (mini_folder / "class16").rename(mini_folder / name)
    _, out, _ = assay("data", "show", f"folder:{mini_folder}")
    assert f" {name[:37]}...\n" in out.replace(" \n", "\n")
    assert f"      {name}\n" in out


def table(folder):
    """Write a CSV in which every other sample of the test half is a query, the others gallery."""
    lines = ["path,label,split,query,gallery,bird"]
    for path in sorted(folder.rglob("*.png")):
        number = int(path.parent.name[5:])
        role = "0,0" if number < 8 else "1,0" if int(path.stem) % 2 else "0,1"
        half, further = "train" if number < 8 else "test", "ab"[number % 2]
        lines.append(f"{path},{path.parent.name},{half},{role},{further}")
    (folder.parent / "table.csv").write_text("\n".join(lines))
    return f"table:{folder.parent / 'table.csv'}"


def test_roles_metadata_and_official_halves_are_shown(assay, mini_folder):
    name = table(mini_folder)
    code, out, _ = assay("data", "show", name)
    assert code == 0
    assert "16 queries, 17 in the gallery, 0 both" in out
    assert "bird (2 different)" in out
    assert "halves are the data set's own" in out
    _, out, _ = assay("data", "show", name, "--json")
    facts = json.loads(out)
    assert facts["roles"] == {
        "queries": 16,
        "gallery": 17,
        "both": 0,
        "neither": 0,
        "unanswerable": 0,
    }
    assert (facts["official_halves"], facts["metadata"]) == (True, {"bird": 2})


def test_splits_carry_the_marks_of_the_data_set(assay, mini_folder):
    code, out, _ = assay("data", "splits", table(mini_folder))
    header, *rows = csv.reader(StringIO(out))
    assert code == 0
    assert header == ["sample", "class", "part", "query", "gallery"]
    assert len(rows) == 65
    assert {tuple(row[3:]) for row in rows if row[2] != "test"} == {("0", "0")}
    assert sum(row[3] == "1" for row in rows) == 16


def test_splits_of_damaged_data_are_refused_with_one_line(assay, damaged):
    code, out, err = assay("data", "splits", f"folder:{damaged}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "12 such samples" in err


def test_progress_goes_to_stderr(assay, mini_folder, cache, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    code, out, err = assay("data", "show", f"folder:{mini_folder}", "--json")
    assert code == 0
    assert json.loads(out)["samples"] == 65
    assert "checking images: 65 of 65" in err
    code, _, err = assay("data", "prepare", f"folder:{mini_folder}")
    assert "trainval: packing images: 32 of 32" in err
    assert "test: packing images: 33 of 33" in err


# --- the contact sheet ----------------------------------------------------------------------------


def test_show_draws_a_sheet(assay, damaged, tmp_path):
    code, out, _ = assay("data", "show", f"folder:{damaged}", "--sheet", tmp_path / "sheet.png")
    assert code == 0
    assert f"contact sheet: {tmp_path / 'sheet.png'}\n" in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert (sheet.width, sheet.height) == (1220, 1539)
        assert np.asarray(sheet).std() > 20
    _, out, _ = assay(
        "data", "show", f"folder:{damaged}", "--sheet", tmp_path / "again.png", "--json"
    )
    assert json.loads(out)["sheet"] == str(tmp_path / "again.png")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("notes.txt", "a contact sheet is a .png file, for example --sheet notes.png"),
        ("folder.png", "a contact sheet is a .png file"),
        ("nowhere/sheet.png", "there is no folder"),
    ],
)
def test_a_sheet_is_not_put_where_it_does_not_belong(assay, mini_folder, tmp_path, place, message):
    (tmp_path / "notes.txt").write_text("dear")
    (tmp_path / "folder.png").mkdir()
    code, out, err = assay("data", "show", f"folder:{mini_folder}", "--sheet", tmp_path / place)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert (tmp_path / "notes.txt").read_text() == "dear"


def test_a_sheet_of_vectors_is_refused(assay, mini_features, tmp_path):
    code, out, err = assay(
        "data", "show", f"features:{mini_features}", "--sheet", tmp_path / "sheet.png"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "features:mini.npz holds vectors" in err
    assert not (tmp_path / "sheet.png").exists()


# --- prepare --------------------------------------------------------------------------------------


def test_prepare_prints_the_size_and_packs_both_halves_once(assay, mini_folder, cache):
    code, out, err = assay("data", "prepare", f"folder:{mini_folder}")
    assert (code, err) == (0, "")
    assert (
        "folder:mini under quick.v2: 65 images, central square scaled to 48 x 48 pixels, kept as"
        " pixels\n" in out
    )
    assert re.search(
        rf"^449 kB in {cache}/packs, where [0-9.]+ [GTM]B are free$", out, re.MULTILINE
    )
    assert out.endswith("packed both halves\n")
    assert len(packs(cache)) == 2
    assert sum(file.stat().st_size for file in cache.glob("packs/*/pixels.bin")) == 65 * 48 * 48 * 3
    code, out, _ = assay("data", "prepare", f"folder:{mini_folder}")
    assert code == 0
    assert out.endswith("nothing left to do: both halves are packed already\n")
    assert len(packs(cache)) == 2


def test_a_bench_finds_what_was_prepared(assay, mini_folder, cache, tmp_path):
    assay("data", "prepare", f"folder:{mini_folder}", "--set", "size=16")
    before = packs(cache)
    dataset = load(f"folder:{mini_folder}")
    trainval, test = splits.of(dataset, protocols["quick"])
    step = FirstStep("square", 16)
    assert test.pack(step) is None  # nothing comes back through the seal
    opened = test.open(receipt(tmp_path / "study", trainval.fingerprint))
    assert (read_pack(place_pack(trainval, step)).y == trainval.y).all()
    packed = place_pack(opened, step)
    assert packs(cache) == before
    with pytest.raises(SealError, match="holds a test half"):
        read_pack(packed)
    proof = receipt(tmp_path / "study", trainval.fingerprint)
    assert (read_test(packed, proof, trainval.fingerprint).y == opened.y).all()


def test_prepare_resumes_after_an_interruption(assay, mini_folder, cache, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 5)
    real, calls = PartialPack.append, []

    def interrupted(self, chunk, form):
        calls.append(len(chunk))
        if len(calls) == 4:
            raise KeyboardInterrupt
        real(self, chunk, form)

    monkeypatch.setattr(PartialPack, "append", interrupted)
    code, _, err = assay("data", "prepare", f"folder:{mini_folder}")
    assert code == 130
    assert "run the same command again to continue" in err
    code, out, _ = assay("data", "prepare", f"folder:{mini_folder}")
    assert code == 0
    assert out.endswith("packed both halves\n")
    assert (
        sum(calls) == 65 + 5
    )  # the chunk that was interrupted, and none of those before it, a second time
    assert len(packs(cache)) == 2


def test_prepare_keeps_within_a_limit(assay, mini_folder, cache):
    code, out, err = assay("data", "prepare", f"folder:{mini_folder}", "--limit", "0.4MB")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        "folder:mini needs 449 kB, above --limit 400 kB; keep them as JPEG with --jpeg (about a"
        " fifth), or" in err
    )
    assert "--set size=... (now 48)" in err
    assert packs(cache) == []
    code, out, _ = assay("data", "prepare", f"folder:{mini_folder}", "--limit", "0.4MB", "--jpeg")
    assert code == 0
    assert "kept as JPEG" in out
    assert f"about 89.9 kB in {cache}/packs" in out
    assert all("-jpeg-" in name for name in packs(cache))
    code, _, err = assay(
        "data",
        "prepare",
        f"folder:{mini_folder}",
        "--limit",
        "10kB",
        "--jpeg",
        "--set",
        "stored=56",
    )
    assert code == 2
    assert "--jpeg" not in err
    assert "--set stored=... (now 56)" in err
    assert assay("data", "prepare", f"folder:{mini_folder}", "--limit", "1 GB")[0] == 0


def test_a_full_disk_is_reported_before_anything_is_packed(assay, mini_folder, cache, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    code, out, err = assay("data", "prepare", f"folder:{mini_folder}")
    assert code == 2
    assert "where 1 kB are free" in out
    assert "ASSAY_CACHE" in err
    assert err.count("\n") == 1
    assert not list(cache.glob("packs/*/pixels.bin"))


@for_each(
    ("text", "bytes_"),
    [("10GB", 10**10), ("1.5 mb", 1_500_000), ("200", 200), ("3k", 3000), ("1TB", 10**12)],
)
def test_sizes_are_read_as_people_write_them(text, bytes_):
    assert _bytes(text) == bytes_


@for_each("text", ["", "GB", "ten", "-1GB", "1e9", "10 giga"])
def test_text_that_is_no_size_is_refused(text):
    with pytest.raises(BadInput, match="write a size such as 500MB or 10GB"):
        _bytes(text)


def test_prepare_of_a_frozen_trunk_has_nothing_to_do(assay, mini_folder):
    code, out, _ = assay("data", "prepare", f"folder:{mini_folder}", "--set", "trunk=lite0")
    assert code == 0
    assert "keeps the trunk lite0 frozen" in out
    assert "at the first bench" in out
    assert "packed" not in out


def test_prepare_of_vectors(assay, mini_features, cache):
    code, out, _ = assay("data", "prepare", f"features:{mini_features}")
    assert code == 0
    assert "80 vectors" in out
    assert out.endswith("packed both halves\n")
    assert assay("data", "prepare", f"features:{mini_features}")[1].endswith(
        "nothing left to do: both halves are packed already\n"
    )
    code, _, err = assay("data", "prepare", f"features:{mini_features}", "--jpeg")
    assert code == 2
    assert "leave out --jpeg" in err
    code, _, err = assay("data", "prepare", f"features:{mini_features}", "--limit", "1kB")
    assert (code, err) == (
        2,
        "assay: features:mini.npz needs 3.84 kB, above --limit 1 kB; raise the limit\n",
    )


def test_prepare_of_damaged_data_is_refused(assay, damaged, cache):
    code, out, err = assay("data", "prepare", f"folder:{damaged}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "data show" in err
    assert packs(cache) == []
