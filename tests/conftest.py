"""Fixtures that several test files share."""

import gc
import itertools
import sys
from contextlib import contextmanager

import pytest
import torch

from assay.cli import main
from assay.report import figures, write
from miniature import make_features, make_folder
from shared_pool import POOL

LOOK_AT_FIGURES = ("test_docs.py", "test_report.py", "test_sections.py")
"""Files whose reports have figures; elsewhere drawing would take longer than a miniature bench."""

NOT_DRAWN = b'<svg><path d="M 0 0"/></svg>'


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Draw figures only for the tests that look at them."""
    looks = item.path.name in LOOK_AT_FIGURES
    write.draw = figures.draw if looks else lambda figure, form: NOT_DRAWN


def pytest_collection_finish():
    """Keep the collector from walking through all modules and tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep the tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_CACHE", str(tmp_path_factory.getbasetemp().parent / "assay-cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_looks(tmp_path_factory):
    """Keep what fixtures do out of the user's index of looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_LOOKS", str(tmp_path_factory.getbasetemp() / "looks"))
        yield


_tests = itertools.count()


@pytest.fixture(autouse=True)
def looks_folder(tmp_path_factory, monkeypatch):
    """Give each test an index of looks of its own, so that no other test's looks are noted."""
    folder = tmp_path_factory.getbasetemp() / f"looks-{next(_tests)}"
    monkeypatch.setenv("ASSAY_LOOKS", str(folder))
    return folder


@pytest.fixture(scope="module")
def one_thread():
    """Compute in one thread, for tests of small tensors, where threads only wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _shared_pool():
    """End the shared worker processes with the session."""
    yield
    POOL.close()


@pytest.fixture
def mini_folder(tmp_path):
    """Make a folder of 17 classes with 4 images each, the last class with one."""
    return make_folder(tmp_path / "mini")


@pytest.fixture
def mini_features(tmp_path):
    """Write an .npz of 16 classes with 5 vectors each."""
    return make_features(tmp_path / "mini.npz")


@pytest.fixture
def assay(monkeypatch, capsys):
    """Return a function that runs a command in this process: exit code, stdout, stderr.

    Progress lines, which appear on a slow machine, are off.
    """
    monkeypatch.setattr("assay.cli.progress.LINE_EVERY", float("inf"))
    monkeypatch.setattr("assay.cli.progress.FIRST_LINE_AFTER", 1e6)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def as_before(tmp_path_factory):
    """Restore the registries after the test and forget modules imported from its folder."""
    with registries_restored(tmp_path_factory.getbasetemp()):
        yield


@contextmanager
def registries_restored(folder):
    """Restore the registries afterwards and forget modules imported from the folder."""
    from assay.data import datasets
    from assay.methods import losses, methods, miners
    from assay.samplers import samplers
    from assay.trunks import trunks

    registries = (methods, losses, miners, samplers, trunks, datasets)
    before = [(dict(registry._parts), dict(registry._origins)) for registry in registries]
    yield
    for registry, (parts, origins) in zip(registries, before, strict=True):
        registry._parts, registry._origins = parts, origins
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
