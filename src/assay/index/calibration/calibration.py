"""From pairs of validation samples to thresholds, and to a confidence for each match.

Shapes: C classes, K thresholds, S scores.

A calibration holds two shares for each threshold t: `found`, of pairs of one class, and `false`, of
pairs of two classes, that have a score of at least t. Each class counts equally, and each pair of
classes: large classes do not dominate. In a gallery of M images, of which m share the query's
class, the precision of accepted matches is

    m found(t) / (m found(t) + (M - m) false(t))

so one calibration serves galleries of any size, as far as its classes are like those of the
gallery, and are enough to estimate false(t). Limits are over classes, since pairs with a class in
common are not independent.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from assay.errors import BadInput
from assay.files import write_atomically
from assay.hashing import digest, pretty
from assay.index.calibration.curve import Curve
from assay.index.calibration.limits import Floats
from assay.protocols import Similarity
from assay.records.codec import BadRecord, Record, read_document

CALIBRATION_FORMAT = 1

FEWEST_CLASSES = 10
"""Classes with two images each without which limits over classes mean nothing, and classes with an
accepted pair without which no estimate is given.
"""

Choice = Literal["cautious", "estimate"]
"""Which threshold: where the lower limit of the precision is as wanted, or its estimate is."""

AGAIN = "; calibrate again: assay calibrate INDEX --data DATA"


class TooFew(BadInput):
    """A threshold that so few classes cannot give."""


@dataclass(frozen=True)
class Gallery:
    """The images that a query is compared with.

    Args:
        images: how many there are.
        same: how many of them are of the query's class, the mean over queries; queries of which
            there is none count 0.
    """

    images: float
    same: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.images) and 0 < self.same < self.images):
            raise BadInput(
                f"a gallery of {self.images:g} images of which {self.same:g} are of the query's"
                " class: give more than 0 and fewer than all (--same, --images)"
            )

    @property
    def others(self) -> float:
        """Images of other classes for each one of the query's class."""
        return (self.images - self.same) / self.same


