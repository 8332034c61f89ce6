"""Who may use the service: which hosts and origins a request may name, and the token.

A page of another site can send requests to a service on this machine, from the browser of anyone
who visits it. It cannot choose the headers `Host`, `Origin` and `Sec-Fetch-Site`: they show where a
request comes from.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs

from assay.web.refusal import Refusal
from assay.web.settings import Settings, is_loopback

COOKIE = "assay_token"

OPEN = ("/static/",)
"""Beginnings of the paths that need no token: the code and the looks of the pages."""

PAGES = ("/", "/docs")
"""Paths of pages, which take the token once from their address."""


class Guard:
    """Checks where a request comes from and what it brings.

    Args:
        settings: settings of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._public = settings.is_public
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.host_names)}
        self._token = None if settings.token is None else _digest(settings.token)
        self._cookie = None if settings.token is None else _cookie_for(settings.token)

    @property
    def cookie(self) -> str:
        """The header by which a browser keeps a proof of the token, which no script can read."""
        return f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"

    def check_source(self, headers: Mapping[str, str]) -> None:
        """Raise `Refusal` for a foreign host or origin."""
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Refusal(
                421,
                "the service is not known by the name in this address",
                "use its own address, or allow the name with --host-name",
                "host",
            )
        origin = headers.get("origin")
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
        foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
        if foreign or (site in ("cross-site", "same-site") and mode != "navigate"):
            raise Refusal(
                403,
                "the request comes from a page of another site",
                "use the page of the service itself",
                "origin",
            )

    def check_token(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise `Refusal` where a token is needed and the request brings none, or a wrong one."""
        if self._token is None or path.startswith(OPEN):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(_digest(given.strip()), self._token):
            return
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            assert self._cookie is not None
            if name == COOKIE and hmac.compare_digest(_digest(value), _digest(self._cookie)):
                return
        raise Refusal(
            401,
            "this service needs a token",
            "open the address with ?token=..., or send the header Authorization: Bearer ...",
            "token",
        )

    def brings_token(self, method: str, path: str, query: str) -> bool:
        """Return whether the address of a page brings the right token."""
        if self._token is None or method != "GET" or path not in PAGES or "token=" not in query:
            return False
        given = parse_qs(query, max_num_fields=None).get("token", [""])[0]
        return hmac.compare_digest(_digest(given), self._token)

    def _is_own(self, host: str) -> bool:
        """Return whether the service may be called by this host, with any port.

        An address in numbers is no danger: a foreign name that leads here is what is refused.
        """
        name = _without_port(host.lower())
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self._public or is_loopback(str(address))


def _without_port(host: str) -> str:
    """Return the name or address in the header `Host`.

    >>> _without_port("localhost:8000"), _without_port("[::1]:80"), _without_port("a:b:c")
    ('localhost', '[::1]', 'a:b:c')
    """
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and ("]" in name or ":" not in name) else host


def _digest(text: str) -> bytes:
    """Return the hash of a secret: of one length, so that comparing takes one time."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _cookie_for(token: str) -> str:
    return hmac.new(token.encode(), b"assay serve: cookie", "sha256").hexdigest()
