"""The application: its commands, and what errors become. Heavy imports stay inside the commands."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer
from rich.console import Console

from assay.cli.bench import bench, reproduce, sweep
from assay.cli.calibrate import calibrate
from assay.cli.command import Command
from assay.cli.data import data_commands
from assay.cli.evaluate import evaluate
from assay.cli.export import export
from assay.cli.index import index
from assay.cli.lists import list_
from assay.cli.models import baselines, embed, train
from assay.cli.search import search
from assay.cli.serve import serve
from assay.cli.show import visible
from assay.cli.stores import merge, report, status
from assay.cli.verify import verify
from assay.devices import keep_freed_memory
from assay.errors import DISK_FULL, BadInput, check_utf8, reason_of, remedy_of_full
from assay.files import cache_folder, looks_folder

app = typer.Typer(
    name="assay",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="list", cls=Command)(list_)
app.add_typer(data_commands, name="data")
for command in (bench, sweep, reproduce, baselines, train, embed, evaluate):
    app.command(cls=Command)(command)
for command in (index, search, calibrate, export, serve):
    app.command(cls=Command)(command)
for command in (status, report, verify, merge):
    app.command(cls=Command)(command)


@app.callback(invoke_without_command=True)
def assay(
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    """Deep metric learning, put to a fair test.

    Example: assay bench --data glyphs --methods contrastive,triplet
    """
    if version:
        from assay.version import __version__

        print(__version__)
        raise typer.Exit


INTERRUPTED = 130

ONLY_READING = ("list", "search", "status", "verify")
"""Commands that write nothing, so that there is nothing to continue."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 bad usage or bad input, 130
    interrupted.
    """
    keep_freed_memory()
    try:
        _check_encoding(sys.argv)
        app()
    except BadInput as error:
        _fail(str(error), 2)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            follows = "nothing finished is lost, run the same command again to continue"
            if sys.argv[1:2] and sys.argv[1] in ONLY_READING:
                follows = "nothing was changed; what was not reached is neither right nor wrong"
            _fail(f"interrupted; {follows}", INTERRUPTED)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _fail(_explain(error), 2 if error.errno in BAD_PATHS else 1)
    except MemoryError:
        _fail("there is not enough memory; close other programs, or give smaller data", 1)
    except RuntimeError as error:
        _fail(str(error) or reason_of(error), 1)


def _check_encoding(words: Sequence[str]) -> None:
    """Raise `BadInput` where a word is not UTF-8, or the path of a folder that needs no word."""
    for word in words:
        check_utf8(word)
    for find in (Path.cwd, cache_folder, looks_folder):
        with suppress(OSError, RuntimeError):  # one that is not there is reported where it is used
            check_utf8(find().resolve())


BAD_PATHS = {
    errno.EACCES: "change its permissions, or give another path",
    errno.EPERM: "change its permissions, or give another path",
    errno.EROFS: "give a path that can be written to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a file stands where it needs a folder",
    errno.EISDIR: "give the path of a file",
    errno.EINVAL: "give the path of a file",
    errno.ENXIO: "give the path of a file",
    errno.ELOOP: "put the file itself there instead of a link",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EOVERFLOW: "give a smaller file",
}
"""What to do about errors of the system that are due to the path which was given."""


def _explain(error: OSError) -> str:
    """Return which file the system failed on, why, and what helps."""
    if error.strerror is None or error.filename is None:
        return reason_of(error)
    remedy = BAD_PATHS.get(error.errno or 0)
    if error.errno in DISK_FULL:
        again = "run the same command again: nothing finished is lost"
        remedy = f"{remedy_of_full(error)} and {again}"
    return f"{error.filename}: {error.strerror}{f'; {remedy}' if remedy else ''}"


def _fail(message: str, code: int) -> None:
    """Print the message and leave; that of bad input is one line, whatever the names in it are."""
    if code == 2:
        message = visible(message)
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"assay: {message}", markup=False)
    raise SystemExit(code)
