"""The tree is what DESIGN says: one door per outside library, and the names that other people's
code relies on.
"""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from assay.data.seal import Reason
from assay.registry import Registry
from loops import for_each

ROOT = Path(__file__).parents[1] / "src" / "assay"

DOORS = {
    "optuna": ["study"],
    "faiss": ["index"],
    "timm": ["trunks"],
    "torchvision": ["trunks"],
    "PIL": ["data", "web/pictures.py"],
    "pillow_heif": ["data/images.py"],
    "pyarrow": ["data/sources/table.py"],
    "sqlite3": ["data/image_files.py", "index/catalog.py"],
    "typer": ["cli"],
    "rich": ["cli"],
    "ray": ["engines/ray.py"],
    "fastapi": ["web"],
    "onnx": ["index/export"],
    "onnxruntime": ["index/export"],
    "pymilvus": ["index/milvus_client.py"],
    "python_multipart": ["web"],
    "starlette": ["web"],
    "uvicorn": ["web"],
    "matplotlib": ["report", "data/sources/glyphs.py"],
    "jinja2": ["report"],
    "pickle": [],
    "yaml": [],
}


def imported(path):
    """Top-level names of the packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def is_behind(path, door):
    relative = path.relative_to(ROOT).as_posix()
    return relative in (door, f"{door}.py") or relative.startswith(f"{door}/")


def test_a_library_is_imported_behind_its_own_door_only():
    outside = {
        (library, path.relative_to(ROOT).as_posix())
        for path in ROOT.rglob("*.py")
        for library in DOORS.keys() & set(imported(path))
        if not any(is_behind(path, door) for door in DOORS[library])
    }
    assert outside == set()


def test_the_check_of_doors_sees_an_import(tmp_path):
    file = tmp_path / "sneaky.py"
    file.write_text("def f():\n    from rich.table import Table\n")
    assert "rich" in set(imported(file))


READERS_OF_THE_TEST_HALF = {
    "OpenedTest": {"data/seal.py"},
    "Half": set(),
    "TrainVal": {"data/splits.py"},
    "SealedTest": {"data/splits.py"},
    "read_any": {"data/seal.py", "data/packs.py"},
    "everything": {"data/given.py"},
    "read_vectors": {"features.py"},
    "read_test": {"run/testing.py"},
    "receipt": {"study/study.py"},
    "receipt_of": {
        "evaluation/look.py",
        "study/final.py",
        "verify/rerun.py",
        "verify/retest.py",
    },
    "Receipt": {"records/ledger.py"},
}
"""Calls that make a half or read one whichever it is, and the only files that make them."""

REASONS_GIVEN = {
    "evaluation/baselines.py": {Reason.BASELINE},
    "data/given.py": {Reason.EVERY_VECTOR},
    "evaluation/evaluate.py": {Reason.FOREIGN_LOOK, Reason.RECORDED_LOOK},
}
"""The files that look at the test half without a receipt, and the reasons that they give."""

SAMPLES_OF_BOTH_HALVES = {"labels", "items", "first_test_class", "_dataset", "_indices"}
"""Attributes by which samples and labels of a data set can be had without regard to the seal."""


KNOW_THE_BORDER = {
    "data/dataset.py": "says where it is",
    "data/splits.py": "makes trainval of the classes before it",
    "data/seal.py": "makes the test half of the classes after it",
    "data/copies.py": "says in words which copies cross it",
    "data/survey.py": "says in words what is in both halves",
    "evaluation/embeddings.py": "says whether a model was trained on classes of both halves",
}
"""Files that ask which classes are the test half's, and why they may."""


