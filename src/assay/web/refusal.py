"""The error for a request that is refused, and errors of the library as such."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from fastapi import Response

from assay.errors import BadInput, failed_here
from assay.index.calibration import TooFew
from assay.index.manifest import DamagedIndex
from assay.web.documents import Problem

RETRY_SECONDS = 1
"""When a client may try again that was refused for lack of room."""


class Refusal(Exception):
    """A request that is refused.

    Args:
        status: status of the response.
        error: what is wrong, in words.
        remedy: what to do about it.
        reason: a word for the count of refused requests; empty: it is not counted there.
    """

    def __init__(self, status: int, error: str, remedy: str, reason: str = "") -> None:
        super().__init__(error)
        self.status, self.problem, self.reason = status, Problem(error, remedy), reason

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response that depend on its status."""
        if self.status == 503:
            return {"retry-after": str(RETRY_SECONDS)}
        return {"www-authenticate": 'Bearer realm="assay"'} if self.status == 401 else {}

    def response(self, reject: Callable[[str], None]) -> Response:
        """Count the refusal by `reject`, and return the response."""
        if self.reason:
            reject(self.reason)
        return answer_json(self.problem, self.status, self.headers)


def without_path(text: str, folder: Path) -> str:
    """Return a text in which a folder has its name instead of its path, for clients.

    >>> without_path("/srv/birds/index.json is damaged: see /srv/birds.", Path("/srv/birds"))
    'birds/index.json is damaged: see birds.'
    >>> without_path("/srv/birdsong is not /data/srv/birds", Path("/srv/birds"))
    '/srv/birdsong is not /data/srv/birds'
    """
    whole = folder.resolve()
    paths = {str(folder), str(folder.absolute()), str(whole)}
    for path in sorted(paths, key=len, reverse=True):
        before = r"(?<!\S)" if path == "." else r"(?<![\w./-])"  # a full stop is no path
        pattern = rf"{before}{re.escape(path)}(?![\w-]|\.[\w.])"
        text = re.sub(pattern, lambda _: whole.name, text)
    return text


def refusal_of(error: BadInput, folder: Path) -> Refusal:
    """Return the refusal of a request that the library cannot use.

    What is wrong with the machine or with the index is not the client's fault.

    Args:
        error: the library's error.
        folder: the folder of the index, whose path is left out.
    """
    said = without_path(str(error), folder)
    if failed_here(error) is not None or isinstance(error, DamagedIndex):
        return Refusal(500, "the index cannot be searched", "read the log of the service", "failed")
    if isinstance(error, TooFew):
        return Refusal(
            400,
            "this precision cannot be shown with so few classes as the index was calibrated with",
            f"ask for a lower precision or for none, or calibrate with more classes: {said}",
        )
    what, _, remedy = said.rpartition("; ")
    return Refusal(400, what, remedy) if what else Refusal(400, remedy, "change the request")


def answer_json(
    document: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a response with a JSON document, which is never cached."""
    plain = (
        asdict(document) if is_dataclass(document) and not isinstance(document, type) else document
    )
    content = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(
        content.encode(),
        status,
        {"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )
