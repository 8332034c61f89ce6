"""Refusals in loops: which case was not refused is in the failure."""

from collections.abc import Callable
from typing import Any

from assay.errors import BadInput


def refusal(case: object, call: Callable[[], Any]) -> str:
    """Return the message of the `BadInput` that a call raises; fail with the name of the case where
    it raises none.
    """
    try:
        call()
    except BadInput as error:
        return str(error)
    raise AssertionError(f"{case}: was not refused")