def called(tree):
    """Names of the functions and classes that a module calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def reached(tree):
    """Attributes of data sets, halves and anything of the same name that a module reads.

    A dictionary's `items()` is a call; the samples of a data set are not. The `labels` of a
    record's seal are a hash.
    """
    methods = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        of_a_seal = getattr(getattr(node, "value", None), "attr", None) == "seal"
        if isinstance(node, ast.Attribute) and id(node) not in methods and not of_a_seal:
            yield node.attr


def test_only_the_seal_makes_a_test_half():
    for path in ROOT.rglob("*.py"):
        name, calls = path.relative_to(ROOT).as_posix(), set(called(ast.parse(path.read_text())))
        for call, allowed in READERS_OF_THE_TEST_HALF.items():
            assert call not in calls or name in allowed, f"{name} calls {call}"


def test_every_look_without_a_receipt_is_in_the_table_with_its_reason():
    found = {}
    for path in ROOT.rglob("*.py"):
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "Reason":
                found.setdefault(name, set()).add(Reason[node.attr])
    assert found == REASONS_GIVEN


def test_only_data_reads_samples_without_regard_to_the_seal():
    for path in ROOT.rglob("*.py"):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if not name.startswith("data/") and "assay.data" in text:
            found = SAMPLES_OF_BOTH_HALVES & set(reached(ast.parse(text)))
            assert not found, f"{name} reads {found}: take a half from splits or the seal"


def test_no_other_file_asks_which_classes_are_the_test_halfs():
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
    found = {name for name, text in files.items() if "first_test_class" in text}
    assert found == set(KNOW_THE_BORDER)


def test_the_check_of_the_seal_sees_a_way_round_it():
    tree = ast.parse("half = splits.Half(dataset, rows)\nx = dataset.items.arrays(rows, step)")
    assert "Half" in set(called(tree)) and "items" in set(reached(tree))
    assert "items" not in set(reached(ast.parse("for name, value in found.items(): pass")))


OPEN_FILES = {
    "files.py": "the readers that all others use",
    "data/content.py": "the cache's own files, which it hashes in segments",
    "data/partial_pack.py": "the cache's own files",
    "published/results.py": "a file of the package",
    "records/source.py": "code that was imported",
    "report/write.py": "a file of the package",
    "trunks/checkpoints.py": "a plain file, as it has checked",
    "trunks/lite0.py": "a file of another package",
    "trunks/weights.py": "the cache's own files, whose names are hashes",
}
"""Files that open files in their own way, and why they may: a pipe would make them wait."""


def opens_files(tree):
    """Whether a module opens a file to read it, other than by the readers of `assay.files`."""
    for node in ast.walk(tree):
        function = getattr(node, "func", None)
        name, owner = getattr(function, "attr", ""), getattr(function, "value", None)
        mode = getattr(node.args[0], "value", "") if function and node.args else ""
        if (
            name in ("read_bytes", "read_text")
            or (name == "open" and isinstance(mode, str) and mode[:1] == "r")
            or (name in ("load", "fromfile", "loadtxt") and getattr(owner, "id", "") in LIBRARIES)
            or getattr(function, "id", "") == "open"
        ):
            return True
    return False


LIBRARIES = ("np", "numpy", "torch")


def test_files_are_opened_in_one_way():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if opens_files(ast.parse(path.read_text()))
    }
    assert found == set(OPEN_FILES)


def test_the_check_of_opened_files_sees_them():
    for code in ("path.read_bytes()", "np.load(path)", "open(path)", "path.open('rb')"):
        assert opens_files(ast.parse(code)), code
    for code in ("read_bytes(path)", "archive.open(member)", "path.open('xb')", "json.load(x)"):
        assert not opens_files(ast.parse(code)), code


def test_the_page_on_architecture_shows_the_layers_that_are_checked():
    root = Path(__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [{part.strip(" ()") for part in layer.split("|")} for layer in contract["layers"]]
    drawing = (root / "docs" / "architecture.md").read_text().split("```")[1].strip()
    lines = [re.split("  +", line)[0].split() for line in drawing.splitlines()]
    shown = [{name.removesuffix("/").removesuffix(".py") for name in line} for line in lines]
    assert [{"__main__"}, *shown] == layers


PUBLIC = json.loads((Path(__file__).parent / "golden" / "public_names.json").read_text())
"""Names that each package promises to other people's code."""


@for_each("module", PUBLIC)
def test_public_names_are_the_announced_ones(module):
    names = importlib.import_module(module)
    assert sorted(names.__all__) == PUBLIC[module]
    assert all(hasattr(names, name) for name in PUBLIC[module])


