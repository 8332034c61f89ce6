"""The service over a small index of coloured shapes, in this process or as one of its own."""

import contextlib
import functools
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
from PIL import Image, ImageDraw

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.index import Entry, Found, Match
from assay.web import Settings, create_app
from assay.web.server import PatientProtocol, Server, uvicorn

COLOURS = {"red": "#d22", "green": "#2a3", "blue": "#25d", "gold": "#ec2"}
SHAPES = ("disc", "square")


def draw(colour, shape, seed=0, side=96):
    """Draw a coloured shape on grey; the seed moves it."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (side, side), "#888")
    left, top = (int(x) for x in random.integers(4, side // 3, 2))
    right, bottom = left + side // 2, top + side // 2
    pencil = ImageDraw.Draw(image)
    form = pencil.ellipse if shape == "disc" else pencil.rectangle
    form((left, top, right, bottom), fill=COLOURS[colour])
    return image


def png(image, **options):
    stream = BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


def make_pictures(folder, each=3):
    """Write pictures into a folder for each colour."""
    for colour in COLOURS:
        (folder / colour).mkdir(parents=True, exist_ok=True)
        for shape in SHAPES:
            for seed in range(each):
                draw(colour, shape, seed).save(folder / colour / f"{shape} {seed}.png")
    return folder


def histogram(pixels):
    """Return how often each coarse colour occurs, as a vector of unit length."""
    coarse = (np.asarray(pixels, dtype=np.int64) // 64) @ np.array([16, 4, 1])
    counts = np.bincount(coarse.ravel(), minlength=64).astype(float)
    return counts / np.linalg.norm(counts)


@functools.cache
def _read(path, changed):
    return digest_file(path), histogram(Image.open(path))


class FakeIndex:
    """An index with the interface of `assay.index.Index`, of colour histograms.

    `fail` is an error that every search raises; `searches` is how many have begun; `unshown` has
    the error, or the score, of a precision.
    """

    def __init__(self, pictures, version=1, *, takes="images", calibrated=False):
        self.pictures = Path(pictures)
        self.root = self.pictures.with_name("birds-index")
        self.root.mkdir(exist_ok=True)
        (self.root / "index.json").touch()
        self.entries, self.vectors = {}, {}
        for path in sorted(self.pictures.rglob("*.png")):
            id_ = path.relative_to(self.pictures).as_posix()
            words = {"colour": path.parent.name, "shape": path.name.split()[0]}
            content, self.vectors[id_] = _read(path, path.stat().st_mtime_ns)
            self.entries[id_] = Entry(id_, content, words)
        model = SimpleNamespace(
            name="/home/somebody/models/histogram",
            takes=takes,
            similarity="cosine",
            dim=64,
            about="counts of colours",
        )
        self.manifest = SimpleNamespace(
            version=version,
            root=str(self.pictures),
            count=len(self.entries),
            model=model,
            similarity="cosine",
            backend="hnsw",
            quality=SimpleNamespace(recall_at_10=0.987),
        )
        self.calibration = object() if calibrated else None
        self.catalog = self.acceptance = self
        self.unshown = {}
        self.current, self.closed = True, 0
        self.fail, self.searches = None, 0
        self._go_on = threading.Event()
        self._go_on.set()

    @contextlib.contextmanager
    def holding(self):
        """Let searches wait until the block is left."""
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()

    # --- as a catalog ---

    columns = ("colour", "shape")

    def words_of(self, column, most):
        found = [entry.words[column] for entry in self.entries.values()]
        return sorted(((word, found.count(word)) for word in set(found)), key=lambda w: -w[1])[
            :most
        ]

    # --- as an index ---

    def search(self, query, k=10, **options):
        assert isinstance(query, np.ndarray) and query.dtype == np.uint8
        return self._matches("query", histogram(query), k, None, **options)

    def search_like(self, id_, k=10, **options):
        return self._matches(id_, self.vectors[id_], k, id_, **options)

    def least_score(self, score, precision):
        found = self.unshown.get(precision, precision)
        if isinstance(found, Exception):
            raise found
        return found

    def _matches(
        self, name, z, k, leave_out, *, where=None, skip=0, min_score=None, min_precision=None
    ):
        assert not self.closed
        self.searches += 1
        assert self._go_on.wait(60)
        if self.fail:
            raise self.fail
        assert not self.closed, "the index was closed during a search"
        for column in where or {}:
            if column not in self.columns:
                raise BadInput(f"the index has no column {column!r} (it has colour, shape)")
        if min_precision and not self.calibration:
            raise BadInput("the index is not calibrated; run `assay calibrate`")
        scored = [
            (float(z @ vector), id_)
            for id_, vector in self.vectors.items()
            if id_ != leave_out
            and all(self.entries[id_].words[name] in words for name, words in (where or {}).items())
        ]
        scored.sort(key=lambda pair: (-pair[0], pair[1]))
        least = max(-1 if least is None else least for least in (min_score, min_precision))
        kept = [(s, i) for s, i in scored if s > least]
        return Found(
            name,
            tuple(
                Match(
                    rank,
                    id_,
                    score,
                    round(min(score, 1.0), 3) if self.calibration else None,
                    self.entries[id_].words,
                    self.file_of(id_),
                )
                for rank, (score, id_) in enumerate(kept[skip : skip + k], start=skip + 1)
            ),
        )

    def entry(self, id_):
        return self.entries.get(id_)

    def file_of(self, id_):
        return self.pictures / id_

    def is_current(self):
        return self.current

    def close(self):
        self.closed += 1


SMALL = Settings(port=0, workers=2, queue=64, seconds=20)


@dataclass
class Served:
    """A service that runs, and a client for it."""

    app: object
    client: httpx.Client
    server: Server
    port: int

    @property
    def service(self):
        return self.app.state.service

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def search(self, image=None, *, name="query.png", **fields):
        """Search by an uploaded image (as bytes), or by fields only."""
        files = None if image is None else {"image": (name, image, "image/png")}
        return self.client.post("/api/search", data=fields, files=files)


@contextlib.contextmanager
def serving(open_index, settings=SMALL, protocol=PatientProtocol):
    """Run the service in a thread of this process, on a free port of the loopback."""
    app = create_app(open_index, settings)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        app, http=protocol, loop="asyncio", ws="none", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=5,
    )  # fmt: skip
    ready = threading.Event()
    server = Server(config, app.state.service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(30)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield Served(app, client, server, port)
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


def wait_until(condition, seconds=30):
    """Wait until a condition holds; fail where it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


