"""The service as a process: its socket, patience with slow clients, and its end."""

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.errors import BadInput, reason_of
from assay.index import Index
from assay.progress import Say
from assay.web.app import create_app
from assay.web.service import Service
from assay.web.settings import Settings, is_loopback

log = logging.getLogger("assay.web")

INTERRUPTED = 130


def serve(open_index: Callable[[], Index], settings: Settings, say: Say) -> int:
    """Serve an index until SIGTERM or Ctrl-C; return the exit code.

    It is 0 where all requests in flight were answered, 130 where a second Ctrl-C cut them short,
    and 1 where one took longer than the settings allow.

    Args:
        open_index: opens the present version of the index.
        settings: settings of the service.
        say: called with the address, once it can be opened.
    """
    settings.check()
    with _listening(settings) as listening:
        app = create_app(open_index, settings)
        service: Service = app.state.service
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            loop="asyncio",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.seconds)),
        )
        server = Server(config, service, lambda: say(_address(listening, settings)))
        server.run(sockets=[listening])
    code = INTERRUPTED if server.force_exit else 0
    return code if service.is_idle else _leave_work_behind(code or 1)


class PatientProtocol(H11Protocol):
    """A connection that is closed where its client is too slow.

    uvicorn waits for ever for the head of a first request, and for a client to read its response.
    """

    head_seconds: ClassVar[float] = 10.0
    """Time that a client has to send the head of a request, from the end of the one before."""

    unread_seconds: ClassVar[float] = 20.0
    """Time after which a client is given up that does not read its response."""

    most_connections: ClassVar[int] = 500
    """Connections that are kept open at once; further ones are closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, or refuse it where there are too many."""
        super().connection_made(transport)
        self.access_log = False  # it would hold the token of an address
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most_connections:
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on, as the client has read."""
        super().resume_writing()
        self._stop_unread()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is not used; its client may never read the rest."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.unread_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_unread()

    def _watch(self) -> None:
        """Give the client a time for the head of its next request, however it sends it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Server(uvicorn.Server):
    """uvicorn's server, which answers what is in flight before it closes its socket.

    Args:
        config: uvicorn's configuration.
        service: the service.
        ready: called when requests can be sent.
    """

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, answer those in flight, and close."""
        self._service.stopping = True
        waiting = self._service.settings.seconds
        while self._service.metrics.in_flight and waiting > 0 and not self.force_exit:
            await asyncio.sleep(0.05)
            waiting -= 0.05
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGTERM and Ctrl-C; uvicorn would send them again, so that the process dies."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end; a second Ctrl-C hurries it."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Yield a socket that listens; raise `BadInput` where the address cannot be used."""
    host, port = settings.host.strip("[]"), settings.port
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise BadInput(
            f"--host {host}: {reason_of(error)}; give an address of this machine, such as 127.0.0.1"
        ) from None
    if is_loopback(host) and not is_loopback(str(address[0])):
        raise BadInput(f"--host {host} leads to {address[0]}, not to this machine; give 127.0.0.1")
    with socket.socket(family, kind, number) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(512)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BadInput(
                    f"port {port} of {host} is in use; stop what uses it, or give another port with"
                    " --port (0: a free one)"
                ) from None
            raise BadInput(
                f"port {port} of {host} cannot be used ({reason_of(error)}); give another --host or"
                " --port"
            ) from None
        yield listening


def _address(listening: socket.socket, settings: Settings) -> str:
    """Return the address for a browser."""
    host, port = listening.getsockname()[:2]
    name = settings.host_names[0] if settings.host_names and settings.is_public else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def _leave_work_behind(code: int) -> NoReturn:
    """Leave at once: Python would wait for threads that are still at work, however long."""
    log.error("a request was cut short")
    logging.shutdown()
    os._exit(code)
