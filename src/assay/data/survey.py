"""A survey of a data set before training: its classes and sizes, and its problems. Shapes: N
samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np

from assay.data.copies import find_copies, find_near
from assay.data.dataset import Dataset, Items, Labels, Marks
from assay.data.image_files import ImageFiles
from assay.data.load import inspect
from assay.data.relations import RelationKind
from assay.data.sources.glyphs import Drawings
from assay.progress import Progress, silent
from assay.protocols import Modality

TINY = 32
"""Pixels of the short side below which a photo is reported as tiny."""

LONG_SIDE = 5
"""Long side over short side above which an image is reported as long: its central square shows less
than a fifth of it.
"""

BARS = 12
TAIL = 20
"""Samples of the largest class over the median above which the bars of the histogram double in
width.
"""

OFTEN = 3


@dataclass(frozen=True)
class Spread:
    """Number of samples of the classes: least, quartiles, most and mean."""

    least: int
    first_quartile: float
    median: float
    third_quartile: float
    most: int
    mean: float


@dataclass(frozen=True)
class Bar:
    """A bar of the histogram: the number of classes with `least` to `most` samples."""

    least: int
    most: int
    classes: int


@dataclass(frozen=True)
class Size:
    """A size in pixels, upright, and the number of images that have it."""

    width: int
    height: int
    images: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of the smallest, the median and the largest image by area, and the most common
    sizes.
    """

    smallest: Size
    median: Size
    largest: Size
    commonest: tuple[Size, ...]


@dataclass(frozen=True)
class Unreadable:
    """A sample that cannot be used, and why."""

    sample: str
    problem: str


@dataclass(frozen=True)
class Copies:
    """Samples with the same or nearly the same content, and the class of each."""

    samples: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """A sample with the size of its image."""

    sample: str
    width: int
    height: int


@dataclass(frozen=True)
class Problems:
    """Problems of a data set.

    Args:
        unreadable: samples that cannot be used.
        leaks: the same content in trainval and in the test half.
        ambiguous: the same content under two or more classes, leaks among them.
        repeats: the same content several times in one class.
        near: pairs of photos or vectors that look nearly the same but differ in content.
        tiny: photos whose short side is below `TINY` pixels.
        long: images whose long side is more than `LONG_SIDE` times the short one.
        single: classes with one sample.
    """

    unreadable: tuple[Unreadable, ...]
    leaks: tuple[Copies, ...]
    ambiguous: tuple[Copies, ...]
    repeats: tuple[Copies, ...]
    near: tuple[Copies, ...]
    tiny: tuple[Shape, ...]
    long: tuple[Shape, ...]
    single: tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """Numbers of queries and gallery samples that the data set names in its test half.

    Args:
        queries: samples that are looked up.
        gallery: samples that queries are looked up in.
        both: samples that are both.
        neither: samples that are not used.
        unanswerable: queries without another sample of their class in the gallery.
    """

    queries: int
    gallery: int
    both: int
    neither: int
    unanswerable: int


@dataclass(frozen=True)
class Listed:
    """Pairs or triplets that the data set lists.

    Args:
        kind: pairs or triplets.
        count: how many there are.
        in_trainval: how many name samples of trainval alone, and can be trained on.
    """

    kind: RelationKind
    count: int
    in_trainval: int


@dataclass(frozen=True)
class Survey:
    """Classes, sizes and problems of a data set.

    Args:
        name: name of the data set.
        modality: drawings, photos or features.
        inputs: channels of an image, or width of a vector.
        classes: number of classes.
        samples: number of samples.
        samples_per_class: None where there is no class.
        histogram: of the samples per class, from few to many.
        classes_with_one_sample: number of such classes.
        sizes: of the images that can be read; None where there are none, or sizes are not known.
        roles: None where the data set names no queries and gallery.
        listed: None where the data set lists no pairs or triplets.
        metadata: number of different words of each further column.
        notes: what was left out on loading.
        problems: what is wrong with the data.
    """

    name: str
    modality: Modality
    inputs: int
    classes: int
    samples: int
    samples_per_class: Spread | None
    histogram: tuple[Bar, ...]
    classes_with_one_sample: int
    sizes: Sizes | None
    roles: Roles | None
    listed: Listed | None
    metadata: dict[str, int]
    notes: tuple[str, ...]
    problems: Problems


def survey(data: str | Dataset, progress: Progress = silent) -> Survey:
    """Survey a data set before anything is trained on it: its classes, image sizes and problems.

    Every sample is checked, in both halves. Samples that cannot be used are among the problems;
    they raise nothing.

    Args:
        data: a name or kind:path, as for `assay bench --data`, or a data set from `assay.data`.
        progress: is called while image files are checked.

    >>> found = survey("glyphs")
    >>> found.modality, found.classes > 300, found.problems.unreadable
    ('drawing', True, ())
    """
    dataset = inspect(data, progress) if isinstance(data, str) else data
    per_class = np.bincount(dataset.labels, minlength=len(dataset.class_names))
    sizes = _sizes(dataset.items, len(dataset))
    problems = _problems(dataset, per_class, sizes)
    return Survey(
        name=dataset.name,
        modality=dataset.modality,
        inputs=dataset.items.inputs,
        classes=len(dataset.class_names),
        samples=len(dataset),
        samples_per_class=_spread(per_class) if len(per_class) else None,
        histogram=histogram(per_class),
        classes_with_one_sample=len(problems.single),
        sizes=_ranked(sizes[sizes.min(axis=1) > 0]),
        roles=_roles(dataset),
        listed=_listed(dataset),
        metadata={column: len(set(words)) for column, words in dataset.metadata.items()},
        notes=dataset.notes,
        problems=problems,
    )


