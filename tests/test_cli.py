"""The command line: frozen by a golden file; bad input is one clear line and exit code 2."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import typer.main
import typer.rich_utils
from PIL import Image

from assay import __version__
from assay.cli.app import app
from assay.records.ledger import read
from assay.records.store import Store
from assay.records.study import study_records
from entries import write_raw
from loops import for_each
from miniature import MINI, bench_command, make_folder

GOLDEN = Path(__file__).parent / "golden" / "cli.json"


def surface():
    """Return every command with its arguments and options."""

    def describe(command):
        if hasattr(command, "commands"):
            return {name: describe(child) for name, child in sorted(command.commands.items())}
        return [
            {"names": item.opts, "default": str(item.default), "required": item.required}
            for item in command.params
        ]

    return describe(typer.main.get_command(app))


def test_the_command_line_is_the_announced_one():
    """Changed on purpose? Write tests/golden/cli.json again: other people's scripts rely on these
    names.
    """
    found = json.loads(json.dumps(surface()))
    if os.environ.get("ASSAY_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def commands(command, path=()):
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))
    else:
        yield path


@for_each("path", list(commands(typer.main.get_command(app))))
def test_help_shows_an_example_on_one_line_of_80_columns(assay, monkeypatch, path):
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 80)
    code, out, _ = assay(*path, "--help")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) == 80
    example = next(n for n, line in enumerate(lines) if line.startswith("Example: assay"))
    assert lines[example].startswith(f"Example: assay {' '.join(path)}")
    assert lines[example + 1] == "", "it would have to be put together to be copied"


def test_help_with_no_words_and_version(assay):
    assert "bench" in assay()[1]
    assert assay("--version") == (0, f"{__version__}\n", "")


@for_each(
    "kind",
    [
        "methods",
        "losses",
        "miners",
        "samplers",
        "trunks",
        "datasets",
        "protocols",
        "metrics",
        "backends",
    ],
)
def test_everything_can_be_listed_for_people_and_for_programs(assay, kind):
    code, out, _ = assay("list", kind, "--json")
    rows = json.loads(out)
    assert code == 0
    assert rows
    assert all(row["name"] for row in rows)
    code, out, _ = assay("list", kind)
    assert code == 0
    assert all(row["name"] in out for row in rows)


def test_data_show_counts_what_is_there(assay, mini_folder):
    code, out, _ = assay("data", "show", f"folder:{mini_folder}", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["classes"], facts["samples"], facts["classes_with_one_sample"]) == (17, 65, 1)
    assert [part["classes"] for part in facts["parts"]] == [2, 2, 2, 2, 9]
    assert "class00" in assay("data", "show", f"folder:{mini_folder}")[1]


def test_data_splits_lists_every_sample_once(assay, mini_folder):
    code, out, _ = assay("data", "splits", f"folder:{mini_folder}")
    rows = [line.split(",") for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["sample", "class", "part"]
    assert len(rows) == 66
    assert rows[1] == ["class00/0.png", "class00", "fold 0"]
    assert {row[2] for row in rows[1:] if row[1] >= "class08"} == {"test"}


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(assay, mini_folder, tmp_path):
    words = [
        "bench",
        "--data",
        f"folder:{mini_folder}",
        "--methods",
        "triplet,untrained",
        "--out",
        tmp_path / "store",
        "--dry-run",
    ]
    code, out, _ = assay(*words, "--json")
    planned = json.loads(out)
    assert code == 0
    assert planned["runs"] == {"triplet": 40, "untrained": 16, "as_is": 4}
    assert planned["seconds"] > 0
    assert planned["bytes"] > 0
    assert "60 runs" in assay(*words)[1]
    assert not (tmp_path / "store").exists()


# --- bad input ------------------------------------------------------------------------------------


def one_class(root):
    (root / "only").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "only" / "a.png")


def broken_image(root):
    make_folder(root)
    (root / "class16" / "0.png").write_bytes(b"not an image")


def few_classes(root):
    for number in range(8):
        folder = root / f"c{number}"
        folder.mkdir(parents=True)
        for image in range(3):
            Image.new("RGB", (8, 8)).save(folder / f"{image}.png")


FOLDERS = {
    one_class: "has 1 class;",
    broken_image: "class16/0.png cannot be read as an image",
    few_classes: "has 8 classes; two halves with 4 folds need at least 16",
}


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_a_bad_folder_is_named(assay, tmp_path, make):
    make(tmp_path / "data")
    code, out, err = assay(
        "bench", "--data", f"folder:{tmp_path / 'data'}", "--out", tmp_path / "store"
    )
    assert (code, out) == (2, "")
    assert FOLDERS[make] in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


def save(path, **arrays):
    np.savez(path, **arrays)


Y = np.repeat(np.arange(16), 3)
ARCHIVES = {
    "no y": (lambda path: save(path, z=np.ones((48, 4))), "has no array 'y'"),
    "NaN": (
        lambda path: save(
            path, z=np.where(np.arange(48)[:, None] == 7, np.nan, np.ones((48, 4))), y=Y
        ),
        "row 7 of z",
    ),
    "text": (lambda path: path.write_text("hello"), "cannot be read as an .npz"),
}


@for_each("name", ARCHIVES)
def test_a_bad_archive_is_named(assay, tmp_path, name):
    make, message = ARCHIVES[name]
    make(tmp_path / "data.npz")
    code, out, err = assay(
        "bench", "--data", f"features:{tmp_path / 'data.npz'}", "--out", tmp_path / "store"
    )
    assert (code, out) == (2, "")
    assert message in err
    assert str(tmp_path / "data.npz") in err
    assert err.count("\n") == 1


WORDS = {
    "unknown method": (["--methods", "tripelt"], "did you mean 'triplet'?"),
    "method named twice": (["--methods", "triplet,triplet"], "'triplet' is named twice"),
    "no method": (["--methods", ","], "name at least one method"),
    "unknown data kind": (["--data", "foldr:birds"], "did you mean 'folder:'?"),
    "missing path": (["--data", "folder:no/such/place"], "there is no no/such/place"),
    "no path": (["--data", "folder:"], "needs a path"),
    "unknown protocol": (["--protocol", "quik"], "did you mean"),
    "unknown field": (["--set", "dimm=3"], "no field 'dimm'"),
    "wrong type": (["--set", "dim=many"], "'many' is not a whole number"),
    "no value": (["--set", "dim"], "write field=value"),
    "out of range": (["--set", "dim=0"], "dim is at least 1"),
    "too large": (["--set", "dim=1" + "0" * 20], "dim is at most 65536; set it lower"),
    "too many threads": (["--set", "threads=999999"], "threads is at most 1024; set it lower"),
    "too fast": (["--set", "optimiser.lr=1e30"], "above 0 and at most 1000"),
    "too many trials": (["--set", "trials=1" + "0" * 30], "trials is at most 10000; set it lower"),
    "no metric": (["--set", "metrics=,"], "is not a list of names such as map_at_r,r_precision"),
    "infinity": (["--set", "optimiser.lr=1e400"], "'1e400' is not a finite number"),
    "unknown trunk": (["--set", "trunk=resnet5000"], "no trunk is called 'resnet5000'"),
    "trunk for images": (
        ["--set", "trunk=conv"],
        "the trunk 'conv' takes images, the data are vectors",
    ),
    "unknown sampler": (["--set", "sampler=fair"], "no sampler is called 'fair'"),
    "missing import": (["--import", "no/such.py"], "there is no such file"),
    "no GPU": (["--device", "cuda"], "torch sees no GPU"),
    "unwritable out": (["--out", "/proc/store"], "cannot write to /proc/store"),
    "out is a file": (["--out", __file__], "cannot write to"),
}


@for_each("name", WORDS)
def test_bad_words_are_answered_with_the_remedy(assay, mini_features, tmp_path, name):
    words, message = WORDS[name]
    given = {"--data": f"features:{mini_features}", "--out": str(tmp_path / "store")}
    given.update(zip(words[::2], words[1::2], strict=True))
    code, out, err = assay("bench", *(part for pair in given.items() for part in pair))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


@for_each(
    "words",
    [
        ["bench", "--no-such-option"],
        ["bench", "--workers", "0"],
        ["bench", "--engine", "warp"],
        ["lst"],
    ],
)
def test_bad_usage_exits_with_2(assay, words):
    code, out, err = assay(*words)
    assert (code, out) == (2, "")
    assert err


def test_images_smaller_than_the_trunk_can_take_are_refused(assay, mini_folder, tmp_path):
    words = ["bench", "--data", f"folder:{mini_folder}", "--out", tmp_path / "store", "--set"]
    code, _, err = assay(*words, "size=8")
    assert code == 2
    assert "the trunk 'conv' needs at least 16 pixels" in err
    code, _, err = assay(*words, "trunk=identity")
    assert code == 2
    assert "the trunk 'identity' takes vectors, the data are images" in err
    assert not (tmp_path / "store").exists()


TWICE = {
    "methods": (
        ["bench", "--methods", "triplet", "--dry-run", "--methods=margin"],
        "--methods: given twice, triplet and margin; leave out one of the two",
    ),
    "a store": (
        ["bench", "--out", "a", "--out", "b"],
        "--out: given twice, a and b; leave out one of the two",
    ),
    "a nested command": (
        ["data", "show", "glyphs", "--protocol", "quick", "--protocol", "quick.v1"],
        "--protocol: given twice, quick and quick.v1; leave out one of the two",
    ),
    "the name of an option as a value": (
        ["train", "--out", "a", "--out", "b", "--pretrained-on", "--out"],
        "--out: given twice, a and b; leave out one of the two",
    ),
}


@for_each("name", TWICE)
def test_an_option_with_one_value_is_refused_where_it_is_given_twice(assay, name):
    words, message = TWICE[name]
    assert assay(*words) == (2, "", f"assay: {message}\n")


def test_options_with_several_values_and_flags_may_be_repeated(assay, mini_features):
    words = ["--set", "dim=8", "--set", "folds=2", "--json", "--json", "--dry-run"]
    assert assay("bench", "--data", f"features:{mini_features}", *words)[0] == 0


OUTS = {
    "a file": (
        lambda out: out.touch(),
        "cannot write to {0}: {0} is no folder; give another --out",
    ),
    "in a file": (lambda out: out.parent.touch(), "cannot write to {0}: "),
    "a link to nowhere": (lambda out: out.symlink_to("none"), "cannot write to {0}: {0} is no fol"),
    "not writable": (
        lambda out: out.symlink_to("/proc"),
        "{0} is not a run store: it contains oth",
    ),
    "of other files": (
        lambda out: (out.mkdir(), (out / "photo.jpg").touch()),
        "{0} is not a run store: it contains other files (photo.jpg, ...); give an empty --out",
    ),
    "of another format": (
        lambda out: (out.mkdir(), (out / "format.json").write_text('{"format": 99}')),
        "the store {0} has format 99",
    ),
    "without a format": (
        lambda out: (out.mkdir(), (out / "format.json").touch()),
        "{0}/format.json cannot be read; restore it, or give another --out",
    ),
}


@for_each("name", OUTS)
def test_an_out_that_is_no_store_is_refused_before_the_data_are_read(assay, tmp_path, name):
    """A dry run says the same as the bench."""
    make, message = OUTS[name]
    out = tmp_path / name / "store"
    if name != "in a file":
        out.parent.mkdir()
    make(out)
    before = sorted(tmp_path.rglob("*"))
    words = ["--data", "features:none.npz", "--out", out]
    said = [
        assay("bench", *words, "--dry-run"),
        assay("bench", *words),
        assay("sweep", *words, "--vary", "dim=4"),
        assay("reproduce", *words),
    ]
    assert said == [(2, "", said[0][2])] * 4
    assert message.format(out) in said[0][2] and said[0][2].count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_an_out_is_made_with_the_folders_above_it(tmp_path):
    Store.check_out(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert Store.create(tmp_path / "a" / "b").salts


def test_a_store_of_another_format_is_refused_and_left_alone(assay, mini_features, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "format.json").write_text('{"format": 99}')
    before = sorted(store.rglob("*"))
    for words in (
        ["bench", "--data", f"features:{mini_features}", "--out", store],
        ["status", store],
        ["report", store],
    ):
        code, _, err = assay(*words)
        assert code == 2
        assert "has format 99; this version of Assay reads format" in err
    assert sorted(store.rglob("*")) == before


def test_a_folder_that_is_no_store_is_refused(assay, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"dear")
    code, _, err = assay("bench", "--out", tmp_path)
    assert code == 2
    assert "photo.jpg" in err
    for command in ("status", "report", "verify"):
        code, _, err = assay(command, tmp_path)
        assert code == 2
        assert "is not a run store" in err


# --- a whole bench --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return the store of a miniature bench, run by the command in a process of its own."""
    root = tmp_path_factory.mktemp("cli")
    folder = make_folder(root / "mini")
    command = bench_command(f"folder:{folder}", root / "store", "contrastive,triplet,untrained")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (root / "store" / "stdout").write_text(done.stdout)
    (root / "store" / "stderr").write_text(done.stderr)
    return root / "store"


