"""An opened index: one version of it, to be searched. Shapes: Q queries, D dims, K matches."""

import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from assay.data.dataset import Vectors
from assay.data.given import Given, GivenSamples
from assay.errors import BadInput
from assay.files import read_json
from assay.index.acceptance import Acceptance, gallery_of
from assay.index.calibration import Gallery
from assay.index.catalog import Catalog, Entry
from assay.index.encoder import Encoder, Runtime, check_model, load_encoder, loaded_model
from assay.index.manifest import (
    BACKEND,
    CALIBRATION,
    CATALOG,
    MANIFEST,
    MODELS,
    DamagedIndex,
    Manifest,
    check_sizes,
    read_manifest,
)
from assay.index.matches import Found, Match
from assay.index.opening import open_alive, open_calibration, open_vectors
from assay.index.queries import find_queries, names_of, prepared_queries
from assay.index.searcher import Nearest, Searcher, Where
from assay.index.settings import settled_backend
from assay.index.votes import Vote, vote
from assay.progress import Progress, silent
from assay.space import Value

if TYPE_CHECKING:
    from assay.embedder import Embedder

MOST_MATCHES = 10_000
"""Matches of a query that can be asked for, those on earlier pages among them."""

TRIES = 20
"""How often a version is opened that a writer replaces meanwhile."""

MORE = 4
"""How many times as many matches as voters are looked at."""