@dataclass(frozen=True)
class Limits(Record):
    """An estimate with its 95% limits over classes.

    Args:
        value: the estimate.
        low: its lower limit.
        high: its upper limit.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Threshold(Record):
    """A score from which matches are accepted.

    Args:
        score: matches of at least this score are accepted.
        low: the threshold if the false matches were as rare as they may be.
        high: the threshold if they were as frequent as they may be; None: none would do.
        precision: share of accepted matches that are right; None: no gallery was given.
        found: share of true matches that are accepted.
        false: share of pairs of two classes that are accepted.
        classes: classes with an accepted true match.
        confusions: pairs of classes with an accepted false match.
        choice: cautious or estimate.
    """

    score: float
    low: float
    high: float | None
    precision: Limits | None
    found: Limits
    false: Limits
    classes: int
    confusions: int
    choice: Choice


@dataclass(frozen=True)
class Calibrated(Record):
    """What was calibrated, and on what.

    Args:
        model: hash of the model's weights and architecture.
        similarity: how its embeddings are compared.
        stored: type of the stored numbers: float32, float16 or bits.
        data: name of the data set.
        split: the part of it, in words.
    """

    model: str
    similarity: Similarity
    stored: str
    data: str
    split: str


@dataclass(frozen=True)
class AskedGallery(Record):
    """What the user said of the images that a query is compared with.

    Args:
        images: how many there are; None: nothing was said.
        same: how many of them are of the query's class; None: nothing was said.
    """

    images: int | None
    same: float | None


@dataclass(frozen=True)
class Calibration(Record):
    """Thresholds and confidences of one model, from classes that it was not trained on.

    Args:
        of: the model and the data.
        classes: classes with two different images.
        singles: classes with one, which are only confused with others.
        images: images, without copies.
        copies: images that were left out since they are copies.
        same_pairs: pairs of images of one class.
        other_pairs: pairs of images of two classes.
        same: other images of a query's class in the validation data, the mean over all classes;
            singles count 0.
        curve: what is accepted at each threshold.
        written_by: version of Assay.
        asked: the gallery that thresholds are for, where the user said it; None: the index's own.
    """

    of: Calibrated
    classes: int
    singles: int
    images: int
    copies: int
    same_pairs: int
    other_pairs: int
    same: float
    curve: Curve
    written_by: str = ""
    asked: AskedGallery | None = None

    @property
    def gallery(self) -> Gallery:
        """The validation data themselves: each image is looked up in all others."""
        return Gallery(self.images - 1, self.same)

    # --- thresholds -------------------------------------------------------------------------------

    def threshold_for_precision(
        self, precision: float, gallery: Gallery | None = None, choice: Choice = "cautious"
    ) -> Threshold | None:
        """Return the lowest threshold with this precision; None: no threshold reaches it.

        Raise `TooFew` where the estimate reaches it, but so few classes do not show it.

        Args:
            precision: wanted share of accepted matches that are right.
            gallery: the images that queries are compared with; None: as in the validation data.
            choice: `cautious`: the lower 95% limit of the precision is as wanted, so that it is
                reached in about 39 of 40 calibrations; `estimate`: the estimate is, so that it is
                reached in about half of them.
        """
        if not 0 < precision < 1:
            raise BadInput(f"a precision lies between 0 and 1, got {precision}")
        gallery = gallery or self.gallery
        most = (1 - precision) / precision / gallery.others
        estimates = _ratio(np.array(self.curve.false), np.array(self.curve.found))
        highs = np.array(self.curve.ratio_high)
        what = f"a precision of {precision:g} in a gallery of {gallery.images:,.0f} images"
        reached = (estimates <= most) & (np.array(self.curve.classes) >= FEWEST_CLASSES)
        if not reached.any():
            return None
        # Less than one false match would be no estimate.
        allowed = np.array(self.curve.found) * most
        by_estimate = _first(reached & (allowed >= self.curve.one_more))
        found = by_estimate if choice == "estimate" else _first(highs <= most)
        if found is None:
            least = float(highs.min()) if choice == "cautious" else self._least_ratio()
            reason = (
                "the lower limit of what they show does not reach it"
                if choice == "cautious"
                else "fewer false matches would be allowed than one pair of classes alone can give"
            )
            raise TooFew(
                f"{self.classes} classes are too few to show {what}: {reason};"
                f" {_most_shown(1 / (1 + gallery.others * least))}; give at least about"
                f" {self._needed(least / most):,} classes, or ask for a lower precision"
            )
        ends = np.array(self.curve.ratio_low) <= most, highs <= most
        return self._threshold(found, ends, gallery, choice)

    def threshold_for_false_matches(
        self, rate: float, gallery: Gallery | None = None, choice: Choice = "cautious"
    ) -> Threshold | None:
        """Return the lowest threshold that accepts at most this share of the pairs of two classes.

        None where no threshold does. Raise `TooFew` where so few classes cannot show so low a rate.

        Args:
            rate: wanted share of the pairs of two classes that are accepted.
            gallery: for the precision at the threshold.
            choice: `cautious`: the upper 95% limit of the rate is as wanted; `estimate`: the
                estimate is.
        """
        if not 0 < rate < 1:
            raise BadInput(f"a rate of false matches lies between 0 and 1, got {rate}")
        false, highs = np.array(self.curve.false), np.array(self.curve.false_high)
        if not (false <= rate).any():
            return None
        supported = rate >= self.curve.one_more
        by_estimate = _first(false <= rate) if supported else None
        found = by_estimate if choice == "estimate" else _first(highs <= rate)
        if found is None:
            least = float(highs.min()) if choice == "cautious" else self.curve.one_more
            raise TooFew(
                f"{self.classes} classes are too few to show a false-match rate of {rate:g}: the"
                f" lowest that they can show is {least:.2g}; give at least about"
                f" {self._needed(least / rate):,} classes, or ask for a higher rate"
            )
        ends = np.array(self.curve.false_low) <= rate, highs <= rate
        return self._threshold(found, ends, gallery, choice)

    def _least_ratio(self) -> float:
        """Return the least ratio of false to true matches of which an estimate can be given."""
        found = np.array(self.curve.found)
        ratio = _ratio(np.maximum(np.array(self.curve.false), self.curve.one_more), found)
        return float(ratio[np.array(self.curve.classes) >= FEWEST_CLASSES].min())

    def _needed(self, factor: float) -> int:
        """Return how many classes would give `factor` times as many pairs of classes."""
        return math.ceil((self.classes + self.singles) * math.sqrt(max(factor, 1)))

    def _threshold(
        self, place: int, ends: tuple[Any, Any], gallery: Gallery | None, choice: Choice
    ) -> Threshold:
        curve = self.curve
        low, high = (_first(enough) for enough in ends)
        return Threshold(
            score=curve.scores[place],
            low=curve.scores[place if low is None else min(low, place)],
            high=None if high is None else curve.scores[max(high, place)],
            precision=None if gallery is None else self._precision(place, gallery),
            found=Limits(curve.found[place], curve.found_low[place], curve.found_high[place]),
            false=Limits(curve.false[place], curve.false_low[place], curve.false_high[place]),
            classes=curve.classes[place],
            confusions=curve.confusions[place],
            choice=choice,
        )

    def _precision(self, place: int, gallery: Gallery) -> Limits:
        curve = self.curve
        ratio = float(_ratio(np.array(curve.false), np.array(curve.found))[place])
        value, low, high = (
            1 / (1 + gallery.others * one)
            for one in (ratio, curve.ratio_high[place], curve.ratio_low[place])
        )
        return Limits(value, low, high)

    # --- confidence -------------------------------------------------------------------------------

    def confidence(self, scores: ArrayLike, gallery: Gallery | None = None) -> Floats:
        """Return the probability that matches of these scores are right.

        m L / (m L + M - m), where L is how much more often pairs of one class have such a score
        than pairs of two: the slope of the upper convex hull of `found` over `false`, which rises
        with the score (isotonic regression). One false match more than was seen is taken to have
        the highest score, so that no confidence is 1.

        Args:
            scores: of matches, any shape.
            gallery: the images that queries are compared with; None: as in the validation data.
        """
        corners, slopes = self._hull
        given = np.asarray(scores, dtype=np.float64)
        places = np.clip(np.searchsorted(corners, given, side="right") - 1, 0, len(slopes) - 1)
        odds = slopes[places] / (gallery or self.gallery).others
        return np.where(np.isnan(given), np.nan, odds / (1 + odds))

    @cached_property
    def _hull(self) -> tuple[Floats, Floats]:
        """The scores from which each slope holds, rising, and the slopes."""
        x = np.array([*self.curve.false, -self.curve.one_more])[::-1] + self.curve.one_more
        y = np.array([*self.curve.found, 0.0])[::-1]
        kept = [0]
        for place in range(1, len(x)):
            while len(kept) > 1 and _turns_left(x, y, kept[-2], kept[-1], place):
                kept.pop()
            kept.append(place)
        rise, run = np.diff(y[kept]), np.diff(x[kept])
        scores = np.array(self.curve.scores)[::-1]
        corners = scores[np.array(kept[1:]) - 1]
        slopes = np.where(run > 0, rise / np.where(run > 0, run, 1), 0.0)
        return corners[::-1], slopes[::-1]

    # --- files ------------------------------------------------------------------------------------

    def write(self, path: str | Path) -> None:
        """Write the calibration as JSON, whole or not at all."""
        document = {"format": CALIBRATION_FORMAT, **self.to_json()}
        write_atomically(Path(path), pretty(document | {"sha256": digest(document)}))

    @classmethod
    def read(cls, path: str | Path) -> "Calibration":
        """Read a calibration; raise `BadInput` where there is none, or it was altered."""
        document = read_document(Path(path), AGAIN)
        found = document.pop("format", None) if isinstance(document, dict) else None
        if found != CALIBRATION_FORMAT:
            raise BadInput(
                f"{path} has format {found}; this version of Assay reads format"
                f" {CALIBRATION_FORMAT}{AGAIN}"
            )
        known = document.pop("sha256", None)
        if known != digest({"format": found, **document}):
            raise BadInput(
                f"{path} was altered: it does not have the hash it was written with{AGAIN}"
            )
        try:
            calibration = cls.from_json(document, str(path))
        except BadRecord as error:
            raise BadInput(f"{error}{AGAIN}") from None
        if not calibration.is_plausible():
            raise BadInput(f"{path}: its curve is not one: it was altered{AGAIN}")
        return calibration

    def is_plausible(self) -> bool:
        """Return whether the numbers could be those of a calibration."""
        counts = self.classes, self.singles + 1, self.images
        return min(counts) > 0 and 0 < self.same < self.images - 1 and self.curve.is_plausible()


def _ratio(false: Floats, found: Floats) -> Floats:
    return np.where(found > 0, false / np.where(found > 0, found, 1), np.inf)


def _most_shown(precision: float) -> str:
    """Say which precision can be shown at most, rounded down.

    >>> _most_shown(0.62391)
    'they can show one of up to about 0.62'
    >>> _most_shown(0.0)
    'they can show none'
    """
    digits = 2 if precision < 0.98 else 4
    shown = math.floor(precision * 10**digits) / 10**digits
    return f"they can show one of up to about {shown:g}" if shown else "they can show none"


def _first(enough: Any) -> int | None:
    places = np.flatnonzero(enough)
    return int(places[0]) if len(places) else None


def _turns_left(x: Floats, y: Floats, one: int, two: int, three: int) -> bool:
    """Return whether the middle of three points lies on or below the line through the others."""
    return bool((y[two] - y[one]) * (x[three] - x[one]) <= (y[three] - y[one]) * (x[two] - x[one]))
