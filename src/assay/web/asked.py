"""The body of `POST /api/search`: a form or a JSON document as a checked question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.datastructures import QueryParams

from assay.files import parse_json
from assay.web.refusal import Refusal

MOST_RESULTS, MOST_SKIPPED = 200, 9_000

MOST_FILTERS = 300
"""Filters of a search."""

LONGEST_TEXT = 4096
"""Characters of the longest id or word."""

IMAGE, ID, WHERE = "image", "id", "where"
NUMBERS = K, SKIP, SCORE, PRECISION = "k", "skip", "min_score", "min_precision"
FIELDS = (IMAGE, ID, WHERE, *NUMBERS)

MOST_FIELDS = MOST_FILTERS + len(FIELDS)
"""Fields of a form above which it is not read on."""


@dataclass(frozen=True)
class Asked:
    """What a client searches for.

    Args:
        image: content of an uploaded image; None: the query is an image of the index.
        called: name of the uploaded image, for messages.
        id: id of an image of the index; None: the query was uploaded.
        k: number of results.
        skip: number of results that are left out, as they were shown before.
        where: wanted words as `column=word`; those of one column are alternatives.
        min_score: least score of a match; None: all results.
        min_precision: least precision that the index is calibrated for; None: all results.
    """

    image: bytes | None
    called: str
    id: str | None
    k: int
    skip: int
    where: tuple[str, ...]
    min_score: float | None
    min_precision: float | None


def read_asked(content_type: str, body: Sequence[bytes]) -> Asked:
    """Read a question; raise `Refusal` where it is none."""
    kind, options = parse_options_header(content_type)
    if kind == b"application/json":
        return _asked(_of_json(b"".join(body)), None, "")
    if kind == b"application/x-www-form-urlencoded":
        return _asked(_of_query(b"".join(body)), None, "")
    if kind == b"multipart/form-data":
        return _asked(*_of_multipart(options.get(b"boundary", b""), body))
    raise Refusal(
        415,
        "the body of the request is of an unknown type",
        f"send multipart/form-data with a file {IMAGE!r}, or JSON with {ID!r}",
    )


def read_id(parameters: QueryParams) -> str:
    """Return the id that an address asks for."""
    given = parameters.getlist(ID)
    if len(given) != 1:
        raise _wrong(f"give one {ID!r} in the address")
    _check_text(given[0])
    return given[0]


def _check_text(text: Any) -> None:
    """Raise `Refusal` for what is no text of usual length that a database takes."""
    if not isinstance(text, str) or len(text) > LONGEST_TEXT or "\0" in text:
        raise _wrong(f"{ID!r} and {WHERE!r} are texts of at most {LONGEST_TEXT} characters")


def _of_multipart(
    boundary: bytes, body: Sequence[bytes]
) -> tuple[dict[str, list[Any]], bytes | None, str]:
    fields: dict[str, list[Any]] = {}
    images: list[tuple[str, bytes]] = []
    count, ended = 0, False

    def on_field(field: Field) -> None:
        _count()
        fields.setdefault(_text(field.field_name or b""), []).append(_text(field.value or b""))

    def on_file(file: File) -> None:
        _count()
        if file.field_name != IMAGE.encode():
            raise _wrong(f"the form has a file that is not named {IMAGE!r}")
        file.file_object.seek(0)
        images.append(
            (_file_name((file.file_name or b"").decode(errors="replace")), file.file_object.read())
        )

    def on_end() -> None:
        nonlocal ended
        ended = True

    def _count() -> None:
        nonlocal count
        count += 1
        if count > MOST_FIELDS:
            raise _wrong(f"the form has more than {MOST_FIELDS} fields")

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field,
            on_file,
            on_end,
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": math.inf},
        )
        for part in body:
            parser.write(part)
        parser.finalize()
    except FormParserError as error:
        raise _wrong(f"the form cannot be read ({error})") from None
    if not ended:
        raise _wrong("the form was cut short")
    if len(images) > 1:
        raise _wrong(f"the form has {len(images)} images")
    called, image = images[0] if images else ("", None)
    return fields, image, called


def _of_query(body: bytes) -> dict[str, list[Any]]:
    fields: dict[str, list[Any]] = {}
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise _wrong("the form cannot be read") from None
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _of_json(body: bytes) -> dict[str, list[Any]]:
    try:
        document = parse_json(body)
    except (ValueError, RecursionError):
        raise _wrong("the body is not JSON") from None
    if not isinstance(document, dict):
        raise _wrong("the document is not an object")
    where = document.get(WHERE, [])
    if not isinstance(where, list):
        raise _wrong(f"{WHERE!r} is not a list of texts")
    for name in NUMBERS:
        if isinstance(document.get(name), str):
            raise _wrong(f"{name!r} is a text, not a number")
    single = {name: [one] for name, one in document.items() if name != WHERE and one is not None}
    return {**single, WHERE: where}


def _asked(fields: Mapping[str, list[Any]], image: bytes | None, called: str) -> Asked:
    for name, values in fields.items():
        if name not in FIELDS:
            raise _wrong(f"there is no field {name[:40]!r}; the fields are {', '.join(FIELDS)}")
        if name != WHERE and len(values) > 1:
            raise _wrong(f"the field {name!r} is given {len(values)} times")
    if len(fields.get(WHERE, [])) > MOST_FILTERS:
        raise _wrong(f"{WHERE!r} is given more than {MOST_FILTERS} times")
    for text in (*fields.get(ID, []), *fields.get(WHERE, [])):
        _check_text(text)
    id_ = next(iter(fields.get(ID, [])), None)
    if image is None and fields.get(IMAGE):
        raise _wrong(f"{IMAGE!r} is not a file")
    if (image is None) == (id_ is None):
        raise _wrong(f"give a file {IMAGE!r} or an {ID!r}, and not both")
    precision = _number(fields, PRECISION)
    if precision is not None and not 0 < precision < 1:
        raise _wrong(f"{PRECISION!r} is not a number above 0 and below 1")
    return Asked(
        image,
        called or "the image",
        id_,
        _whole(fields, K, 10, 1, MOST_RESULTS),
        _whole(fields, SKIP, 0, 0, MOST_SKIPPED),
        tuple(fields.get(WHERE, [])),
        _number(fields, SCORE),
        precision,
    )


def _whole(
    fields: Mapping[str, list[Any]], name: str, otherwise: int, least: int, most: int
) -> int:
    """Return a field that is a whole number between two others."""
    found = next(iter(fields.get(name, [])), otherwise)
    text = str(found) if isinstance(found, int | str) and not isinstance(found, bool) else ""
    value = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None
    if value is None or not least <= value <= most:
        raise _wrong(f"{name!r} is not a whole number from {least} to {most:,}")
    return value


def _number(fields: Mapping[str, list[Any]], name: str) -> float | None:
    """Return a field that is a finite number; None where it is not given."""
    found = next(iter(fields.get(name, [])), "")
    if found == "":
        return None
    try:
        value = math.nan if isinstance(found, bool) else float(found)
    except (ValueError, TypeError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(f"{name!r} is not a finite number")
    return value


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _wrong("a field is not UTF-8") from None


def _file_name(given: str) -> str:
    r"""Return the name of an uploaded file as messages show it.

    >>> _file_name("../../etc/owl.png"), _file_name("C:\\pictures\\owl.png"), _file_name("a\nb")
    ('owl.png', 'owl.png', 'ab')
    """
    name = PureWindowsPath(PurePosixPath(given).name).name
    return "".join(letter for letter in name if letter.isprintable())[:80]


def _wrong(what: str) -> Refusal:
    return Refusal(400, what, "see /docs for the fields of a request", "bad_request")
