"""Identification with unknowns: queries of which some have no image of their class in the gallery.

The classes are split into known and unknown ones. Half of the images of a known class are enrolled,
the others are queries, and so are all images of unknown classes. The prediction for a query is the
class of the most similar enrolled image, its confidence the rounded similarity.

- Detection and identification rate at a rate f of false alarms (Phillips, Grother and Micheals
  2011, Handbook of Face Recognition, chapter 21): share of queries of known classes that are
  predicted rightly with at least the lowest confidence that at most a share f of the unknown ones
  has. Each class counts equally.
- Global average precision, or micro-AP (Perronnin, Liu and Renders 2009, CVPR): all predictions
  ranked by confidence, 1/M sum_i P(i) rel(i), where M counts the queries of known classes. Each
  query counts equally.

The order of equal numbers never matters: predictions of equal confidence enter the ranking
together, so P(i) counts all of them; and where images of two classes are equally similar, the
prediction is wrong.

Shapes: Q queries, G groups of classes, E enrolled images, S splits, F rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import BadInput
from assay.index.calibration.calibration import Limits
from assay.index.calibration.limits import Floats
from assay.index.calibration.pair_scores import PairScores, Whole
from assay.progress import Progress, silent
from assay.protocols import Similarity
from assay.records.codec import Record

RATES = 0.01, 0.1
"""Rates of false alarms at which the detection and identification rate is given."""

SPLITS = 10
GROUPS = 20
"""Groups of classes that are left out in turn, for intervals over classes."""

FEWEST = 20
"""Classes of two images, without which there are not 10 known and 10 unknown ones."""


@dataclass(frozen=True)
class OpenSet(Record):
    """Identification with unknowns, the mean over splits of the classes, with 95% limits over
    classes.

    Args:
        gap: global average precision.
        rates: rates of false alarms.
        detected: detection and identification rate at each of them; None: the unknown queries are
            too few to show such a rate.
        known: classes in the gallery.
        unknown: classes that are not.
        queries: queries of known classes in a split.
        impostors: queries of unknown classes in a split.
        splits: number of splits.
    """

    gap: Limits
    rates: tuple[float, ...]
    detected: tuple[Limits | None, ...]
    known: int
    unknown: int
    queries: int
    impostors: int
    splits: int


def evaluate_open_set(
    z: ArrayLike,
    y: ArrayLike,
    similarity: Similarity,
    *,
    rates: Sequence[float] = RATES,
    splits: int = SPLITS,
    seed: int = 0,
    progress: Progress = silent,
) -> OpenSet:
    """Evaluate identification with unknowns on classes that the model was not trained on.

    Limits are by the jackknife over groups of classes: each group is left out of all splits in
    turn, from gallery and queries.

    Args:
        z: embeddings (N, D), as an index stores them; rows of uint8 are packed bits.
        y: labels (N,), compared by equality.
        similarity: cosine, euclidean or hamming.
        rates: rates of false alarms.
        splits: how often the classes are split, each time in another way.
        seed: of the splits.
        progress: called with a stage, the splits done and their total.
    """
    for rate in rates:
        if not 0 < rate < 1:
            raise BadInput(f"a rate of false alarms lies between 0 and 1, got {rate}")
    _, labels, sizes = np.unique(np.asarray(y), return_inverse=True, return_counts=True)
    several = np.flatnonzero(sizes > 1)
    if len(several) < FEWEST:
        raise BadInput(
            f"{len(several)} classes have two images; identification with unknowns needs at least"
            f" {FEWEST}, half of them unknown: give more classes"
        )
    chosen = np.isin(labels, several)
    z, labels = np.asarray(z)[chosen], np.unique(labels[chosen], return_inverse=True)[1]
    pairs = PairScores.of(z, similarity)
    draw = np.random.default_rng(seed)
    groups = draw.permutation(len(several)) % min(GROUPS, len(several))
    many = int(groups.max()) + 1
    scores = np.empty((splits, many + 1, 1 + len(rates)))
    for split in range(splits):
        predicted = _split(pairs, labels, groups, draw)
        for left_out in range(many + 1):  # the last leaves out none
            scores[split, left_out] = _scores(predicted.without(left_out), rates)
        progress("open set", split + 1, splits)
    means = scores.mean(axis=0)
    limits = [
        _jackknife(means[:-1, place], float(means[-1, place])) for place in range(1 + len(rates))
    ]
    impostors = int((predicted.own_group < 0).sum())
    known = len(several) // 2
    return OpenSet(
        gap=limits[0],
        rates=tuple(rates),
        detected=tuple(
            limit if _is_shown(rate, impostors * (1 - 1 / many)) else None
            for rate, limit in zip(rates, limits[1:], strict=True)
        ),
        known=known,
        unknown=len(several) - known,
        queries=len(predicted.own_group) - impostors,
        impostors=impostors,
        splits=splits,
    )


def _is_shown(rate: float, impostors: float) -> bool:
    """Return whether at least ten false alarms are expected at this rate."""
    return rate * impostors >= 10


# --- a split --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions:
    """The best prediction for each query.

    Args:
        confidence: similarity of the best enrolled image.
        right: whether it is of the query's class, and no image of another class is as similar.
        known: whether the query's class is in the gallery.
        classes: the query's class.
    """

    confidence: Floats
    right: NDArray[np.bool_]
    known: NDArray[np.bool_]
    classes: Whole


@dataclass(frozen=True)
class _Split:
    """The best similarity of each query to its own class, and to the others of each group."""

    own_Q: Floats
    others_QG: Floats
    classes: Whole
    group: Whole
    own_group: Whole

    def without(self, left_out: int) -> Predictions:
        """Return the predictions where a group of classes is in neither gallery nor queries."""
        kept = self.group != left_out
        others = (
            np.delete(self.others_QG[kept], left_out, axis=1)
            if (left_out < self.others_QG.shape[1])
            else self.others_QG[kept]
        )
        other_Q, own_Q = others.max(axis=1), self.own_Q[kept]
        return Predictions(
            np.maximum(own_Q, other_Q),
            own_Q > other_Q,
            self.own_group[kept] >= 0,
            self.classes[kept],
        )


def _split(pairs: PairScores, y: Whole, groups: Whole, draw: np.random.Generator) -> _Split:
    count = int(y.max()) + 1
    known = np.zeros(count, dtype=np.bool_)
    known[draw.permutation(count)[: count // 2]] = True
    order = draw.permutation(len(y))
    rank = np.empty(len(y), dtype=np.int64)  # of a sample in its class, in random order
    by_class = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y)
    rank[by_class] = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    enrolled = np.flatnonzero(known[y] & (rank < sizes[y] // 2))
    queries = np.setdiff1d(np.arange(len(y)), enrolled)
    enrolled = enrolled[np.argsort(groups[y[enrolled]], kind="stable")]
    others_QG = np.full((len(queries), int(groups.max()) + 1), -np.inf)
    own_Q = np.full(len(queries), -np.inf)
    for start in range(0, len(queries), 1024):
        rows = slice(start, start + 1024)
        s_QE = pairs.between(queries[rows], enrolled).astype(np.float64)
        same_QE = y[queries[rows], None] == y[enrolled]
        own_Q[rows] = np.where(same_QE, s_QE, -np.inf).max(axis=1)
        s_QE[same_QE] = -np.inf
        for group in np.unique(groups[y[enrolled]]).tolist():
            others_QG[rows, group] = s_QE[:, groups[y[enrolled]] == group].max(axis=1)
    own_group = np.where(known[y[queries]], groups[y[queries]], -1)
    return _Split(own_Q, others_QG, y[queries], groups[y[queries]], own_group)


# --- scores ---------------------------------------------------------------------------------------


def global_average_precision(confidence: ArrayLike, right: ArrayLike, known: int) -> float:
    """Return GAP: 1/M sum_i P(i) rel(i) over predictions ranked by confidence.

    Predictions of equal confidence enter together, so their order does not matter.

    Args:
        confidence: of each prediction.
        right: whether it is right.
        known: M, the number of queries of known classes.

    >>> global_average_precision([0.9, 0.8, 0.7], [True, False, True], known=2).__round__(4)
    0.8333
    >>> global_average_precision([0.9, 0.8, 0.8], [True, False, True], known=2).__round__(4)
    0.8333
    >>> global_average_precision([0.5, 0.5], [True, False], known=1)
    0.5
    """
    confidence, right = np.asarray(confidence, dtype=float), np.asarray(right, dtype=bool)
    values, place = np.unique(-confidence, return_inverse=True)
    ranked = np.bincount(place, minlength=len(values)).cumsum()
    rights = np.bincount(place, weights=right, minlength=len(values))
    return float((rights.cumsum() / np.maximum(ranked, 1) * rights).sum() / known)


def detection_rate(predictions: Predictions, rate: float) -> float:
    """Return the detection and identification rate at a rate of false alarms; NaN without unknowns
    or without known classes.
    """
    known, unknown = predictions.known, ~predictions.known
    if not known.any() or not unknown.any():
        return float("nan")
    weights = _class_weights(predictions.classes[unknown])
    order = np.argsort(-predictions.confidence[unknown], kind="stable")
    alarms = predictions.confidence[unknown][order]
    shares = weights[order].cumsum()
    last_of_equals = np.append(alarms[1:] < alarms[:-1], True)
    too_many = last_of_equals & (shares > rate + 1e-12)
    least = alarms[np.argmax(too_many)] if too_many.any() else -np.inf  # accept above this only
    detected = predictions.right[known] & (predictions.confidence[known] > least)
    return float((_class_weights(predictions.classes[known]) * detected).sum())


def _class_weights(classes: Whole) -> Floats:
    """Return weights of queries, by which each class counts equally; they add up to 1."""
    _, place, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    return np.asarray(1 / (sizes[place] * len(sizes)))


def _scores(predictions: Predictions, rates: Sequence[float]) -> list[float]:
    known = int(predictions.known.sum())
    gap = global_average_precision(predictions.confidence, predictions.right, known)
    return [gap, *(detection_rate(predictions, rate) for rate in rates)]


def _jackknife(left_out: Floats, value: float) -> Limits:
    """Return a score with its limits from the scores without each group of classes."""
    many = len(left_out)
    from scipy import special

    from assay.stats.intervals import ALPHA

    deviation = float(np.sqrt((many - 1) / many * np.square(left_out - left_out.mean()).sum()))
    half = float(special.stdtrit(many - 1, 1 - ALPHA / 2)) * deviation
    return Limits(value, max(value - half, 0.0), min(value + half, 1.0))
