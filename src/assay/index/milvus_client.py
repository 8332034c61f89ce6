"""The client of Milvus: a collection in a file (milvus-lite), or on a server or cluster.

What listens where. Opened by file, pymilvus starts milvus-lite on a TCP port of 127.0.0.1 that asks
for no password: every user of the machine could read and change the vectors. Assay starts
milvus-lite itself, in this process, on a Unix socket in a folder that only this user may enter:
nothing listens on a network. A server, on the other hand, listens on all interfaces by default:
guard it by a firewall and a token.

An index names the address of its server, and may be a stranger's. So the token goes only to the
address that the user names in an environment variable, and over `http://`, which keeps nothing
secret on the way, only to this machine.
"""

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput, reason_of
from assay.files import write_atomically
from assay.hashing import pretty
from assay.index.backends.backend import Mask, Rows, StoredVectors
from assay.index.manifest import DamagedIndex
from assay.progress import Progress
from assay.protocols import Similarity
from assay.records.codec import Record

TOKEN = "ASSAY_MILVUS_TOKEN"
"""Environment variable with the token of a server, or `user:password`; it is written nowhere."""

PLACE = "ASSAY_MILVUS_PLACE"
"""Environment variable with the one address that the token may be sent to."""

RECORD, LITE_FILE = "milvus.json", "vectors.db"

STAGE = "filling Milvus"

OLDEST_SERVER = (2, 3)
"""The oldest version of a server that was tested, major and minor."""

CONNECT_SECONDS, CALL_SECONDS, INDEX_SECONDS = 10.0, 20.0, 3600.0
"""How long to wait for a connection, for an answer, and for a server that builds or loads."""

LEAST_WIDTH, MOST_WIDTH = 2, 32768
"""Numbers of a vector that Milvus can hold."""

MOST_FOUND = 16384
"""Rows that a search can ask for: a limit of Milvus."""

WIDEST = 32768
"""Most that HNSW's `ef` may be: a limit of Milvus."""

PORTION_BYTES, PORTION_ROWS = 8 << 20, 10_000
"""Most that is inserted at once: messages are limited to 64 MB."""

QUERIES = 100
"""Queries of one search: bounds the memory of milvus-lite, which compares each with all rows."""

FEW = 10_000
"""Allowed rows up to which exact search is faster than a call to a server (measured)."""

LONGEST_SOCKET = 100
"""Letters of the path of a Unix socket; Linux takes 107."""

METRICS: dict[Similarity, str] = {"cosine": "IP", "euclidean": "L2", "hamming": "HAMMING"}


