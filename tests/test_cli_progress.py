"""What the command line hears while it waits: how far things are, and Ctrl-C."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from rich.console import Console

from assay.cli.progress import LineListener, TableListener

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
