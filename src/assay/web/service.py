"""What the routes of the service share: the index, room for work, counts."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from fastapi import Response

from assay.data.dataset import Pixels
from assay.data.images import FORMATS, endings
from assay.errors import BadInput
from assay.index import Found, Index, Manifest, parse_where
from assay.index.calibration import TooFew
from assay.web.admission import LATER, Admission, Uploads
from assay.web.asked import MOST_RESULTS, Asked, read_asked
from assay.web.documents import Answer, Column, Facts, Health, Precision, ShownMatch, Word
from assay.web.metrics import Metrics
from assay.web.pictures import Thumbnails, decode_upload
from assay.web.refusal import Refusal, answer_json, refusal_of
from assay.web.served_index import ServedIndex
from assay.web.settings import MEGA, Settings

log = logging.getLogger("assay.web")

T = TypeVar("T")

PRECISIONS = (0.8, 0.9, 0.95, 0.99)
"""Precisions that the page offers, where the index is calibrated."""

MOST_WORDS = 100
"""Words of a column that the page offers as filters."""

REFRESH_SECONDS = 1.0
"""How often it is checked whether there is a newer version of the index."""

THUMBNAIL_WORKERS, THUMBNAIL_QUEUE = 2, 512

UPLOADS_TOGETHER = 256 * MEGA
"""Bytes of all uploads that are held in memory at once."""


class Service:
    """What the routes need: the index, room for work, counts.

    Args:
        open_index: opens the present version of the index.
        settings: settings of the service.
    """

    def __init__(self, open_index: Callable[[], Index], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.index = ServedIndex(open_index, log.warning)
        self.searches = Admission("search", settings.workers, settings.queue)
        self.pictures = Admission("thumbnail", THUMBNAIL_WORKERS, THUMBNAIL_QUEUE)
        self.uploads = Uploads(settings.most_bytes, UPLOADS_TOGETHER)
        self.thumbnails = Thumbnails()
        self.stopping = False
        self._facts: tuple[Manifest, Facts] | None = None

    def answer(self, content_type: str, body: Sequence[bytes]) -> Response:
        """Answer a search: read the question, decode and embed the image, search."""
        started = time.perf_counter()
        asked = read_asked(content_type, body)
        pixels = (
            None
            if asked.image is None
            else decode_upload(asked.image, asked.called, self.settings.most_pixels)
        )

        def search(index: Index) -> Answer:
            found = _search(index, asked, pixels, parse_where(asked.where))
            return Answer(
                asked.called if asked.id is None else asked.id,
                index.manifest.version,
                tuple(_shown(found, asked.k)),
                len(found.matches) > asked.k,
                time.perf_counter() - started,
            )

        return answer_json(self._ask(search))

    def thumbnail(self, id_: str, known: str | None) -> Response:
        """Return the thumbnail of an image of the index, or say that the browser has it already."""
        found = self._ask(lambda index: self.thumbnails.find(index, id_))
        tag = f'"{found.tag}"'
        headers = {"etag": tag, "cache-control": "private, max-age=60, must-revalidate"}
        if known == tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type="image/jpeg")

    def facts(self) -> Facts:
        """Return facts about the index, gathered once for each version."""
        with self.index.using() as index:
            if self._facts is not None and self._facts[0] is index.manifest:
                return self._facts[1]
        self._facts = self._ask(lambda index: (index.manifest, _facts(index, self.settings)))
        return self._facts[1]

    def health(self) -> Health:
        """Return whether the service works."""
        with self.index.using() as index:
            manifest = index.manifest
        return Health(
            not self.stopping,
            manifest.version,
            manifest.count,
            Path(manifest.model.name).name,
            manifest.backend,
            self.index.problem,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no thread works for a request."""
        return not (self.searches.taken or self.pictures.taken)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return the values that Prometheus reads beside the counts."""
        health = self.health()
        return {
            "assay_search_queue_length": ("Searches that wait.", self.searches.waiting),
            "assay_searches_admitted": ("Searches that run or wait.", self.searches.taken),
            "assay_upload_bytes": ("Bytes of uploads in memory.", self.uploads.held),
            "assay_thumbnail_cache_bytes": ("Bytes of thumbnails kept.", self.thumbnails.bytes),
            "assay_index_version": ("Version of the index.", health.version),
            "assay_index_images": ("Images that can be found.", health.images),
            "assay_index_problem": (
                "1 where what is served is not the index as it is on the disk.",
                float(health.problem is not None),
            ),
        }

    async def watch(self) -> None:
        """Put newer versions of the index in place, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await asyncio.to_thread(self.index.refresh)
            except Exception:
                log.exception("looking for a newer version of the index failed")

    def _ask(self, work: Callable[[Index], T]) -> T:
        """Return what `work` returns for the index; raise `Refusal` for what it cannot use."""
        try:
            return self.index.search(work)
        except BadInput as error:
            with self.index.using() as index:
                refusal = refusal_of(error, index.root)
            if refusal.status == 500:
                log.error("%s", error)
            raise refusal from error
        except RuntimeError as error:  # such as that of a Milvus server that does not answer
            log.error("the index cannot be searched at present", exc_info=error)
            raise Refusal(
                503,
                "the index cannot be searched at present",
                f"{LATER}; the log of the service says why",
                "failed",
            ) from error

    def close(self) -> None:
        """Give back threads and files."""
        self.searches.close()
        self.pictures.close()
        self.index.close()


