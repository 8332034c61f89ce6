"""Copies and near copies among samples, samples that a model was trained on before, and what they
mean for a bench, in words.

Shapes: N samples, K numbers that a sample is compared by.
"""

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.data.dataset import Dataset, Vectors

LIKE = {"photo": 0.998, "features": 0.9999}
"""Cosine above which two samples are near copies: of small grey pictures around their mean, and of
the vectors themselves.
"""

NEARLY = "nearly the same"
"""Words of a problem that is found by a cosine, whose last digits depend on the machine."""

FEWEST_NUMBERS = 16
"""Width below which vectors are not compared: short ones point the same way by chance."""

MOST_COMPARED = 200_000
"""Samples above which near copies are not searched for."""

CROWD = 30
"""Where a sample resembles more others than this, some of its near copies may be missed."""

TABLES, BITS = 8, 32
"""Hash tables of random hyperplanes, and signs in a hash: fewer than 1 in 100 pairs at the least
cosine are missed.
"""

Groups = list[list[int]]


@runtime_checkable
class Traced(Protocol):
    """Samples that can be compared by a few numbers each."""

    def traces(self) -> Vectors:
        """Return the numbers that samples are compared by (N, K); zeros where one is unreadable."""


@dataclass(frozen=True)
class SameContent:
    """Groups of rows of a data set with the same content.

    Args:
        leaks: in both halves.
        ambiguous: under two or more classes, leaks among them.
        repeats: several times in one class.
    """

    leaks: Groups
    ambiguous: Groups
    repeats: Groups


def find_copies(dataset: Dataset, unreadable: Container[int] = ()) -> SameContent:
    """Group the samples that can be read by the hashes of their content."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in range(len(dataset.labels)):
        if row not in unreadable:
            rows_of[dataset.items.digest(row)].append(row)
    found = SameContent([], [], [])
    boundary = dataset.first_test_class
    for same in (rows for rows in rows_of.values() if len(rows) > 1):
        by_label: dict[int, list[int]] = defaultdict(list)
        for row in same:
            by_label[int(dataset.labels[row])].append(row)
        found.repeats.extend(rows for rows in by_label.values() if len(rows) > 1)
        if len(by_label) > 1:
            found.ambiguous.append(same)
        if min(by_label) < boundary <= max(by_label):
            found.leaks.append(same)
    return found


def find_near(dataset: Dataset) -> Groups:
    """Return pairs of samples that look nearly the same but differ in content; none of drawings,
    which often look alike.
    """
    if (
        dataset.modality not in LIKE
        or not isinstance(dataset.items, Traced)
        or len(dataset.labels) > MOST_COMPARED
    ):
        return []
    traces = dataset.items.traces()
    if dataset.modality == "features" and traces.shape[1] < FEWEST_NUMBERS:
        return []
    pairs = near_pairs(traces, LIKE[dataset.modality])
    return [
        pair for pair in pairs if dataset.items.digest(pair[0]) != dataset.items.digest(pair[1])
    ]


def near_pairs(x: Vectors, at_least: float) -> Groups:
    """Return pairs of rows of `x` (N, K) whose cosine is at least `at_least`, found by hashes of
    their signs on random hyperplanes.

    >>> near_pairs(np.array([[1, 0], [0, 1], [1, 0.001]], dtype=np.float32), 0.999)
    [[0, 2]]
    """
    lengths = np.linalg.norm(x, axis=1)
    rows = np.flatnonzero(lengths > 0)
    unit = x[rows] / lengths[rows, None]
    planes = (
        np.random.default_rng(0).standard_normal((x.shape[1], TABLES * BITS)).astype(np.float32)
    )
    codes = np.packbits(unit @ planes > 0, axis=1).view(f">u{BITS // 8}")
    pairs = np.unique(
        np.concatenate([_in_one_bucket(codes[:, table]) for table in range(TABLES)]), axis=0
    )
    cosines = np.concatenate(
        [
            np.einsum("nk,nk->n", unit[some[:, 0]], unit[some[:, 1]])
            for some in np.array_split(pairs, len(pairs) // 10_000 + 1)
        ]
    )
    found: Groups = rows[pairs[cosines >= at_least]].tolist()
    return found


def _in_one_bucket(codes: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Return pairs of rows (n, 2) with the same code, the smaller number first."""
    order = np.argsort(codes, kind="stable")
    inside = codes[order]
    found = [np.empty((0, 2), dtype=np.int64)]
    for distance in range(1, min(CROWD, len(codes) - 1) + 1):
        same = np.flatnonzero(inside[distance:] == inside[:-distance])
        if not len(same):
            break
        found.append(np.sort(np.stack([order[same], order[same + distance]], axis=1), axis=1))
    return np.concatenate(found)


