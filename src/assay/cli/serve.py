"""`assay serve`: a page and an HTTP interface over an index."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.options import Device, DeviceOption
from assay.cli.show import visible
from assay.errors import BadInput

LIBRARIES = ("fastapi", "python_multipart", "starlette", "uvicorn")
"""Libraries of the extra `serve`."""


def serve(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", help="The folder of an index, see `assay index`.")
    ] = Path(),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ASSAY_TOKEN",
            help="A secret that every request must bring; better set ASSAY_TOKEN, as other users"
            " of this machine can see options.",
        ),
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Let other machines in; needs --token.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name of this machine in the address that clients use, such as"
            " search.example.org.",
        ),
    ] = None,
    max_upload: Annotated[
        float, typer.Option(metavar="MB", help="Size of the largest upload.")
    ] = 20.0,
    workers: Annotated[int, typer.Option(help="Searches that are computed at once.")] = 2,
    queue: Annotated[int, typer.Option(help="Searches that may wait for a worker.")] = 64,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that a request may take.")
    ] = 30.0,
    device: DeviceOption = Device.auto,
) -> None:
    """Search INDEX from a page in the browser, and from programs over HTTP.

    Ctrl-C ends it, once the requests in flight are answered.

    Example: assay serve birds-index --port 8000
    """
    try:
        from assay import web
        from assay.index import Index
        from assay.index.manifest import MANIFEST, PENDING, VERSIONS
    except ModuleNotFoundError as error:
        if error.name in LIBRARIES:
            raise BadInput(
                f"assay serve needs {error.name}: pip install 'assay-dml[serve]'"
            ) from None
        raise
    if index == Path() and not any(Path(name).exists() for name in (MANIFEST, PENDING, VERSIONS)):
        raise BadInput(
            "this folder is not an index; give the folder of an index: assay serve INDEX"
        )
    settings = web.Settings(
        host=host,
        port=port,
        token=token,
        allow_public=allow_public,
        host_names=tuple(host_name or ()),
        most_bytes=round(max_upload * 1e6),
        workers=workers,
        queue=queue,
        seconds=timeout,
    )
    _log_to_stderr()

    def say(address: str) -> None:
        print(f"{visible(str(index))} is served at {address} (Ctrl-C ends it)", flush=True)

    code = web.serve(lambda: Index.open(index, device=device), settings, say)
    if code:
        raise typer.Exit(code)


def _log_to_stderr() -> None:
    """Print what the service logs; what decoders say of bad uploads is left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", module="PIL")
    for name, level in {"assay.web": logging.INFO, "uvicorn.error": logging.ERROR}.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