def _search(
    index: Index, asked: Asked, pixels: Pixels | None, where: Mapping[str, Sequence[str]]
) -> Found:
    """Search for one match more than was asked for, which shows whether there are more."""
    wanted = asked.k + 1
    if asked.id is not None:
        if index.entry(asked.id) is None:
            raise Refusal(404, "the index has no image with this id", "search again")
        return index.search_like(
            asked.id,
            wanted,
            where=where,
            skip=asked.skip,
            min_score=asked.min_score,
            min_precision=asked.min_precision,
        )
    assert pixels is not None, "a question has an id or an image"
    if index.manifest.model.takes != "images":
        raise Refusal(400, "this index was made from vectors, not from images", "search with an id")
    return index.search(
        pixels,
        wanted,
        where=where,
        skip=asked.skip,
        min_score=asked.min_score,
        min_precision=asked.min_precision,
    )


def _shown(found: Found, k: int) -> list[ShownMatch]:
    return [
        ShownMatch(
            match.rank,
            match.id,
            match.score,
            match.confidence,
            match.words,
            None if match.path is None else f"/api/thumbnail?id={quote(match.id, safe='')}",
        )
        for match in found.matches[:k]
    ]


def _precision(index: Index, share: float) -> Precision:
    """Return whether a precision can be asked for, or why not."""
    try:
        least = index.acceptance.least_score(None, share)
    except TooFew:
        return Precision(share, "this index is calibrated on too few classes for this precision")
    except BadInput:
        return Precision(
            share, "it is not known how many images of this index show what a query shows"
        )
    if math.isinf(least):
        return Precision(share, "no match in this index is sure enough for this precision")
    return Precision(share, None)


def _facts(index: Index, settings: Settings) -> Facts:
    manifest, calibrated = index.manifest, index.calibration is not None
    columns = []
    for name in index.catalog.columns:
        words = index.catalog.words_of(name, MOST_WORDS + 1)
        shown = tuple(Word(word, images) for word, images in words[:MOST_WORDS])
        columns.append(Column(name, shown, len(words) <= MOST_WORDS))
    return Facts(
        name=index.root.resolve().name,
        version=manifest.version,
        images=manifest.count,
        model=Path(manifest.model.name).name,
        about=manifest.model.about,
        takes=manifest.model.takes,
        similarity=manifest.similarity,
        dim=manifest.model.dim,
        backend=manifest.backend,
        recall_at_10=None if manifest.quality is None else manifest.quality.recall_at_10,
        calibrated=calibrated,
        precisions=tuple(_precision(index, share) for share in PRECISIONS if calibrated),
        columns=tuple(columns),
        formats=tuple(FORMATS),
        endings=tuple(sorted(endings())),
        most_bytes=settings.most_bytes,
        most_pixels=settings.most_pixels,
        most_results=MOST_RESULTS,
    )
