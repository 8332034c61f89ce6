"""Weights from the network: short time-outs, no retries, every failure an `OSError`."""

import contextlib
import io
import logging
import socket
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import Tensor

from assay.hashing import digest_file

PATIENCE = 10
"""Seconds without an answer after which an address counts as unreachable."""


def from_address(address: str, sha256: str) -> Mapping[str, Tensor]:
    """Return the state dict at `address`, which torch keeps in its own cache.

    `sha256` is the file's hash or the beginning of it.
    """
    with quietly(), _patience():
        try:
            state: Mapping[str, Tensor] = torch.hub.load_state_dict_from_url(
                address, map_location="cpu", progress=False, check_hash=True, weights_only=True
            )
        except urllib.error.URLError as error:
            raise OSError(f"{address}: {error.reason}") from error
        except RuntimeError as error:
            raise OSError(f"{address}: {error}") from error
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(address).path).name
    if not digest_file(file).startswith(sha256):
        raise OSError(
            f"{file} is not the published file: its SHA-256 does not begin with {sha256}; remove it"
        )
    return state


def reachable(address: str) -> bool:
    """Return whether a server answers at `address`."""
    try:
        urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD"), timeout=PATIENCE
        ).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings and messages of download libraries inside; errors are still raised."""
    loggers = [logging.getLogger(name) for name in ("timm", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
