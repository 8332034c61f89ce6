"""The documents that the service sends, as JSON has them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A request that failed.

    Args:
        error: what is wrong, in words.
        remedy: what to do about it.
    """

    error: str
    remedy: str


@dataclass(frozen=True)
class ShownMatch:
    """An image that a search found.

    Args:
        rank: its place among all matches, from 1.
        id: its name in the index.
        score: how similar it is to the query; more is more similar.
        confidence: estimated probability that it shows the same thing; null: it is not known.
        words: its metadata by column.
        thumbnail: address of a small picture of it; null: it was not indexed from a file.
    """

    rank: int
    id: str
    score: float
    confidence: float | None
    words: Mapping[str, str]
    thumbnail: str | None


@dataclass(frozen=True)
class Answer:
    """The matches of a query.

    Args:
        query: name of the query.
        version: version of the index that was searched.
        matches: best first.
        more: whether there are further matches.
        seconds: time that the search took, decoding and embedding included.
    """

    query: str
    version: int
    matches: tuple[ShownMatch, ...]
    more: bool
    seconds: float


@dataclass(frozen=True)
class Word:
    """A word of a column of metadata.

    Args:
        word: the word.
        images: number of images that have it.
    """

    word: str
    images: int


@dataclass(frozen=True)
class Column:
    """A column of metadata.

    Args:
        name: its name.
        words: its most frequent words.
        complete: whether these are all of its words.
    """

    name: str
    words: tuple[Word, ...]
    complete: bool


@dataclass(frozen=True)
class Precision:
    """A least precision that the page offers.

    Args:
        precision: share of matches that are to be right.
        problem: why it cannot be asked for, for visitors of the page; null: it can be.
    """

    precision: float
    problem: str | None


@dataclass(frozen=True)
class Facts:
    """Facts about the index that is served, and the limits of a request.

    Args:
        name: name of its folder.
        version: its version.
        images: number of images that can be found.
        model: name of the model.
        about: method, data and the like of the model, in words.
        takes: what the model embeds: images, or vectors, which are searched by id only.
        similarity: how embeddings are compared.
        dim: numbers of an embedding.
        backend: name of the back end.
        recall_at_10: share of the 10 exact nearest images that it finds; null: it is exact.
        calibrated: whether the index is calibrated.
        precisions: precisions that the page offers, for uploaded images; none where the index is
            not calibrated.
        columns: columns of metadata.
        formats: formats of images that are read.
        endings: endings of the names of their files.
        most_bytes: bytes of the largest upload.
        most_pixels: pixels of the largest image.
        most_results: results of the largest page.
    """

    name: str
    version: int
    images: int
    model: str
    about: str
    takes: str
    similarity: str
    dim: int
    backend: str
    recall_at_10: float | None
    calibrated: bool
    precisions: tuple[Precision, ...]
    columns: tuple[Column, ...]
    formats: tuple[str, ...]
    endings: tuple[str, ...]
    most_bytes: int
    most_pixels: int
    most_results: int


@dataclass(frozen=True)
class Health:
    """Whether the service works.

    Args:
        ok: whether it takes requests.
        version: version of the index that is served.
        images: number of images that can be found.
        model: name of the model.
        backend: name of the back end.
        problem: why what is served is not the index as it is on the disk now; null: it is.
    """

    ok: bool
    version: int
    images: int
    model: str
    backend: str
    problem: str | None