@dataclass(frozen=True)
class Flaws:
    """Problems of a data set, in words for people; they give no access to the samples.

    Args:
        of_trainval: problems of trainval alone: none depends on the test half, so they may be
            announced.
        of_test: problems of the test half, and near copies in either half: recorded when the seal
            is open, not before.
        refusal: why no bench should start; None where nothing is that wrong, or where the data are
            official, so that users may not change them.
    """

    of_trainval: tuple[str, ...]
    of_test: tuple[str, ...]
    refusal: str | None


def find_flaws(dataset: Dataset) -> Flaws:
    """Search both halves for copies and near copies, by hashes and small pictures."""
    found = _Words(dataset)
    return Flaws(found.of_trainval(), found.of_test(), found.refusal())


def flaws_of_trainval(dataset: Dataset) -> tuple[str, ...]:
    """Return the problems of trainval alone, which do not depend on the test half."""
    return _Words(dataset).of_trainval()


@dataclass(frozen=True)
class _Words:
    """The problems of a data set as sentences."""

    dataset: Dataset

    def of_trainval(self) -> tuple[str, ...]:
        return (
            *self.conflicts("trainval"),
            *self.repeats("trainval"),
            *self.trained_on("trainval"),
        )

    def of_test(self) -> tuple[str, ...]:
        return (
            *self.leaks(),
            *self.conflicts("the test half"),
            *self.repeats("the test half"),
            *self.trained_on("the test half"),
            *self.near(),
        )

    def refusal(self) -> str | None:
        if seen := self.trained_on("the test half"):
            return (
                f"{self.dataset.name}: {seen[0]}, so a score would say nothing of unseen classes:"
                " bench other data, or these vectors as they are with --allow-leaks"
            )
        serious = [*self.leaks(), *self.conflicts("trainval"), *self.conflicts("the test half")]
        if self.dataset.official or not serious:
            return None
        return (
            f"{self.dataset.name}: {'; '.join(serious)}. Scores would be of copies and wrong"
            " labels: remove or relabel them (`assay data show` lists all), or bench them as they"
            " are with --allow-leaks"
        )

    @cached_property
    def _copies(self) -> SameContent:
        return find_copies(self.dataset)

    @property
    def _things(self) -> tuple[str, str]:
        return ("vector", "vectors") if self.dataset.modality == "features" else ("image", "images")

    def leaks(self) -> list[str]:
        return self._said(self._copies.leaks, "in both trainval and the test half")

    def conflicts(self, half: str) -> list[str]:
        groups = self._of_half(half, self._copies.ambiguous)
        labels = self.dataset.labels
        ambiguous = [rows for rows in groups if len(set(labels[rows].tolist())) > 1]
        return self._said(ambiguous, f"of {half} with more than one label")

    def repeats(self, half: str) -> list[str]:
        return self._said(
            self._of_half(half, self._copies.repeats), f"more than once in a class of {half}"
        )

    def trained_on(self, half: str) -> list[str]:
        marks = self.dataset.trained_on
        if marks is None:
            return []
        tested = self.dataset.labels >= self.dataset.first_test_class
        own = marks[tested == (half != "trainval")]
        return [
            f"the model behind the vectors was trained on {int(own.sum()):,} of the {len(own):,}"
            f" samples of {half}"
        ] * bool(own.any())

    def near(self) -> list[str]:
        near = find_near(self.dataset)
        tested = self.dataset.labels >= self.dataset.first_test_class
        across = [pair for pair in near if tested[pair[0]] != tested[pair[1]]]
        inside = [pair for pair in near if tested[pair[0]] == tested[pair[1]]]
        return [
            *self._said(across, f"in trainval {NEARLY} as one in the test half"),
            *self._said(inside, f"{NEARLY} as another one of their half"),
        ]

    def _of_half(self, half: str, groups: Groups) -> Groups:
        """Return the groups of two or more rows within this half; the other half affects neither
        them nor their order.
        """
        tested = self.dataset.labels >= self.dataset.first_test_class
        own = ([row for row in rows if tested[row] == (half != "trainval")] for rows in groups)
        return sorted(rows for rows in own if len(rows) > 1)

    def _said(self, groups: Groups, what: str) -> list[str]:
        if not groups:
            return []
        example = " = ".join(self.dataset.ids[row] for row in groups[0][:2])
        return [f"{len(groups):,} {self._things[len(groups) != 1]} {what}, such as {example}"]
