"""How the service is run: where it listens, who may use it, and how much a request may cost."""

import ipaddress
import re
from dataclasses import dataclass

from assay.data.images import MOST_PIXELS
from assay.errors import BadInput

MEGA = 1_000_000

SHORTEST_TOKEN = 16
"""Characters of the shortest token that is taken: a shorter one could be guessed."""


@dataclass(frozen=True)
class Settings:
    """Settings of the service.

    Args:
        host: address that it listens on.
        port: port that it listens on; 0: a free one.
        token: secret that every request must bring; None: no secret.
        allow_public: whether it may listen on an address that other machines reach.
        host_names: names by which it may be called, beside those of this machine.
        most_bytes: bytes of the largest upload.
        most_pixels: pixels of the largest image that is decoded for a search.
        workers: searches that are computed at once.
        queue: searches that may wait for a worker.
        seconds: time that a request may take, and that its upload may take.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allow_public: bool = False
    host_names: tuple[str, ...] = ()
    most_bytes: int = 20 * MEGA
    most_pixels: int = 50 * MEGA
    workers: int = 2
    queue: int = 64
    seconds: float = 30

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach the address."""
        return not is_loopback(self.host)

    def check(self) -> None:
        """Raise `BadInput` for settings that are unsafe or make no sense."""
        if self.is_public and not self.allow_public:
            raise BadInput(
                f"--host {self.host}: other machines could reach the service; pass --allow-public"
                " and --token, or leave out --host"
            )
        if self.is_public and not self.token:
            raise BadInput(
                "--allow-public: without a token anybody who reaches the service could search the"
                f" images; pass --token with at least {SHORTEST_TOKEN} characters, or set"
                " ASSAY_TOKEN"
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            count = len(self.token)
            raise BadInput(
                f"--token: it has {count} character{'s' * (count != 1)}, which could be guessed;"
                f" give at least {SHORTEST_TOKEN}"
            )
        if self.token is not None and not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", self.token):
            raise BadInput(
                "--token: it has characters that cannot stand in an HTTP header; use letters,"
                " digits and - . _ ~ + / ="
            )
        for name in self.host_names:
            if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", name):
                raise BadInput(f"--host-name {name}: give a name without port, such as find.local")
        if not 0 < self.most_pixels <= MOST_PIXELS:
            raise BadInput(f"most_pixels is {self.most_pixels:,}; give 1 to {MOST_PIXELS:,}")
        limits = {
            "--port": (self.port, 0, 65535),
            "--max-upload": (self.most_bytes / MEGA, 0.001, 1000),
            "--workers": (self.workers, 1, 64),
            "--queue": (self.queue, 0, 10_000),
            "--timeout": (self.seconds, 0.1, 3600),
        }
        for option, (value, least, most) in limits.items():
            if not least <= value <= most:
                raise BadInput(f"{option} {value:g}: give {least:g} to {most:g}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
