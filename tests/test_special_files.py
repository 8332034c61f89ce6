"""Pipes and devices in place of files are refused at once: opening a pipe waits for a writer, and
a device may never end.
"""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from assay.engines import InlineEngine
from assay.files import regular, write_atomically
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.report import write_report
from assay.study import Execution, run_bench
from assay.verify import verify
from miniature import MINI, make_features, make_folder

PATIENCE = 20
"""Seconds after which a command is taken to hang."""


def make_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def make_device(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    return path


every_special_file = pytest.mark.parametrize("special", [make_pipe, make_device])


@pytest.fixture(autouse=True)
def _patience():
    """Interrupt a test that hangs."""

    def give_up(*_):
        raise TimeoutError(f"it hangs: {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a folder with a finished store and its data."""
    root = tmp_path_factory.mktemp("special")
    data = f"features:{make_features(root / 'mini.npz')}"
    small = customise(protocols["quick"], MINI)
    run_bench(data, ["triplet"], small, root / "store", Execution(InlineEngine()))
    make_folder(root / "images")
    return root


@pytest.fixture
def place(made, tmp_path):
    return shutil.copytree(made, tmp_path / "made")


def in_a_table(place, special, ending):
    return ["data", "show", f"table:{special(place / f'list.{ending}')}"]


def as_image(place, special):
    special(place / "images" / "class00" / "0.png")
    return ["bench", "--data", f"folder:{place / 'images'}", "--methods", "triplet", "--dry-run"]


def as_labels(place, special):
    np.save(place / "z.npy", np.eye(4))
    return ["evaluate", place / "z.npy", "--labels", special(place / "y.npy")]


def model_in(place):
    return next(path.parent for path in (place / "store").glob("models/*/model.json"))


def of_a_model(place, special, name):
    model = model_in(place)
    special(model / name)
    return ["evaluate", model, "--data", f"features:{place / 'mini.npz'}"]


WAYS = {
    "features": lambda place, special: ["data", "show", f"features:{special(place / 'f.npz')}"],
    "table": lambda place, special: in_a_table(place, special, "csv"),
    "Parquet": lambda place, special: in_a_table(place, special, "parquet"),
    "image": as_image,
    "archive": lambda place, special: ["data", "show", f"omniglot:{special(place / 'o.zip')}"],
    "npz": lambda place, special: ["evaluate", special(place / "e.npz")],
    "npy": lambda place, special: ["evaluate", special(place / "e.npy"), "--labels", "y.npy"],
    "labels": as_labels,
    "import": lambda place, special: [
        "bench", "--data", f"features:{place / 'mini.npz'}", "--methods", "triplet", "--dry-run",
        "--import", special(place / "mine.py"),
    ],
    "weights": lambda place, special: [
        "baselines", "--data", f"folder:{place / 'images'}", "--trunks", "resnet18", "--weights",
        special(place / "w.pth"),
    ],
    "model card": lambda place, special: of_a_model(place, special, "model.json"),
    "model weights": lambda place, special: of_a_model(place, special, "model.safetensors"),
    "store": lambda place, special: ["status", special(place / "store" / "format.json").parent],
}  # fmt: skip


@every_special_file
@pytest.mark.parametrize("way", WAYS)
def test_a_special_file_is_refused_and_named(assay, place, monkeypatch, way, special):
    monkeypatch.chdir(place)
    code, _, err = assay(*WAYS[way](place, special))
    assert code == 2, err
    assert "Traceback" not in err and str(place) in err, err


@pytest.mark.parametrize(
    "name",
    ["ledger.jsonl", "study.json", "result.json", "config.json", "history.jsonl", "timing.json",
     "answers/*.npz", "answers/*.sha256", "classes/*.npz", "tables/*.csv"],
)  # fmt: skip
def test_verify_says_that_a_pipe_in_a_store_is_one_and_does_not_hang(place, name):
    """The content of a file that cannot be read is not called altered."""
    store = Store(place / "store")
    if name == "tables/*.csv":
        write_report(store)
    path = next(path for path in sorted(store.root.rglob(name)) if "models" not in path.parts)
    make_pipe(path)
    problems = [finding.problem for finding in verify(store) if finding.problem]
    assert bool(problems) == (name != "timing.json")
    for problem in problems:
        assert "cannot be read: it is a pipe, not a file" in problem
        assert path.name in problem and "Errno" not in problem


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path):
    for path in (make_pipe(tmp_path / "pipe"), Path("/dev/null")):
        with pytest.raises(OSError, match="not a file"):
            write_atomically(path, "text")
        assert not path.is_file()


def test_files_folders_and_links_to_them_are_regular(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link"):
        assert regular(path) == path
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        regular(make_pipe(tmp_path / "pipe"))
    with pytest.raises(OSError, match="it is a device, not a file"):
        regular(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        regular(tmp_path / "none")