def test_results_go_to_stdout_and_progress_to_stderr(store):
    out, err = (store / "stdout").read_text(), (store / "stderr").read_text()
    assert out.endswith(f"report: {store}/report/index.html\n")
    assert "MAP@R" in out
    assert re.match(r"(Use|Keep|Undecided|No method is shown)", out)
    assert "undecided" in out
    assert "at the parameters that one search found" in out
    assert "contrastive: trial 1: validation MAP@R" in err
    assert "contrastive: trial 1, fold 0 done" in err
    assert "contrastive: reproduction 1, fold 1 done" in err


KEY = re.compile(r"\b[0-9a-f]{12,64}\b")


def test_lines_are_for_people_and_keys_for_those_who_ask(assay, store):
    """The one hash that everybody should see is the hash of the bench, which is to be published."""
    lines = (store / "stderr").read_text().splitlines()
    assert [line for line in lines if KEY.search(line)] == [
        line for line in lines if "bench: announced: " in line
    ]
    folder = f"folder:{store.parent / 'mini'}"
    words = bench_command(folder, store, "contrastive,triplet,untrained")[3:]
    code, _, err = assay(*words, "--verbose")
    assert code == 0
    for record in study_records(Store(store)):
        assert f"{record.called}: preregistration {record.preregistration}" in err


