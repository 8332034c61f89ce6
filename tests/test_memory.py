"""Freed memory is kept for the next tensor where the C library is glibc; elsewhere nothing happens."""

import ctypes
import platform
import subprocess
import sys

import pytest

from assay.devices import keep_freed_memory

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


class Library:
    """A C library, with or without `mallopt`."""

    def __init__(self, *names):
        self.asked = []
        for name in names:
            setattr(self, name, lambda option, value: self.asked.append((option, value)))


@pytest.fixture
def library(monkeypatch):
    """Put another C library in the place of this one."""

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
def test_the_pages_of_a_large_tensor_are_fetched_once():
    """Twenty tensors one after the other: without it each fetches its pages anew."""
    done = subprocess.run([sys.executable, "-c", COUNT_PAGES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10
