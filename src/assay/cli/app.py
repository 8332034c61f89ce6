"""The application: its commands, and what errors become. Heavy imports stay inside the commands."""

import errno
import os
import sys

import typer
from rich.console import Console

from assay.cli.bench import bench, reproduce, sweep
from assay.cli.data import data_commands
from assay.cli.evaluate import evaluate
from assay.cli.lists import list_
from assay.cli.models import baselines, embed, train
from assay.cli.stores import merge, report, status, verify
from assay.devices import keep_freed_memory
from assay.errors import BadInput

app = typer.Typer(
    name="assay",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="list")(list_)
app.add_typer(data_commands, name="data")
for command in (bench, sweep, reproduce, baselines, train, embed, evaluate):
    app.command()(command)
for command in (status, report, verify, merge):
    app.command()(command)


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


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 bad usage or bad input, 130
    interrupted.
    """
    keep_freed_memory()
    try:
        app()
    except BadInput as error:
        _fail(str(error), 2)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _fail(
                "interrupted; nothing finished is lost, run the same command again to continue",
                INTERRUPTED,
            )
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _fail(_explain(error), 1)
    except RuntimeError as error:
        _fail(f"{error}", 1)


def _explain(error: OSError) -> str:
    """Return which file the system failed on and why, and what helps where the disk is full."""
    if error.strerror is None or error.filename is None:
        return error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = (
        "; make room there and run the same command again: nothing finished is lost" if full else ""
    )
    return f"{error.filename}: {error.strerror}{remedy}"


def _fail(message: str, code: int) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"assay: {message}", markup=False)
    raise SystemExit(code)