def test_a_finished_bench_leaves_no_notes_on_how_far_its_tasks_are(store):
    assert not [path for path in store.glob("partial/**/*") if path.is_file()]


def test_the_page_lists_what_was_changed(store):
    page = (store / "report" / "index.html").read_text()
    (changed,) = re.findall(r"Changed with <code>--set</code>: (.*)</p>", page)
    assert {"dim=8", "folds=2", "size=16", "optimiser.lr=0.01"} <= set(changed.split(", "))


def test_the_name_of_a_changed_protocol_shows_the_change(store):
    assert "quick.v2+custom-" in (store / "stdout").read_text()


def test_status_of_a_finished_bench(assay, store):
    code, out, _ = assay("status", store, "--json")
    status = json.loads(out)
    assert code == 0
    assert status["driver"] is None
    assert [row["state"] for row in status["studies"]] == ["done"] * 4
    assert "not running" in assay("status", store)[1]


def test_the_report_can_be_written_again_with_the_same_tables(assay, store):
    before = {path: path.read_bytes() for path in (store / "report" / "tables").iterdir()}
    assert assay("report", store)[0] == 0
    assert {path: path.read_bytes() for path in (store / "report" / "tables").iterdir()} == before


def test_verify_passes_and_proves_an_anchor(assay, store):
    code, out, _ = assay("verify", store)
    assert code == 0
    assert out.splitlines()[-1].endswith("checks, 0 wrong")
    anchor = next(
        line.split("announced: ")[1].split()[0]
        for line in (store / "stderr").read_text().splitlines()
        if "announced: " in line
    )
    code, out, _ = assay("verify", store, "--anchor", anchor)
    assert code == 0
    assert "it shows an order in time only if this hash was published" in out
    code, out, _ = assay("verify", store, "--anchor", "0" * 64)
    assert code == 1
    assert "no bench here was announced" in out
    assert json.loads(assay("verify", store, "--json")[1])["problems"] == []


