"""What every request passes: counting, checks of where it comes from, and headers for browsers."""

import logging
import time
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.web.guard import PAGES, Guard
from assay.web.metrics import Metrics
from assay.web.refusal import Refusal

log = logging.getLogger("assay.web")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What a page may load: files and answers of this service, and pictures that its user picked."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

HEALTH = "/api/health"

ROUTES = (
    "/",
    "/docs",
    "/openapi.json",
    "/metrics",
    "/api/search",
    "/api/index",
    "/api/thumbnail",
    HEALTH,
)
"""Routes that are counted by their name; all others are counted together."""

CUT = 499
"""Status in the log of a request that was not answered, as its client had left."""

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")

WELCOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={path}">
<title>Assay</title>
<p><a href="{path}">Continue</a></p>
"""
"""The page that follows an address with a token. A redirect would not do: after a link on another
site the browser would not send the new cookie with it.
"""

REFUSED = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Assay</title>
<link rel="stylesheet" href="/static/style.css">
<body class="docs">
<main><h1>{}</h1><p>{}</p></main>
"""
"""The page for people whose request is refused before it reaches the application."""


class Gate:
    """Wraps the application.

    Args:
        app: the application.
        guard: checks where requests come from.
        metrics: counts them.
        is_stopping: returns whether the service is shutting down.
    """

    def __init__(
        self, app: ASGIApp, guard: Guard, metrics: Metrics, is_stopping: Callable[[], bool]
    ) -> None:
        self._app, self._guard, self._metrics = app, guard, metrics
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self._is_stopping():
                    headers["connection"] = "close"
            await send(message)

        self._metrics.in_flight += 1
        try:
            early = self._answer_early(scope)
            await (early or self._app)(scope, receive, sending)
        except ClientDisconnect:
            status = CUT
        except Exception:
            log.exception("%s %s failed", scope["method"], ascii(scope["path"]))
            if status:
                raise
            failed = Refusal(500, "the service failed", "read its log", "failed")
            await failed.response(self._metrics.reject)(scope, receive, sending)
        finally:
            self._metrics.in_flight -= 1
            self._count(scope, status, time.perf_counter() - started)

    def _answer_early(self, scope: Scope) -> Response | None:
        """Return the answer to a request that the application is not to see."""
        headers: Mapping[str, str] = Headers(scope=scope)
        path, method = scope["path"], scope["method"]
        try:
            self._guard.check_source(headers)
            if self._guard.brings_token(method, path, scope["query_string"].decode("latin-1")):
                welcome = WELCOME.format(path=escape(path))
                kept = {"set-cookie": self._guard.cookie, "cache-control": "no-store"}
                return Response(welcome, headers=kept, media_type="text/html")
            self._guard.check_token(path, headers)
            if self._is_stopping() and path != HEALTH:
                raise Refusal(503, "the service is shutting down", "try again later", "stopping")
        except Refusal as refusal:
            response = refusal.response(self._metrics.reject)
            if path in PAGES and "text/html" in headers.get("accept", ""):
                problem = refusal.problem
                page = REFUSED.format(_sentence(problem.error), _sentence(problem.remedy))
                return Response(page, refusal.status, refusal.headers, media_type="text/html")
            return response
        return None

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"]
        route = path if path in ROUTES else "/static" if path.startswith("/static/") else "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        status = status or CUT
        self._metrics.observe(route, method, status, seconds)
        if route in ("/", "/api/search") or status >= 400:
            # The query is left out: it may hold the token.
            shown: Any = path if route != "other" else ascii(path[:100])
            log.info("%s %s %d %.0f ms", method, shown, status, 1000 * seconds)


def _sentence(text: str) -> str:
    """Return a text as a sentence of HTML.

    >>> _sentence("send <b>")
    'Send &lt;b&gt;.'
    """
    return escape(f"{text[:1].upper()}{text[1:]}.")
