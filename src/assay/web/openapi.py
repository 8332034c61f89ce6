"""The parts of the OpenAPI document that FastAPI cannot infer from the routes."""

from typing import Any

from assay.web.asked import LONGEST_TEXT, MOST_FILTERS, MOST_RESULTS, MOST_SKIPPED
from assay.web.documents import Problem

MEANING = {
    400: "The request cannot be used, such as a file that is no image.",
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "The index has no such image.",
    405: "The address does not take this method.",
    408: "The upload took too long.",
    410: "The file of the image is not there any more, or was changed since it was indexed.",
    413: "The image has too many bytes or pixels.",
    415: "The body is neither a form nor JSON.",
    421: "The service is not known by the name in the address.",
    500: "The service failed.",
    503: "The service is busy, shuts down, or cannot search at present; `Retry-After` says when to"
    " try again.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route."""
    return {status: {"model": Problem, "description": MEANING[status]} for status in statuses}


PROBLEMS = problems(401, 403, 405, 421, 500)
"""The error responses of every route."""

_FIELDS = {
    "id": {
        "type": "string",
        "maxLength": LONGEST_TEXT,
        "description": "Id of an image of the index.",
    },
    "k": {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_RESULTS,
        "default": 10,
        "description": "Number of matches.",
    },
    "skip": {
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_SKIPPED,
        "default": 0,
        "description": "Number of best matches to leave out, for the next page.",
    },
    "where": {
        "type": "array",
        "items": {"type": "string", "maxLength": LONGEST_TEXT, "pattern": "^[^=]+=.+$"},
        "maxItems": MOST_FILTERS,
        "description": "Filters such as `colour=red`; those of one column are alternatives.",
    },
    "min_score": {
        "type": "number",
        "description": "Least score of a match.",
    },
    "min_precision": {
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 1,
        "description": "Share of matches that are to be right; the index has to be calibrated.",
    },
}

_OF_ID: dict[str, Any] = {
    "type": "object",
    "properties": _FIELDS,
    "required": ["id"],
    "additionalProperties": False,
}

_OF_IMAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "format": "binary", "description": "The image to search with."},
        **{name: field for name, field in _FIELDS.items() if name != "id"},
    },
    "required": ["image"],
    "additionalProperties": False,
}

THUMBNAIL_ID: dict[str, Any] = {
    "name": "id",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "maxLength": LONGEST_TEXT},
    "description": "Id of an image of the index.",
}
"""The parameter that names the image of a thumbnail."""

SEARCH_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": _OF_IMAGE},
        "application/json": {"schema": _OF_ID},
        "application/x-www-form-urlencoded": {"schema": _OF_ID},
    },
}
"""The body of a search: an image, or the id of one."""
