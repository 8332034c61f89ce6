"""The error for a request that is refused, and errors of the library as such."""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
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


def refusal_of(error: BadInput) -> Refusal:
    """Return the refusal of a request that the library cannot use.

    What is wrong with the machine or with the index is not the client's fault.
    """
    if failed_here(error) is not None or isinstance(error, DamagedIndex):
        return Refusal(500, "the index cannot be searched", "read the log of the service", "failed")
    if isinstance(error, TooFew):
        return Refusal(
            400,
            "this precision cannot be shown with so few classes as the index was calibrated with",
            f"ask for a lower precision or for none, or calibrate with more classes: {error}",
        )
    what, _, remedy = str(error).rpartition("; ")
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
