"""What the command line hears while it waits: how far things are, and Ctrl-C."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from rich.console import Console

from assay.cli.progress import LineListener, TableListener
from assay.errors import BadInput
from assay.records.progress import Listener
from assay.records.store import Store
from loops import for_each

LISTENERS = {
    "lines": LineListener,
    "table": lambda: TableListener(Console(stderr=True, force_terminal=True)),
}


@pytest.mark.parametrize("kind", LISTENERS)
def test_an_interruption_that_something_swallows_is_raised_at_the_next_tick(kind):
    with LISTENERS[kind]() as listener:
        listener.tick([], None)
        with suppress(KeyboardInterrupt):  # as a library might
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("nothing was interrupted")
        with pytest.raises(KeyboardInterrupt):
            listener.tick([], None)


@pytest.mark.parametrize("kind", LISTENERS)
def test_signals_do_afterwards_what_they_did_before(kind):
    before = signal.getsignal(signal.SIGINT)
    with LISTENERS[kind]():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_in_another_thread_signals_are_left_alone():
    seen = []

    def listen():
        with LineListener() as listener:
            listener.tick([], None)
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("kind", LISTENERS)
@pytest.mark.parametrize("verbose", [False, True])
def test_a_run_that_is_done_is_one_line_with_its_key_where_that_is_wanted(kind, verbose, capsys):
    listener = {
        "lines": lambda: LineListener(verbose),
        "table": lambda: TableListener(Console(stderr=True), verbose),
    }[kind]()
    listener.run_done("triplet", "trial 1, fold 0", "0123456789abcdef" * 4)
    said = [line.rpartition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    if verbose:
        assert said == ["triplet: trial 1, fold 0: run 0123456789ab done"]
    else:
        assert said == (["triplet: trial 1, fold 0 done"] if kind == "lines" else [])


@pytest.mark.parametrize("kind", LISTENERS)
def test_names_give_the_terminal_no_commands(kind, capfd):
    with LISTENERS[kind]() as listener:
        listener.announce("triplet", "begun on \x1b[2Kbirds\nok")
        listener.progress("reading \x1b[2Kbirds", 1, 2)
    said = capfd.readouterr().err
    assert "begun on \\x1b[2Kbirds\\nok" in said
    assert "\x1b[2Kbirds" not in said.replace("\\x1b[2Kbirds", "")


def test_a_listener_that_only_hears_what_is_said_hears_of_runs():
    heard = []

    class Hearing(Listener):
        def say(self, method, text):
            heard.append((method, text))

    Hearing().run_done("triplet", "trial 1", "0" * 64)
    assert heard == [("triplet", "trial 1 done")]


@pytest.mark.parametrize("kind", LISTENERS)
def test_a_long_silence_at_the_start_is_broken_once(kind, capfd, monkeypatch):
    monkeypatch.setattr("assay.cli.progress.FIRST_LINE_AFTER", 0.01)
    listeners = {
        "lines": lambda: LineListener(False, "bench", "reading glyphs"),
        "table": lambda: TableListener(
            Console(stderr=True, force_terminal=True), False, "bench", "reading glyphs"
        ),
    }
    with listeners[kind]() as listener:
        listener._silence.join()
        listener.announce("triplet", "begun")
    said = capfd.readouterr().err
    assert said.count("bench: reading glyphs") == 1
    assert said.index("bench: reading glyphs") < said.index("triplet: begun")


@pytest.mark.parametrize("kind", LISTENERS)
@pytest.mark.parametrize("end", ["an event", "an error"])
def test_nothing_is_said_of_the_start_where_the_silence_was_short(kind, end, capfd, monkeypatch):
    monkeypatch.setattr("assay.cli.progress.FIRST_LINE_AFTER", 60)
    listeners = {
        "lines": lambda: LineListener(False, "bench", "reading glyphs"),
        "table": lambda: TableListener(Console(stderr=True), False, "bench", "reading glyphs"),
    }
    with suppress(KeyError), listeners[kind]() as listener:
        if end == "an error":
            raise KeyError
        listener.announce("triplet", "begun")
        listener._silence.join()
    listener._silence.join()
    assert "reading" not in capfd.readouterr().err


@for_each(
    "words", [("bench",), ("bench", "--dry-run"), ("sweep", "--vary", "dim=4"), ("reproduce",)]
)
def test_a_bench_says_what_it_does_while_it_reads_the_data(assay, monkeypatch, words):
    def read(data, progress):
        time.sleep(0.2)
        raise BadInput("no data")

    monkeypatch.setattr("assay.cli.progress.FIRST_LINE_AFTER", 0.05)
    monkeypatch.setattr("assay.data.load_without_broken", read)
    code, out, err = assay(*words, "--data", "folder:birds", "--skip-broken")
    assert (code, out) == (2, "")
    first, refused = err.splitlines()
    assert first.endswith(f"] {words[0]}: reading and hashing folder:birds")
    assert refused == "assay: no data"


@pytest.mark.parametrize("kind", [RuntimeError, OSError, MemoryError])
def test_an_error_without_words_is_named(assay, tmp_path, monkeypatch, kind):
    def fail(*_):
        raise kind

    monkeypatch.setattr("assay.report.write_report", fail)
    code, out, err = assay("report", Store.create(tmp_path / "store").root)
    assert (code, out) == (1, "")
    words = "there is not enough memory; close" if kind is MemoryError else f"{kind.__name__}\n"
    assert err.startswith(f"assay: {words}")


@pytest.mark.parametrize(
    ("command", "function", "follows"),
    [
        ("verify", "assay.verify.verify", "nothing was changed; what was not reached is neither"),
        ("report", "assay.report.write_report", "run the same command again to continue"),
    ],
)
def test_an_interrupted_command_says_what_follows(
    assay, tmp_path, monkeypatch, command, function, follows
):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    code, _, err = assay(command, Store.create(tmp_path / "store").root)
    assert code == 130
    assert err.startswith("assay: interrupted; ") and follows in err