def test_an_old_import_fails_with_the_new_name():
    import assay
    from assay.moved import MOVED

    for old, new in MOVED.items():
        home, names = re.fullmatch(r"([\w.]+)(?: \((.*)\)|;.*)?", new).groups()
        module = importlib.import_module(home)
        assert all(hasattr(module, name) for name in (names or "").split(", ") if name), new
        lines = [f"import assay.{old}", f"from assay.{old} import anything"]
        lines += [] if hasattr(assay, old) else [f"from assay import {old}"]
        for line in lines:
            with pytest.raises(ModuleNotFoundError, match=f"assay.{old} was moved to {home}"):
                exec(line)


def test_a_method_has_the_announced_attributes():
    from assay.methods import methods

    triplet = methods["triplet"]
    assert (triplet.name, triplet.loss.__name__, triplet.miner, triplet.batch) == (
        "triplet",
        "Triplet",
        None,
        "embedding",
    )
    assert (list(triplet.space), triplet.normalise, triplet.paper.year) == (["margin"], True, 2006)


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_heavy_libraries_wait_until_they_are_needed():
    heavy = "torch", "optuna", "scipy", "matplotlib", "numpy"
    code = "import sys, assay, assay.cli; print([name for name in {} if name in sys.modules])"
    assert run_python(code.format(heavy)) == "[]\n"


def test_stores_are_read_and_reported_without_torch():
    modules = "assay.metric_names, assay.records, assay.tables, assay.report, assay.status"
    code = f"import sys, {modules}; print('torch' in sys.modules, 'optuna' in sys.modules)"
    assert run_python(code) == "False False\n"


def test_no_form_of_import_shows_an_empty_registry():
    """Each form runs in a fresh process, forked from one that has imported torch but not Assay."""
    for package in ("data", "methods", "metrics", "protocols"):
        importlib.import_module(f"assay.{package}")
    sizes = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "assay":
            found = {key: value for key, value in vars(module).items() if is_registry(value)}
            for key, registry in found.items():
                own = [part for part in registry if registry.origin(part).startswith("assay.")]
                sizes[f"from {name} import {key}"] = len(own)
    forms = {form: size for form, size in sizes.items() if is_public(form)}
    assert {form.rpartition(" ")[2] for form in forms} == {
        "backends", "datasets", "losses", "methods", "metrics", "miners", "protocols", "samplers",
        "trunks", "vector_similarities",
    }  # fmt: skip
    code = f"""
import os, numpy, scipy.special, torch, torch.utils.data
for form, size in {forms}.items():
    if os.fork() == 0:
        exec(form)
        print(form, len(locals()[form.rpartition(" ")[2]]), size, flush=True)
        os._exit(0)
    os.wait()
"""
    lines = run_python(code).splitlines()
    assert lines == [f"{form} {size} {size}" for form, size in forms.items()]


def is_registry(value):
    return isinstance(value, Registry) and bool(value)


def is_public(form):
    """Whether this is the module that defines a registry, its package, or the door for methods."""
    _, module, _, name = form.split()
    made = importlib.import_module(module)
    return name in getattr(made, "__all__", ()) or f"\n{name} = " in inspect.getsource(made)


EMPTY_WORDS = {
    "answers", "apprentice", "arena", "common", "desk", "every", "form", "helpers", "judge",
    "learner", "manager", "means", "misc", "nobody", "obituary", "one", "parcel", "said", "shelf",
    "stuff", "told", "utils", "whole",
}  # fmt: skip
"""Names under which a reader finds nothing that he looks for."""


def test_nothing_is_called_by_a_word_that_says_nothing():
    names = {}
    for path in ROOT.rglob("*.py"):
        defined = [
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]
        for name in (path.stem, *defined):
            names.setdefault(name.lower(), path.relative_to(ROOT).as_posix())
    found = {name: path for name, path in names.items() if name in EMPTY_WORDS}
    assert found == {}
    assert not any(name.startswith("base_") for name in names)


def test_a_module_stays_readable():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for path in ROOT.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > 450} == {}