def histogram(per_class: Labels) -> tuple[Bar, ...]:
    """Return at most `BARS` bars of even width, or bars that double in width where few classes have
    very many samples.

    >>> [(bar.least, bar.most, bar.classes) for bar in histogram(np.array([1, 3, 3]))]
    [(1, 1, 1), (2, 2, 0), (3, 3, 2)]
    """
    if not len(per_class):
        return ()
    least, most = int(per_class.min()), int(per_class.max())
    edges = _edges(least, most, float(np.median(per_class)))
    counts = np.histogram(per_class, edges)[0].tolist()
    return tuple(
        Bar(max(begin, least), min(end - 1, most), classes)
        for (begin, end), classes in zip(pairwise(edges), counts, strict=True)
    )


def _edges(least: int, most: int, median: float) -> list[int]:
    """Return where each bar begins, and where the last one ends."""
    if most > TAIL * median:
        return [
            2**power if power >= 0 else 0
            for power in range(least.bit_length() - 1, most.bit_length() + 1)
        ]
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    width = next(width for width in widths if most // width - least // width < BARS)
    return list(range(least // width * width, (most // width + 1) * width + 1, width))


def _spread(per_class: Labels) -> Spread:
    first, median, third = np.quantile(per_class, (0.25, 0.5, 0.75)).tolist()
    return Spread(
        int(per_class.min()), first, median, third, int(per_class.max()), float(per_class.mean())
    )


def _sizes(items: Items, samples: int) -> Labels:
    """Return width and height of each image (N, 2); 0 where it cannot be read, is no image, or its
    size is not known.
    """
    if isinstance(items, ImageFiles):
        return items.sizes
    height, width = items.pixels.shape[1:3] if isinstance(items, Drawings) else (0, 0)
    return np.tile(np.array([width, height], dtype=np.int64), (samples, 1))


def _ranked(sizes: Labels) -> Sizes | None:
    if not len(sizes):
        return None
    found, counts = np.unique(sizes, axis=0, return_counts=True)
    known = [
        Size(width, height, images)
        for (width, height), images in zip(found.tolist(), counts.tolist(), strict=True)
    ]
    known.sort(key=lambda size: (size.width * size.height, size.width))
    middle = int(
        np.searchsorted(np.cumsum([size.images for size in known]), len(sizes) // 2, side="right")
    )
    commonest = sorted(known, key=lambda size: -size.images)[:OFTEN]
    return Sizes(known[0], known[middle], known[-1], tuple(commonest))


def _roles(dataset: Dataset) -> Roles | None:
    if dataset.query is None and dataset.gallery is None:
        return None
    test: Marks = dataset.labels >= dataset.first_test_class
    query, gallery = (
        test if marks is None else test & marks for marks in (dataset.query, dataset.gallery)
    )
    relevant = (
        np.bincount(dataset.labels[gallery], minlength=len(dataset.class_names))[dataset.labels]
        - gallery
    )
    found = query, gallery, query & gallery, test & ~query & ~gallery, query & (relevant == 0)
    return Roles(*(int(marks.sum()) for marks in found))


def _listed(dataset: Dataset) -> Listed | None:
    given = dataset.relations
    if given is None:
        return None
    in_trainval = given.within(np.flatnonzero(dataset.labels < dataset.first_test_class))
    return Listed(given.kind, len(given), len(in_trainval))


def _problems(dataset: Dataset, per_class: Labels, sizes: Labels) -> Problems:
    reasons = {row: reason for row in range(len(dataset)) if (reason := dataset.items.problem(row))}
    copies = find_copies(dataset, reasons)
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    tiny = (short > 0) & (short < TINY) & (dataset.modality == "photo")
    return Problems(
        unreadable=tuple(Unreadable(dataset.ids[row], reason) for row, reason in reasons.items()),
        leaks=tuple(_named(dataset, rows) for rows in copies.leaks),
        ambiguous=tuple(_named(dataset, rows) for rows in copies.ambiguous),
        repeats=tuple(_named(dataset, rows) for rows in copies.repeats),
        near=tuple(_named(dataset, rows) for rows in find_near(dataset)),
        tiny=_shapes(dataset, sizes, tiny),
        long=_shapes(dataset, sizes, long > LONG_SIDE * short),
        single=tuple(
            dataset.class_names[label] for label in np.flatnonzero(per_class == 1).tolist()
        ),
    )


def _named(dataset: Dataset, rows: Sequence[int]) -> Copies:
    classes = tuple(dataset.class_names[dataset.labels[row]] for row in rows)
    return Copies(tuple(dataset.ids[row] for row in rows), classes)


def _shapes(dataset: Dataset, sizes: Labels, marked: Marks) -> tuple[Shape, ...]:
    return tuple(
        Shape(dataset.ids[row], *sizes[row].tolist()) for row in np.flatnonzero(marked).tolist()
    )
