"""The device that is chosen, torch's threads, and freed memory, which is kept under glibc."""

import ctypes
import platform
import subprocess
import sys

import pytest
import torch

from assay.devices import choose_device, keep_freed_memory, torch_threads
from assay.errors import BadInput

COUNT_PAGES = """
import resource

import torch

from assay.devices import keep_freed_memory


def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(100 * 2**20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


given_back = pages()
keep_freed_memory()
pages()  # glibc's own small caches have to fill before neighbours that were freed become one
print(given_back, pages())
"""


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, message in {
        "gpu": "choose auto, cpu or cuda",
        "": "choose auto",
        "cuda": "sees no GPU",
    }.items():
        with pytest.raises(BadInput, match=message):
            choose_device(device)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    for there, chosen in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert (choose_device("auto"), choose_device("cpu")) == (chosen, "cpu")


def test_torch_has_its_threads_back_after_the_block_even_if_it_fails():
    before = torch.get_num_threads()

    def fail():
        with torch_threads(before + 2):
            raise ZeroDivisionError(torch.get_num_threads())

    with pytest.raises(ZeroDivisionError, match=str(before + 2)):
        fail()
    assert torch.get_num_threads() == before


class Library:
    """A C library, with or without `mallopt`."""

    def __init__(self, *names):
        self.asked = []
        for name in names:
            setattr(self, name, lambda option, value: self.asked.append((option, value)))


@pytest.fixture
def library(monkeypatch):
    """Return a function that replaces the C library."""

    def use(*names, system="linux"):
        found = Library(*names)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
        monkeypatch.setattr(sys, "platform", system)
        return found

    return use


def test_a_library_without_mallopt_is_left_alone(library):
    library("malloc")
    keep_freed_memory()


def test_another_system_is_left_alone(library):
    found = library("mallopt", system="darwin")
    keep_freed_memory()
    assert found.asked == []


def test_nothing_is_mapped_and_nothing_trimmed(library):
    found = library("mallopt")
    keep_freed_memory()
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    asked = dict(found.asked)
    assert asked[m_mmap_max] == 0
    assert asked[m_trim_threshold] >= 2**30


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.slow
def test_the_pages_of_a_large_tensor_are_fetched_once():
    """Twenty tensors in a row: if memory is given back, each fetches its pages again."""
    done = subprocess.run([sys.executable, "-c", COUNT_PAGES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10
