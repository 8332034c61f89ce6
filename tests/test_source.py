"""The hash of the code that a run computes with: what changes it, and what does not."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from assay.data import images
from assay.losses.adopt import adopt
from assay.losses.triplet import Triplet
from assay.methods import methods, source_of
from assay.protocols import protocols, resolve
from assay.records import keys
from assay.records.source import (
    PACKAGE,
    class_hash,
    code_hash,
    foreign_hash,
    modules_below,
    source_hash,
)
from assay.study import design_bench
from assay.trunks import trunk_facts

RUN = ["assay.run.training"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, the same for all tests."""
    target = tmp_path_factory.mktemp("source") / "assay"
    return Path(shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__")))


def changed(copy: Path, name: str, change: Callable[[str], str], modules: list[str]) -> bool:
    """Whether a change of a file of the package changes the hash; the file is put back."""
    path, before = copy / name, source_hash(modules, copy)
    content = path.read_text() if path.exists() else None
    path.write_text(change(content or ""))
    after = source_hash(modules, copy)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    return after != before


def add_code(text: str) -> str:
    return text + "\n\nADDED = 1\n"


def add_comment(text: str) -> str:
    return text + "\n# a remark\n"


def reword(text: str) -> str:
    """Another text in the docstring of the module."""
    start = text.index('"""') + 3
    return text[:start] + "Said in other words. " + text[start:]


def test_the_hash_is_that_of_the_installed_package(copy: Path) -> None:
    assert keys.own_source() == source_hash(RUN) == source_hash(RUN, copy)


def test_a_changed_line_of_what_a_run_computes_with_changes_the_hash(copy: Path) -> None:
    for name in (
        "losses/loss.py",
        "train/loop.py",
        "samplers/sampler.py",
        "metrics/retrieval.py",
        "metrics/geometry.py",
        "neighbours/search.py",
        "data/augment.py",
        "data/splits.py",
        "model.py",
        "embedding.py",
        "run/training.py",
        "run/testing.py",
        "stats/intervals.py",
    ):
        assert changed(copy, name, add_code, RUN), name


def test_other_words_change_no_hash(copy: Path) -> None:
    for name in ("losses/loss.py", "train/loop.py", "metrics/retrieval.py", "run/training.py"):
        assert not changed(copy, name, add_comment, RUN), name
        assert not changed(copy, name, reword, RUN), name


def test_other_layout_changes_no_hash(copy: Path) -> None:
    def spread(text: str) -> str:
        return text.replace("\n\n\n", "\n\n\n\n\n")

    assert not changed(copy, "train/loop.py", spread, RUN)


def test_what_no_run_computes_with_changes_no_hash(copy: Path) -> None:
    for name in (
        "data/sources/another.py",
        "data/sources/folder.py",
        "losses/another.py",
        "losses/triplet.py",
        "protocols/another.py",
        "protocols/quick.py",
        "stats/planning.py",
        "study/bench.py",
        "tables/table.py",
        "verify/checks.py",
        "engines/local.py",
        "cli/app.py",
        "status.py",
        "study/__init__.py",
        "__init__.py",
    ):
        assert not changed(copy, name, add_code, RUN), name


PACKAGES = ("losses/", "metrics/", "miners/", "run/", "samplers/", "train/", "trunks/", "data/")
"""Folders whose `__init__` Python runs before a run."""


def test_what_a_package_does_when_it_is_imported_changes_the_hash(copy: Path) -> None:
    for folder in PACKAGES:
        assert changed(copy, f"{folder}__init__.py", add_code, RUN), folder
        assert not changed(copy, f"{folder}__init__.py", add_comment, RUN), folder


def test_a_name_more_that_a_package_exports_changes_no_hash(copy: Path) -> None:
    def export(text: str) -> str:
        return text + "\nfrom assay.status import status_of\n"

    assert not changed(copy, "losses/__init__.py", export, RUN)


def test_what_only_looks_alike_has_another_hash(tmp_path: Path) -> None:
    for first, second in (
        ("def f(*, a, b=1): ...", "def f(*, a=1, b): ..."),
        ('x = {**a, "k": b}', 'x = {"k": a, **b}'),
    ):
        files = [tmp_path / "first.py", tmp_path / "second.py"]
        for file, text in zip(files, (first, second), strict=True):
            file.write_text(text)
        assert code_hash(str(files[0])) != code_hash(str(files[1])), first


FOREIGN = {
    "from assay.pairs import masked_mean": "pairs.py",
    "from assay.losses.triplet import Triplet": "losses/triplet.py",
    "import assay.losses.adopt": "losses/adopt.py",
    "import assay": "losses/contrastive.py",
}
"""Imports of a user's file, each with a module of Assay that the file computes with."""


@pytest.mark.parametrize("line", FOREIGN)
def test_a_user_s_file_is_hashed_with_the_code_of_assay_that_it_imports(
    copy: Path, tmp_path: Path, line: str
) -> None:
    mine, path = tmp_path / "mine.py", copy / FOREIGN[line]
    mine.write_text(f"{line}\n")
    before, text = foreign_hash(mine, copy), path.read_text()
    try:
        path.write_text(add_comment(text))
        assert foreign_hash(mine, copy) == before
        path.write_text(add_code(text))
        assert foreign_hash(mine, copy) != before
    finally:
        path.write_text(text)
    mine.write_text(f"{line}\n# a remark\n")
    assert foreign_hash(mine, copy) != before, "of a user's file every byte counts"


def test_the_bases_of_a_loss_are_part_of_its_source() -> None:
    class Mine(Triplet):
        """A loss of a user."""

    modules = {part.__module__ for part in Mine.written_in()}
    assert {"assay.losses.triplet", Mine.__module__} <= modules
    adopted = {part.__module__ for part in adopt(torch.nn.CrossEntropyLoss).written_in()}
    assert "assay.losses.adopt" in adopted


@pytest.mark.parametrize("name", ["images.py", "image_files.py"])
def test_the_code_that_reads_images_is_part_of_their_hash(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = images.decoder_hash()
    monkeypatch.setattr(
        images, "code_hash", lambda file: "other" if Path(file).name == name else code_hash(file)
    )
    assert images.decoder_hash.__wrapped__() != before


def test_the_class_that_hands_out_samples_is_part_of_the_key() -> None:
    (design,) = design_bench("glyphs", ["triplet"], "quick", "cpu", ())
    found = {design.conditions.environment.images}
    for items in (Path, images.Image.Image):  # any class of another file
        half = design.conditions.trainval
        dataset = replace(half._dataset, items=items.__new__(items))
        conditions = replace(design.conditions, trainval=replace(half, _dataset=dataset))
        found.add(conditions.environment.images)
    assert len(found) == 3


def test_a_part_is_hashed_with_what_it_imports(copy: Path) -> None:
    for part, name in (
        ("assay.losses.triplet", "losses/triplet.py"),
        ("assay.losses.triplet", "losses/loss.py"),
        ("assay.losses.proxy_anchor", "losses/proxies.py"),
        ("assay.samplers.balanced", "samplers/balanced.py"),
    ):
        assert changed(copy, name, add_code, [part]), (part, name)
        assert not changed(copy, name, add_comment, [part]), (part, name)
    assert not changed(copy, "losses/contrastive.py", add_code, ["assay.losses.triplet"])


def test_every_method_has_the_source_of_its_own_parts() -> None:
    protocol = resolve(protocols["quick"], "drawing", trunk_facts)
    sources = {name: source_of(method, protocol) for name, method in methods.items()}
    assert sources["triplet"] != sources["contrastive"]


def test_a_class_that_is_in_no_file_counts_by_its_name() -> None:
    session: dict[str, type] = {}
    exec("class One: ...\nclass Other: ...", {"__name__": "typed"}, session)
    assert len({class_hash(kind) for kind in (session["One"], session["Other"], Path)}) == 3


def test_modules_below_a_package_are_named_as_python_names_them() -> None:
    found = modules_below("assay.records")
    assert {"assay.records", "assay.records.keys", "assay.records.source"} <= set(found)


def test_the_hash_of_one_module_is_that_of_its_own_code(copy: Path, tmp_path: Path) -> None:
    text, edited = (copy / "data" / "images.py").read_text(), tmp_path / "edited.py"
    before = code_hash(str(copy / "data" / "images.py"))
    for edit, changes in ((add_comment, False), (reword, False), (add_code, True)):
        edited.write_text(edit(text))
        assert (code_hash(str(edited)) != before) == changes, edit.__name__