@dataclass(frozen=True)
class Home(Record):
    """Where a structure is.

    Args:
        place: address of a server, or name of the file of milvus-lite.
        collection: name of the collection.
        held: rows that were inserted; those that were dead are not among them.
    """

    place: str
    collection: str
    held: int

    @property
    def is_server(self) -> bool:
        """Whether it is on a server, not in a file."""
        return is_address(self.place)

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read where the structure of a folder is; raise `DamagedIndex` for what was not written
        here.

        A record that was altered must not make Assay drop another collection of the server.
        """
        try:
            home = cls.read(folder / RECORD)
            check_place(home.place)
        except BadInput as error:
            raise DamagedIndex(f"{folder / RECORD} cannot be used: {error}") from None
        if not home.place or not re.fullmatch(r"assay_[0-9a-f]{16}", home.collection):
            raise DamagedIndex(f"{folder / RECORD} was altered")
        return home

    def write(self, folder: Path) -> None:
        """Write the record into the folder of a structure."""
        write_atomically(folder / RECORD, pretty(self.to_json()))


def check_place(place: str) -> None:
    """Raise `BadInput` unless a place is an address, empty, or the name of a file inside the index.

    >>> check_place("http://localhost:19530")
    >>> check_place("../outside.db")
    Traceback (most recent call last):
    ...
    assay.errors.BadInput: milvus:../outside.db: the file is kept inside of the index; ...
    """
    if not place:
        return
    if not is_address(place):
        if not place.endswith(".db"):
            raise BadInput(
                f"milvus:{place} is no place; give the address of a server, as in"
                " milvus:http://localhost:19530, or leave it empty for a file inside of the index"
            )
        if Path(place).name != place:
            raise BadInput(
                f"milvus:{place}: the file is kept inside of the index; give a name without folders"
            )
        return
    try:
        parts = urlsplit(place)
        whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise BadInput("the address of Milvus has no valid host and port; write http://host:port")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput(
            "the address of Milvus would be written into the index with what should stay secret;"
            f" write http://host:port, and put the token, or user:password, into {TOKEN}"
        )


def is_address(place: str) -> bool:
    """Return whether a place is the address of a server."""
    return place.lower().startswith(("http://", "https://"))


def is_named(place: str) -> bool:
    """Return whether the user named the address of a server in the environment."""
    return os.environ.get(PLACE, "") == place


def token_for(place: str) -> str:
    """Return the token for a server; empty: none is set.

    Raise `BadInput` where one is set that may not be sent to this address.
    """
    token = os.environ.get(TOKEN, "")
    if not token:
        return ""
    if not is_named(place):
        raise BadInput(
            f"{TOKEN} is set, and is sent only to the address in {PLACE}, which is not {place}; set"
            f" {PLACE}={place} if that server may have the token, else unset {TOKEN}"
        )
    if not place.lower().startswith("https://") and not _is_this_machine(place):
        raise BadInput(
            f"{TOKEN} would be sent to {place} in the clear; use an https:// address, or unset"
            f" {TOKEN}"
        )
    return token


def _is_this_machine(place: str) -> bool:
    host = urlsplit(place).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def width_of(vectors: StoredVectors) -> int:
    """Return the dimensions that Milvus counts: numbers, or bits."""
    return vectors.width * (8 if vectors.similarity == "hamming" else 1)


class Connection:
    """A client of Milvus and one collection; `started` ends what was started for them."""

    def __init__(self, client: Any, home: Home, started: ExitStack) -> None:
        self.client, self.place, self.collection = client, home.place, home.collection
        self.is_server = home.is_server
        self._started = started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, and end what was started for it."""
        self._started.close()

    def create(self, vectors: StoredVectors) -> None:
        """Create the collection, empty."""
        from pymilvus import DataType

        kind = DataType.BINARY_VECTOR if vectors.similarity == "hamming" else DataType.FLOAT_VECTOR
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("vector", kind, dim=width_of(vectors))
        with _explaining(self.place, "creating a collection"):
            self.client.create_collection(
                self.collection, schema=schema, consistency_level="Strong", timeout=CALL_SECONDS
            )

    def insert(
        self, vectors: StoredVectors, alive: Mask | None, start: int, progress: Progress
    ) -> int:
        """Insert the rows from `start` on that are alive; return how many there are."""
        total = len(vectors)
        numbers = np.arange(start, total) if alive is None else np.flatnonzero(alive)
        numbers = numbers[numbers >= start]
        size = max(1, min(PORTION_ROWS, PORTION_BYTES // (vectors.width * vectors.rows.itemsize)))
        packed = vectors.similarity == "hamming"
        for first in range(0, len(numbers), size):
            portion = numbers[first : first + size]
            rows = vectors.read(portion)
            data = [
                {"row": number, "vector": row.tobytes() if packed else row}
                for number, row in zip(portion.tolist(), rows, strict=True)
            ]
            with _explaining(self.place, "inserting vectors"):
                self.client.insert(self.collection, data, timeout=CALL_SECONDS)
            progress(STAGE, int(portion[-1]) + 1, total)
        if len(numbers):
            with _explaining(self.place, "writing vectors to disk"):
                self.client.flush(self.collection, timeout=INDEX_SECONDS)
        return len(numbers)

    def declare(self, structure: dict[str, Any]) -> None:
        """Build the structure that is searched."""
        indexes = self.client.prepare_index_params()
        indexes.add_index("vector", **structure)
        with _explaining(self.place, "building its structure"):
            self.client.create_index(self.collection, indexes, timeout=INDEX_SECONDS)

    def holds(self, home: Home, rows: int) -> bool:
        """Return whether the collection has all that was inserted of the first rows.

        The count waits for all that was written before. Later searches need not wait again (0.2 s
        each): these rows do not change any more. milvus-lite has the rows of one version only, and
        would read all of them to count under a condition.
        """
        with _explaining(self.place, "looking for a collection"):
            if not self.client.has_collection(self.collection, timeout=CALL_SECONDS):
                return False
        condition = f"row < {rows}" if self.is_server else ""
        return home.held <= rows and self.count(condition) == home.held

    def count(self, condition: str) -> int:
        """Return the number of rows for which a condition holds."""
        with _explaining(self.place, "counting rows"):
            self.client.load_collection(self.collection, timeout=INDEX_SECONDS)
            found = self.client.query(
                self.collection,
                filter=condition,
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=CALL_SECONDS,
            )
        return int(found[0]["count(*)"])

    def search(self, queries: NDArray[Any], k: int, width: int, vectors: StoredVectors) -> Rows:
        """Return the nearest rows (Q, K) that Milvus finds, -1 where there are fewer.

        There are none where the collection is gone, because a writer has replaced this version.
        """
        packed = vectors.similarity == "hamming"
        parameters = {"metric_type": METRICS[vectors.similarity]}
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        for start in range(0, len(queries), QUERIES):
            part = queries[start : start + QUERIES]
            with _explaining(self.place, "searching"):
                try:
                    answer = self.client.search(
                        self.collection,
                        data=[one.tobytes() for one in part] if packed else list(part),
                        anns_field="vector",
                        limit=k,
                        filter=f"row < {len(vectors)}" if self.is_server else "",
                        output_fields=["row"],
                        search_params=parameters | {"params": {} if packed else {"ef": width}},
                        consistency_level="Bounded",
                        timeout=CALL_SECONDS,
                    )
                except _library().MilvusException:
                    if self.client.has_collection(self.collection, timeout=CALL_SECONDS):
                        raise
                    return rows
            for number, hits in enumerate(answer, start):
                rows[number, : len(hits.ids)] = hits.ids
        return rows

    def drop(self) -> None:
        """Drop the collection, if it is there; raise `BadInput` where Milvus does not answer."""
        with _explaining(self.place, "dropping a collection", BadInput):
            self.client.drop_collection(self.collection, timeout=CALL_SECONDS)


def connect(home: Home, folder: Path) -> Connection:
    """Return a connection to a server, or to milvus-lite over a file in the folder itself."""
    with ExitStack() as started:
        if not home.is_server:
            return _lite(home, folder / home.place, started)
        token, library = token_for(home.place), _library()
        try:
            client = library.MilvusClient(
                home.place,
                token=token,
                timeout=CONNECT_SECONDS,
                dedicated=True,
            )
            started.callback(client.close)
            version = client.get_server_version(timeout=CONNECT_SECONDS)
        except _failures() as error:
            raise BadInput(
                f"no Milvus answers at {home.place} ({_reason(error)}); start it, correct the"
                f" address, or set {TOKEN} to its token and {PLACE} to its address"
            ) from None
        numbers = re.match(r"v?(\d+)\.(\d+)", version)
        if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_SERVER:
            raise BadInput(
                f"Milvus at {home.place} is {version}; Assay needs"
                f" {'.'.join(map(str, OLDEST_SERVER))} or newer: update the server"
            )
        return Connection(client, home, started.pop_all())


def connect_to_copy(home: Home, folder: Path) -> Connection:
    """Return a connection to milvus-lite over a copy of the file."""
    source = folder / home.place
    if not source.is_dir():
        raise DamagedIndex(f"{source} is missing")
    with ExitStack() as started:
        room = started.enter_context(tempfile.TemporaryDirectory(prefix="assay-"))
        copy = shutil.copytree(source, Path(room) / LITE_FILE)
        return _lite(home, copy, started)


def _lite(home: Home, data: Path, started: ExitStack) -> Connection:
    """Start milvus-lite in this process on a Unix socket, and connect to it."""
    library = _library()
    try:
        from milvus_lite.adapter.grpc.server import (  # type: ignore[import-untyped]
            start_server_in_thread,
        )
    except ImportError:
        raise BadInput(
            "a file of Milvus needs milvus-lite: pip install 'assay-dml[milvus]'"
        ) from None
    # Only this user may enter the folder.
    room = started.enter_context(tempfile.TemporaryDirectory(prefix="assay-"))
    socket = f"unix:{room}/socket"
    if len(os.fsencode(socket)) > LONGEST_SOCKET:
        raise BadInput(
            f"the path of a socket in {room} is too long; set TMPDIR to a shorter folder"
        )
    try:
        # It joins host and port by a colon: both together are the socket's name.
        server, database, _ = start_server_in_thread(str(data), host=socket, port=0)
        started.callback(database.close)
        started.callback(lambda: server.stop(grace=0).wait())
        client = library.MilvusClient(f"{socket}:0", timeout=CONNECT_SECONDS, dedicated=True)
        started.callback(client.close)
    except OSError:
        raise
    except Exception as error:  # each kind of damage raises another exception in milvus-lite
        raise DamagedIndex(f"{data} cannot be opened by milvus-lite ({_reason(error)})") from error
    return Connection(client, home, started.pop_all())


def _library() -> Any:
    """Return pymilvus; raise `BadInput` where it is not installed."""
    try:
        import pymilvus
    except ImportError:
        raise BadInput(
            "this back end needs pymilvus: pip install 'assay-dml[milvus]', or use --backend exact"
        ) from None
    for name in ("pymilvus", "milvus_lite"):
        # It prints each error with its trace; the errors raised here say the same.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus


def _failures() -> tuple[type[Exception], ...]:
    """Return the kinds of exceptions by which pymilvus says that a call failed."""
    import grpc  # type: ignore[import-untyped]

    return (_library().MilvusException, grpc.RpcError, grpc.FutureTimeoutError)


@contextmanager
def _explaining(place: str, task: str, kind: type[Exception] = RuntimeError) -> Iterator[None]:
    """Raise an error with the place and the remedy where a call fails or takes too long."""
    try:
        yield
    except _failures() as error:
        raise kind(
            f"Milvus at {place} failed at {task}: {_reason(error)}; see that it runs and has room,"
            " and try again"
        ) from error


def _reason(error: Exception) -> str:
    """Return in one line why a call failed."""
    details = getattr(error, "details", None)
    words = details() if callable(details) else getattr(error, "message", None)
    said = " ".join(str(words or reason_of(error)).split())
    return said if len(said) <= 200 else f"{said[:200]}..."