def test_bench_again_gives_its_result_as_json(assay, store):
    folder = store.parent / "mini"
    words = [
        "bench",
        "--data",
        f"folder:{folder}",
        "--out",
        store,
        "--methods",
        "contrastive,triplet,untrained",
        "--json",
    ]
    code, out, _ = assay(*words, *(part for setting in MINI for part in ("--set", setting)))
    result = json.loads(out)
    assert code == 0
    (found,) = result["comparisons"]
    assert {row["method"] for row in found["scores"]} == {
        "as_is",
        "contrastive",
        "triplet",
        "untrained",
    }
    assert {"as_is", "contrastive", "triplet", "untrained"} <= set(found["preregistrations"])
    assert len(found["differences-separated"]) == 3, (
        "the two methods with each other, and each with as_is"
    )
    assert found["answer"]["setting"] == "separated"
    assert found["answer"]["sentence"]
    assert found["unfinished"] == []


def test_other_code_or_settings_do_not_continue_a_study(assay, store, tmp_path):
    """The preregistration holds: the same key with another space is refused."""
    other = shutil.copytree(store, tmp_path / "store")
    key = next(record.key for record in study_records(Store(other)) if record.method == "triplet")
    ledger = other / "studies" / key / "ledger.jsonl"
    body = read(ledger)[0].body
    body["space"]["margin"]["high"] = 4.0
    ledger.unlink()
    write_raw(ledger, [["preregistration", body]])
    folder = store.parent / "mini"
    words = ["bench", "--data", f"folder:{folder}", "--out", other, "--methods", "triplet"]
    code, _, err = assay(*words, *(part for setting in MINI for part in ("--set", setting)))
    assert code == 2
    assert "margin was searched in 0.0 to 4.0 and would now be searched in 0.0 to 2.0" in err
    assert "--new-study" in err
    before = ledger.read_bytes()
    ledger.write_bytes(before + b'{"torn": ')  # as while a bench writes to it
    words += [*(part for setting in MINI for part in ("--set", setting)), "--dry-run"]
    code, _, planned = assay(*words)
    assert (code, planned) == (2, err)
    assert ledger.read_bytes() == before + b'{"torn": '
    assert assay(*words, "--new-study")[0] == 0
