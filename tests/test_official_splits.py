"""Official splits, query and gallery: how the halves show them, and what a data set needs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.data import Dataset, splits
from assay.data.dataset import Half
from assay.data.sources.features import Features
from assay.errors import BadInput
from assay.protocols import Protocol
from sealed import receipt

PROTOCOL = Protocol("p.v1")


def make(classes: int, trainval: int | None, per_class: int = 3) -> Dataset:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))
    z = np.random.default_rng(1).normal(size=(len(labels), 3)).astype(np.float32)
    ids = [f"sample-{row}" for row in range(len(labels))]
    return Dataset(
        "made",
        "features",
        labels,
        tuple(map(str, range(classes))),
        ids,
        Features(z),
        trainval=trainval,
    )


def opened(dataset: Dataset, folder: Path) -> Half:
    trainval, sealed = splits.of(dataset, PROTOCOL)
    return sealed.open(receipt(folder, trainval.fingerprint))


@pytest.mark.parametrize(("classes", "trainval"), [(20, 8), (20, 18), (10, 8), (40, 20)])
def test_an_official_trainval_is_the_first_so_many_classes(
    tmp_path: Path, classes: int, trainval: int
) -> None:
    dataset = make(classes, trainval)
    half, _ = splits.of(dataset, PROTOCOL)
    assert half.class_names == dataset.class_names[:trainval]
    test = opened(dataset, tmp_path)
    assert test.class_names == dataset.class_names[trainval:]
    assert sorted(set(test.y.tolist())) == list(range(classes - trainval))
    parts = splits.parts(dataset, PROTOCOL)
    assert {part == "test" for part in np.array(parts)[dataset.labels >= trainval]} == {True}
    assert set(np.array(parts)[dataset.labels < trainval]) == {
        f"fold {number}" for number in range(PROTOCOL.folds)
    }


def test_an_official_trainval_that_is_half_changes_nothing() -> None:
    halves = [splits.of(make(20, trainval), PROTOCOL)[0] for trainval in (None, 10)]
    assert halves[0].fingerprint == halves[1].fingerprint


@pytest.mark.parametrize(
    ("classes", "trainval", "folds", "word"),
    [
        (40, 7, 4, "made has 7 classes in trainval; 4 folds need at least 8; add classes$"),
        (40, 11, 6, "11 classes in trainval; 6 folds need at least 12; add classes or lower --set"),
        (40, 1, 2, "made has 1 class in trainval; 2 folds need at least 8"),
        (20, 19, 4, "made has 1 classes in its test half; it needs at least 2; add classes"),
        (15, None, 4, "made has 15 classes; two halves with 4 folds need at least 16"),
    ],
)
def test_too_few_classes_are_refused(
    classes: int, trainval: int | None, folds: int, word: str
) -> None:
    with pytest.raises(BadInput, match=word):
        splits.of(make(classes, trainval), replace(PROTOCOL, folds=folds))


def test_just_enough_classes_will_do() -> None:
    assert splits.of(make(10, 8), PROTOCOL)
    assert splits.of(make(14, 12), replace(PROTOCOL, folds=6))


def test_marks_of_the_test_half_follow_its_rows_and_trainval_has_none(tmp_path: Path) -> None:
    dataset = make(20, 9)
    query = np.random.default_rng(2).random(len(dataset.labels)) < 0.5
    marked = replace(dataset, query=query, gallery=~query)
    test = opened(marked, tmp_path)
    rows = {id_: row for row, id_ in enumerate(dataset.ids)}
    assert test.query is not None
    assert test.gallery is not None
    assert test.query.tolist() == [bool(query[rows[id_]]) for id_ in test.ids]
    assert test.gallery.tolist() == [not query[rows[id_]] for id_ in test.ids]
    trainval, _ = splits.of(marked, PROTOCOL)
    assert (trainval.query, trainval.gallery) == (None, None)
    plain = opened(dataset, tmp_path / "plain")
    assert (plain.query, plain.gallery) == (None, None)


def test_marks_change_the_fingerprint_of_the_opened(tmp_path: Path) -> None:
    dataset = make(20, 9)
    query = dataset.labels % 2 == 0
    prints = {
        opened(replace(dataset, query=marks), tmp_path / str(number)).fingerprint
        for number, marks in enumerate([None, query, ~query])
    }
    assert len(prints) == 3


def marked(query: list[bool], gallery: list[bool] | None) -> Dataset:
    """Make twelve classes of three samples, sorted; the test half is the last two, with these
    marks.
    """
    dataset = make(12, 10)
    dataset = replace(dataset, labels=np.sort(dataset.labels))
    before = np.zeros(len(dataset.labels) - 6, dtype=np.bool_)
    marks = [
        None if mark is None else np.concatenate([before, np.array(mark)])
        for mark in (query, gallery)
    ]
    return replace(dataset, query=marks[0], gallery=marks[1])


YES, NO = True, False


@pytest.mark.parametrize(
    ("query", "gallery"),
    [
        ([YES, NO, NO, NO, NO, NO], [NO, YES, NO, NO, NO, NO]),
        ([YES, NO, NO, NO, NO, NO], None),
        ([YES, YES, NO, NO, NO, NO], [YES, YES, NO, NO, NO, NO]),
        ([YES, NO, NO, YES, NO, NO], [NO, NO, NO, NO, YES, NO]),
    ],
)
def test_one_query_with_something_to_find_is_enough(
    query: list[bool], gallery: list[bool] | None
) -> None:
    assert splits.of(marked(query, gallery), PROTOCOL)


@pytest.mark.parametrize(
    ("query", "gallery", "counts"),
    [
        (
            [YES, YES, YES, NO, NO, NO],
            [NO, NO, NO, YES, YES, YES],
            "3 queries and 3 gallery samples",
        ),
        (
            [NO, NO, NO, NO, NO, NO],
            [YES, YES, YES, YES, YES, YES],
            "0 queries and 6 gallery samples",
        ),
        (
            [YES, NO, NO, NO, NO, NO],
            [YES, NO, NO, YES, YES, YES],
            "1 queries and 4 gallery samples",
        ),
        ([YES, YES, NO, NO, NO, NO], [NO, NO, NO, NO, NO, NO], "2 queries and 0 gallery samples"),
        ([NO, NO, NO, NO, NO, NO], None, "0 queries and 6 gallery samples"),
    ],
)
def test_queries_with_nothing_to_find_are_refused(
    query: list[bool], gallery: list[bool] | None, counts: str
) -> None:
    with pytest.raises(
        BadInput, match=f"made: the test half has {counts}, and no query has another sample"
    ):
        splits.of(marked(query, gallery), PROTOCOL)
