"""What the command line hears while it waits: how far things are, and Ctrl-C."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from rich.console import Console

from assay.cli.progress import LineListener, TableListener
from assay.records.progress import Listener
from assay.records.store import Store

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


def test_a_listener_that_only_hears_what_is_said_hears_of_runs():
    heard = []

    class Hearing(Listener):
        def say(self, method, text):
            heard.append((method, text))

    Hearing().run_done("triplet", "trial 1", "0" * 64)
    assert heard == [("triplet", "trial 1 done")]


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
