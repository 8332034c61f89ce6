"""No input at random ends in a traceback, hangs, is refused unclearly, or means something else."""

import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import assay.data.sources.features as features
import assay.data.sources.folder as folders
from assay.data.sources import archives
from assay.errors import BadInput
from fuzz import FAILURES, Case, call, fuzz, judge, prepared, table, try_case
from fuzz_data import read_csv, read_npz
from kills import strace_works

KINDS = ("features", "folder", "table", "archive", "model", "store", "set", "import")
EACH = 12
"""Inputs of each kind in `make test`; the slow test takes a thousand."""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    with prepared(tmp_path_factory.mktemp("fuzz").resolve()) as made:
        yield made


def check(outcomes):
    failures = [str(one) for one in outcomes if one.column in FAILURES]
    assert not failures, "\n".join([*failures, *table(outcomes)])


@pytest.mark.parametrize("name", KINDS)
def test_random_inputs_are_accepted_as_they_are_or_refused_in_one_line(kinds, name):
    outcomes = list(fuzz({name: kinds[name]}, EACH, seed=0))
    check(outcomes)
    found = {one.column for one in outcomes}
    assert "accepted" in found and found & {"refused", "found"}, "the inputs are all of one sort"


def test_there_is_a_test_for_every_kind(kinds):
    assert tuple(kinds) == KINDS


@pytest.mark.slow
def test_a_thousand_random_inputs(kinds, capsys):
    outcomes = list(fuzz(kinds, 1200, seed=1000))
    with capsys.disabled():
        print("", *table(outcomes), sep="\n")
    check(outcomes)


# --- the fuzzer itself finds what is planted ------------------------------------------------------


def comes_upon(kinds, name, column, said="", most=60, **limits):
    """Return whether one of the first cases ends in this column."""
    tried = (try_case(name, kinds[name], seed, **limits) for seed in range(most))
    return any(one.column == column and said in one.problem for one in tried)


def test_an_error_that_nobody_expected_is_found(kinds, monkeypatch):
    def fail(*arguments):
        raise KeyError("planted")

    monkeypatch.setattr(features, "_numbered", fail)
    assert comes_upon(kinds, "features", "traceback", "planted")


def test_a_command_that_hangs_is_found(kinds, monkeypatch):
    monkeypatch.setattr(folders, "_check_name", lambda path: time.sleep(60))
    assert comes_upon(kinds, "folder", "hang", most=3, seconds=0.2)


def test_vectors_and_labels_that_are_read_wrongly_are_found(kinds, monkeypatch):
    read = features.check_finite
    monkeypatch.setattr(features, "check_finite", lambda z, called: read(z, called)[::-1].copy())
    assert comes_upon(kinds, "features", "wrong", "z is not what the file holds")


def test_a_sample_that_is_left_out_is_found(kinds, monkeypatch):
    read = folders._files_in
    monkeypatch.setattr(folders, "_files_in", lambda folder: read(folder)[1:])
    assert comes_upon(kinds, "folder", "wrong")


def test_a_valid_input_that_is_refused_is_found(kinds, monkeypatch):
    def refuse(*arguments):
        raise BadInput(f"{arguments[-1]}: no")

    monkeypatch.setattr(features, "check_finite", refuse)
    assert comes_upon(kinds, "features", "wrong", "a valid input was refused")


def test_a_member_of_an_archive_that_lands_outside_is_found(kinds, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(archives, "_checked", lambda archive, name: name)
    assert comes_upon(kinds, "archive", "wrong", "was written")
    for path in tmp_path_factory.getbasetemp().rglob("*escaped*"):
        path.unlink()


def test_a_file_that_is_not_imported_is_found(kinds, monkeypatch):
    monkeypatch.setattr("assay.methods.import_parts", lambda names: None)
    assert comes_upon(kinds, "import", "wrong", "not run to its end")


def test_a_store_whose_scores_were_altered_unseen_is_found(kinds, monkeypatch):
    """Where `verify` says nothing, any other table is a wrong acceptance."""
    monkeypatch.setattr("assay.verify.verify", lambda *_: iter(()))
    assert comes_upon(kinds, "store", "wrong", "verify finds nothing")


def test_a_setting_that_is_not_taken_as_asked_is_found(kinds, monkeypatch):
    from assay.protocols import settings

    read = settings._convert
    monkeypatch.setattr(
        settings, "_convert", lambda hint, text: read(hint, text) * (2 if hint is int else 1)
    )
    assert comes_upon(kinds, "set", "wrong", "asked")


def test_refusals_of_several_lines_without_a_name_or_with_another_code_are_unclear():
    case = Case("", ["data", "show", "x"], names=["birds"])
    ended = replace(call(["--version"]), code=2)
    for err, code, column in (
        ("assay: birds are broken", 2, "refused"),
        ("note: first\nassay: birds are broken", 2, "refused"),
        ("assay: birds\nare broken", 2, "unclear"),
        ("assay: something is broken", 2, "unclear"),
        ("birds are broken", 2, "unclear"),
        ("assay: birds are broken", 1, "unclear"),
    ):
        assert judge(case, replace(ended, err=err, code=code))[0] == column, err
    assert judge(replace(case, finds=True), replace(ended, code=1))[0] == "found"
    assert judge(replace(case, valid=True), replace(ended, err="assay: birds"))[0] == "wrong"


def test_a_case_is_the_same_each_time(kinds):
    for name in ("features", "table", "set"):
        first, again = (kinds[name](random.Random(f"{name} 3")) for _ in range(2))
        assert (first.shown, first.words) == (again.shown, again.words)


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_hundred_kills_at_random_system_calls_do_no_harm(capsys):
    """The program prints where each command was killed, and what broke."""
    if not strace_works():
        pytest.skip("strace is not here, or may not attach to a process: apt-get install strace")
    program = [sys.executable, str(Path(__file__).with_name("kills.py")), "--count", "100"]
    done = subprocess.run(program, capture_output=True, text=True)
    with capsys.disabled():
        print("", *done.stdout.splitlines()[-3:], sep="\n")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"100 kills at \d\d+ different points, 0 did harm", done.stdout)


def test_a_reader_of_our_own_reads_what_numpy_writes(tmp_path):
    z = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(tmp_path / "f.npz", z=z, y=np.array(["a", "\u00e9"]))
    found = read_npz(tmp_path / "f.npz")
    assert (found["z"] == z).all() and found["y"].tolist() == ["a", "\u00e9"]
    text = 'a,"b, ""c"""\r\n"d\ne",f\n,\r\n'
    assert read_csv(text) == [["a", 'b, "c"'], ["d\ne", "f"], ["", ""]]