def with_settings(**changes):
    return replace(SMALL, **changes)


@contextlib.contextmanager
def process(*words):
    """Run Python with these words; yield the process and the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            yield running, running.stdout.readline()
        finally:
            if running.poll() is None:
                running.kill()
            running.communicate()


def build_index(pictures, out):
    """Index pictures by an untrained network, which tells colours apart; return the folder."""
    import torch

    from assay.embedder import Embedder
    from assay.index import Index
    from assay.model import Architecture, untrained_model

    torch.manual_seed(0)
    model = untrained_model(Architecture("conv", 3, 32, 0), "none").eval()
    embedder = Embedder(model, {"trunk": "conv"}, torch.device("cpu"))
    Index.build(embedder, str(pictures), out).close()
    return out


def calibrate_index(folder, classes=12, same=6):
    """Calibrate an index as if on vectors around so few centres, where little can be shown."""
    from assay.index.calibration import AskedGallery, Calibrated, calibrate
    from assay.index.manifest import read_manifest

    random, y = np.random.default_rng(0), np.repeat(np.arange(classes), 6)
    z = random.normal(size=(classes, 16))[y] + 0.5 * random.normal(size=(len(y), 16))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    of = Calibrated(read_manifest(folder).model.print, "cosine", "float32", "shapes", "all")
    found = calibrate(z.astype(np.float32), y, of)
    replace(found, asked=AskedGallery(None, same)).write(folder / "calibration.json")
    return folder
