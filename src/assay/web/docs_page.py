"""The page at `/docs`, made from the OpenAPI document."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}: interface</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/style.css">
</head>
<body class="docs">
<header class="top"><a class="mark" href="/">{title}</a>
<nav aria-label="Pages"><a href="/">Search</a> <a href="/openapi.json">OpenAPI</a></nav></header>
<main>
<h1>Interface for programs</h1>
<p>{about} <a href="/openapi.json">openapi.json</a> is the same for programs.</p>
<h2>Example</h2>
<pre><code>curl {token}-F image=@query.jpg -F k=5 {origin}/api/search</code></pre>
{routes}
<h2>Documents</h2>
{documents}
</main>
</body>
</html>
"""

Document = Mapping[str, Any]

FIELD = ("name", "type", "meaning")
"""Columns of a table of fields."""


def render(document: Document, origin: str, *, needs_token: bool) -> str:
    """Return the page of an OpenAPI document; every text of it is escaped.

    Args:
        document: the document.
        origin: scheme, name and port of the service, for the example.
        needs_token: whether the example has to send a token.
    """
    routes = "\n".join(
        _route(method.upper(), path, operation, document)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    info = document["info"]
    return PAGE.format(
        title=escape(info["title"]),
        about=_words(info.get("description", "")),
        origin=escape(origin),
        token='-H "Authorization: Bearer $ASSAY_TOKEN" ' if needs_token else "",
        routes=routes,
        documents="\n".join(
            f'<section class="route"><h2><code>{escape(name)}</code></h2>'
            f"{_table('', FIELD, _of({'schema': schema}, document))}</section>"
            for name, schema in document["components"]["schemas"].items()
        ),
    )


def _route(method: str, path: str, operation: Document, document: Document) -> str:
    parts = [
        f'<section class="route"><h2><span class="verb">{escape(method)}</span>'
        f" <code>{escape(path)}</code></h2>",
        *(f"<p>{_words(text)}</p>" for text in operation.get("description", "").split("\n\n")),
    ]
    if parameters := operation.get("parameters"):
        rows = [
            (one["name"], one["schema"], one.get("required", False), one.get("description", ""))
            for one in parameters
        ]
        parts.append(_table("Parameters of the address", FIELD, _fields(rows)))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(_table(f"Body: {kind}", FIELD, _of(content, document)))
    answers = []
    for status, response in sorted(operation.get("responses", {}).items()):
        answers.append((escape(status), _words(response.get("description", ""))))
        for content in response.get("content", {}).values():
            if status == "200" and "$ref" in content.get("schema", {}):
                parts.append(_table("Answer", FIELD, _of(content, document)))
    parts.append(_table("Status", ("status", "meaning"), iter(answers)))
    return "\n".join([*parts, "</section>"])


def _of(content: Document, document: Document) -> Iterator[tuple[str, ...]]:
    """Yield the fields of a body or an answer."""
    schema = _resolve(content["schema"], document)
    needed = schema.get("required", ())
    meanings = _meanings(schema.get("description", ""))
    rows = [
        (name, field, name in needed, field.get("description", meanings.get(name, "")))
        for name, field in schema.get("properties", {}).items()
    ]
    return _fields(rows)


def _fields(rows: list[tuple[str, Document, bool, str]]) -> Iterator[tuple[str, ...]]:
    for name, schema, needed, meaning in rows:
        limits = _limits(schema)
        text = " ".join(part for part in (_words(meaning), limits) if part)
        star = "" if needed or "default" in schema else " <small>optional</small>"
        yield f"<code>{escape(name)}</code>{star}", escape(_type(schema)), text


def _meanings(docstring: str) -> dict[str, str]:
    r"""Return what a docstring says of the fields of its class.

    >>> _meanings("A word.\n\nArgs:\n    word: the\n        word.\n    images: number.")
    {'word': 'the word.', 'images': 'number.'}
    """
    _, _, after = docstring.partition("\nArgs:\n")
    fields = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", after, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in fields}


def _limits(schema: Document) -> str:
    """Return the least, the most and the default of a field in words."""
    found = []
    if "minimum" in schema and "maximum" in schema:
        found.append(f"{schema['minimum']:g} to {schema['maximum']:,g}")
    if "default" in schema:
        found.append(f"default {escape(str(schema['default']))}")
    return f"<small>({', '.join(found)})</small>" if found else ""


def _type(schema: Document) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type") or schema.get("$ref", "object").rpartition("/")[2])


def _resolve(schema: Document, document: Document) -> Document:
    """Return what a reference in the document means."""
    if "$ref" not in schema:
        return schema
    found: Document = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return (
        f'{heading}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _words(text: str) -> str:
    """Return a text as HTML; words between backquotes as code.

    >>> _words("the `id` of <b>")
    'the <code>id</code> of &lt;b&gt;'
    """
    pieces = escape(" ".join(text.split())).split("`")
    return "".join(
        f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces)
    )