class Index:
    """One version of an index, open for searching from any number of threads.

    Other processes may write newer versions at the same time; this one stays as it is until it is
    closed. The model is loaded for the first query; a writer that changes the model removes it.

    >>> index = Index.build("as_is", np.eye(3, dtype=np.float32))
    >>> [match.id for match in index.search(np.array([0, 1, 0.5])).matches]
    ['1', '2', '0']
    >>> index.close()
    """

    def __init__(self, root: Path, manifest: Manifest, runtime: Runtime, device: str) -> None:
        self.root, self.manifest = root, manifest
        self.runtime, self.device = runtime, device
        check_sizes(root, manifest)
        folder = root / manifest.folder
        self.vectors = open_vectors(folder, manifest)
        self.alive = open_alive(folder, manifest)
        self._loading = threading.Lock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._calibrated = _stamp(root / CALIBRATION)
        self.calibration = open_calibration(root / CALIBRATION, manifest)
        effort = None if manifest.quality is None else manifest.quality.effort
        with ExitStack() as opened:
            self.catalog = opened.enter_context(closing(Catalog(folder / CATALOG)))
            declared = settled_backend(manifest)
            backend = opened.enter_context(closing(declared.open(folder / BACKEND, self.vectors)))
            self._searcher = Searcher(self.vectors, self.alive, self.catalog, backend, effort)
            self._files = opened.pop_all()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: "str | Path | Embedder | None" = None,
        device: str = "auto",
        runtime: Runtime = "torch",
    ) -> Self:
        """Open the present version of an index.

        Args:
            path: the folder of the index.
            model: the model that queries are to be embedded with, which has to be the one that
                embedded the images; None: the copy of it in the index.
            device: auto, cpu or cuda.
            runtime: the library that embeds queries: torch, or onnx after `assay export`.
        """
        root = Path(path)
        for _ in range(TRIES):
            manifest = read_manifest(root)
            try:
                found = cls(root, manifest, runtime, device)
            except (BadInput, OSError, RuntimeError):
                if read_manifest(root).version == manifest.version:
                    raise
                continue  # a writer has removed the version meanwhile
            if model is not None:
                try:
                    check_model(root, manifest, loaded_model(model, manifest.model.inputs, device))
                except BaseException:
                    found.close()
                    raise
            return found
        raise BadInput(f"{root} is written to all the time; try again")

    @classmethod
    def build(
        cls,
        model: "str | Path | Embedder",
        images: Given,
        out: str | Path | None = None,
        *,
        backend: str | None = None,
        settings: Mapping[str, Value] | None = None,
        device: str = "auto",
        progress: Progress = silent,
    ) -> Self:
        """Index images and open the index; where there is one already, add and update.

        Args:
            model: a model folder, the name of a pretrained trunk, a loaded model, or `as_is` for
                vectors as they are.
            images: a folder, `kind:path`, an .npz of vectors, or what `assay.embed` takes.
            out: the folder of the index; None: a temporary one, which is removed with the object.
            backend: how it searches, see `assay list backends`; None: exactly, or as the index that
                is there.
            settings: settings of the back end.
            device: auto, cpu or cuda.
            progress: called with the stage, the steps done and their total.
        """
        from assay.index.builder import Wanted, update

        temporary = None if out else tempfile.TemporaryDirectory(prefix="assay-index-")
        folder = Path(out) if out else Path(temporary.name) / "index"  # type: ignore[union-attr]
        wanted = Wanted(backend=backend, settings=settings or {})
        update(folder, model, images, wanted, device=device, progress=progress)
        found = cls.open(folder, device=device)
        found._temporary = temporary
        return found

    # --- Searching ---

    def search(
        self,
        query: Given,
        k: int = 10,
        *,
        where: Where | None = None,
        skip: int = 0,
        min_score: float | None = None,
        min_precision: float | None = None,
    ) -> Found:
        """Return the k images that are most similar to one query.

        Args:
            query: the path of an image, Pillow's image, pixels, or a row of features.
            k: number of matches.
            where: which images may be found; where k of them exist, k are found.
            skip: number of best matches to leave out, for the next page.
            min_score: the least score of a match.
            min_precision: the share of matches that are to be right, see `assay calibrate`; none is
                found where that cannot be reached.
        """
        if isinstance(query, np.ndarray) and query.ndim == 1:
            query = query[None]
        given = self.find_queries(query)
        if given.count != 1:
            raise BadInput(
                f"`search` takes one query, and {given.count} were given; use `search_many`"
            )
        (found,) = self.search_many(
            given,
            k,
            where=where,
            skip=skip,
            min_score=min_score,
            min_precision=min_precision,
        )
        return found

    def search_many(
        self,
        queries: Given | GivenSamples,
        k: int = 10,
        *,
        where: Where | None = None,
        skip: int = 0,
        min_score: float | None = None,
        min_precision: float | None = None,
        progress: Progress = silent,
    ) -> list[Found]:
        """Return the matches of many queries: a folder, `kind:path`, an .npz of vectors, a list of
        images or of paths, rows of features, or what `find_queries` returned.
        """
        given = self.find_queries(queries, progress)
        z, names = self.embed(given, progress), names_of(given)
        return self.search_vectors(
            z,
            k,
            where=where,
            skip=skip,
            min_score=min_score,
            min_precision=min_precision,
            names=names,
            progress=progress,
        )

    def search_like(
        self,
        id_: str,
        k: int = 10,
        *,
        where: Where | None = None,
        skip: int = 0,
        min_score: float | None = None,
        min_precision: float | None = None,
    ) -> Found:
        """Return the images that are most similar to one of the index, which is left out itself."""
        row = self.catalog.row_of(id_)
        if row is None:
            raise BadInput(f"{self.root} has no image with the id {id_!r}")
        least = self.acceptance.least_score(min_score, min_precision, itself=True)
        self._check(k, skip, 1)
        query = self.vectors.read(np.array([row]))
        nearest = self._searcher.nearest(query, k + skip + 1, where).without(row)
        (found,) = self._matches(nearest, skip, least, [id_], itself=True)
        return found

    def search_vectors(
        self,
        z: Vectors,
        k: int = 10,
        *,
        where: Where | None = None,
        skip: int = 0,
        min_score: float | None = None,
        min_precision: float | None = None,
        names: Sequence[str] | None = None,
        progress: Progress = silent,
    ) -> list[Found]:
        """Return the matches of embeddings (Q, D), or of packed bits where bits are stored."""
        least = self.acceptance.least_score(min_score, min_precision)
        self._check(k, skip, len(z))
        called = list(names) if names is not None else [str(row) for row in range(len(z))]
        queries = prepared_queries(z, self.manifest)
        nearest = self._searcher.nearest(queries, k + skip, where, progress)
        return self._matches(nearest, skip, least, called)

    def classify(
        self,
        queries: Given | GivenSamples,
        neighbours: int = 10,
        *,
        where: Where | None = None,
        min_score: float | None = None,
        min_precision: float | None = None,
        progress: Progress = silent,
    ) -> list[tuple[Found, Vote]]:
        """Return the nearest images of each query, and how they vote on its class.

        Matches below the least score, or the wanted precision, neither show nor vote; where none is
        left, the class is unknown.
        """
        label = self.manifest.label
        if label is None:
            raise BadInput(
                f"{self.root} has no column with the class of an image; name one when indexing:"
                " --label COLUMN"
            )
        least = self.acceptance.least_score(min_score, min_precision)
        # Copies and images without a word take places, and the first image after the voters is the
        # zero point of their weights.
        wide = min(MORE * neighbours, MOST_MATCHES)
        answers = []
        for found in self.search_many(queries, wide, where=where, progress=progress):
            contents = self.catalog.contents_of([match.id for match in found.matches])
            voted = vote(found, label, neighbours=neighbours, min_score=least, contents=contents)
            shown = tuple(match for match in found.matches[:neighbours] if match.score >= least)
            answers.append((replace(found, matches=shown), voted))
        return answers

    def find_queries(
        self,
        queries: Given | GivenSamples,
        progress: Progress = silent,
        *,
        skip_broken: bool = False,
    ) -> GivenSamples:
        """Return samples to search for, of the kind that the model of the index takes.

        Files that cannot be read are refused, or left out with `skip_broken`.
        """
        return find_queries(queries, self.manifest.model, progress, skip_broken=skip_broken)

    def embed(self, given: GivenSamples, progress: Progress = silent) -> Vectors:
        """Return embeddings of samples by the model of the index."""
        return self.encoder.embed_given(given, progress)

    # --- What is in it ---

    def entry(self, id_: str) -> Entry | None:
        """Return the image with this id, if there is one."""
        row = self.catalog.row_of(id_)
        return None if row is None else self.catalog.entries([row])[row]

    def file_of(self, id_: str) -> Path | None:
        """Return the file of an image, which may have been moved or changed since; None where it
        was no file, or would lie outside of the root.
        """
        if self.manifest.root is None:
            return None
        path = Path(self.manifest.root) / id_
        return path if path.resolve().is_relative_to(self._home) else None

    @cached_property
    def _home(self) -> Path:
        assert self.manifest.root is not None
        return Path(self.manifest.root).resolve()

    def __len__(self) -> int:
        return self.manifest.count

    def count(self, where: Where | None = None) -> int:
        """Return how many images pass a filter."""
        allowed = self._searcher.allowed(where)
        return len(self) if allowed is None else int(allowed.sum())

    @cached_property
    def acceptance(self) -> Acceptance:
        """Which scores are accepted, and how sure matches are."""
        return Acceptance(self.root, self.calibration, self.gallery)

    @cached_property
    def gallery(self) -> Gallery | None:
        """How many images a query is compared with, and how many of them show the same thing; None
        where that is not known.
        """
        label = self.manifest.label
        words = [] if label is None else self.catalog.words_of(label, len(self))
        return gallery_of(len(self), [count for _, count in words], self.calibration)

    @property
    def encoder(self) -> Encoder:
        """The model, which is loaded for the first query."""
        with self._loading:
            return self._encoder

    @cached_property
    def _encoder(self) -> Encoder:
        folder = self.root / MODELS / self.manifest.model.print
        if not folder.is_dir():
            if not self.is_current():
                raise BadInput(
                    f"{self.root} was made again with another model since it was opened; open it"
                    " again"
                )
            raise DamagedIndex(f"{folder} is missing: the index was altered")
        return load_encoder(folder, self.runtime, self.device)

    def is_current(self) -> bool:
        """Return whether neither a newer version nor another calibration has been put in place."""
        if _stamp(self.root / CALIBRATION) != self._calibrated:
            return False
        try:
            document = read_json(self.root / MANIFEST)
            same = (document["index"], document["version"])
            return bool(same == (self.manifest.index, self.manifest.version))
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def close(self) -> None:
        """Close all files."""
        self._files.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- Inside ---

    def _check(self, k: int, skip: int, queries: int) -> None:
        if k < 1 or skip < 0 or k + skip > MOST_MATCHES:
            after = f" after the first {skip:,}" if skip else ""
            raise BadInput(
                f"{k:,} matches{after} were asked for; a query has 1 to {MOST_MATCHES:,} in all"
            )

    def _matches(
        self,
        nearest: Nearest,
        skip: int,
        least: float,
        names: Sequence[str],
        *,
        itself: bool = False,
    ) -> list[Found]:
        """Return the nearest rows after the first `skip` as matches of queries with these names."""
        rows, scores = nearest.rows[:, skip:], nearest.scores[:, skip:]
        if self.manifest.similarity == "cosine":
            scores = scores.clip(-1, 1)  # unit vectors are rounded to single precision
        kept = (rows >= 0) & (scores >= least)
        entries = self.catalog.entries(np.unique(rows[kept]).tolist())
        confidence, home = self.acceptance.confidence(scores, itself=itself), self.manifest.root
        return [
            Found(
                name,
                tuple(
                    Match(
                        rank=skip + place + 1,
                        id=entries[row].id,
                        score=float(scores[query, place]),
                        confidence=None if confidence is None else float(confidence[query, place]),
                        words=entries[row].words,
                        path=None if home is None else Path(home, entries[row].id),
                    )
                    for place, row in enumerate(rows[query].tolist())
                    if kept[query, place]
                ),
            )
            for query, name in enumerate(names)
        ]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
