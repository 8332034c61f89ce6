"""`Scores`: means, queries, classes and intervals, and what they are written to; the bootstrap
behind the intervals.
"""

import json
import math
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from assay.metrics import Scores, evaluate
from assay.metrics.scores import Queries
from assay.stats import Interval, bootstrap
from assay.stats import intervals as stats

Z = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.7, 0.6], [-1.0, 0.0]])
Y = ["cat", "cat", "dog", "dog", "newt"]
"""Cats find each other; one dog finds a cat first; the newt is alone."""


def of(values: NDArray[np.float64] | list[float], classes: NDArray[np.int64] | list[int]) -> Scores:
    """Scores of one metric, from its values and class numbers."""
    values = np.asarray(values, dtype=np.float64)
    asked = Queries(
        range(len(values)),
        np.asarray(classes),
        [f"class {number}" for number in range(max(classes) + 1)],
    )
    return Scores(asked, {"score": values}, ~np.isnan(values), "cosine")


def example(names: tuple[str, ...] = ("precision_at_1", "map_at_r", "mrr"), **rest: Any) -> Scores:
    return evaluate(Z, Y, names, **rest)


# --- Execution, queries, classes ---


def test_scores_are_a_mapping_of_means() -> None:
    scores = example()
    assert isinstance(scores, Mapping)
    assert list(scores) == list(scores.keys()) == ["precision_at_1", "map_at_r", "mrr"]
    assert len(scores) == 3
    assert "mrr" in scores
    assert "nmi" not in scores
    for name, mean in scores.items():
        assert type(mean) is float
        assert mean == scores[name] == pytest.approx(np.nanmean(scores.per_query(name)))
    assert scores["precision_at_1"] == 3 / 4


@pytest.mark.parametrize("name", ["nmi", "map", ""])
def test_a_metric_that_was_not_asked_for_is_a_missing_key(name: str) -> None:
    scores = example()
    assert scores.get(name) is None
    for look in (scores.__getitem__, scores.per_query, scores.per_class, scores.interval):
        with pytest.raises(KeyError):
            look(name)


def test_the_order_of_metrics_is_the_order_asked() -> None:
    names = ("mrr", "pi_intra", "recall_at_2", "map_at_r", "nmi", "recall_at_1")
    assert list(example(names)) == list(names)
    assert list(example(names[::-1])) == list(names[::-1])


def test_a_family_takes_its_place_as_a_whole() -> None:
    z, y = np.eye(40), np.arange(40) % 2
    assert list(evaluate(z, y, ["mrr", "recall_at_k", "map_at_r"])) == [
        "mrr",
        *(f"recall_at_{k}" for k in (1, 2, 4, 8, 16, 32)),
        "map_at_r",
    ]


def test_a_metric_asked_for_twice_is_given_once_in_its_first_place() -> None:
    scores = example(("mrr", "map_at_r", "mrr", "recall_at_2", "recall_at_2"))
    assert list(scores) == ["mrr", "map_at_r", "recall_at_2"]
    assert dict(scores) == dict(example(("mrr", "map_at_r", "recall_at_2")))


def test_values_of_queries_line_up_with_ids_and_labels() -> None:
    scores = example(queries=[3, 0, 4], ids=["a", "b", "c", "d", "e"])
    assert scores.ids == ["d", "a", "e"]
    assert scores.labels == ["dog", "cat", "newt"]
    assert scores.per_query("precision_at_1").tolist() == pytest.approx(
        [0, 1, math.nan], nan_ok=True
    )
    assert scores.per_query("mrr").dtype == np.float64


def test_queries_skipped_and_classes_are_counted() -> None:
    scores = example()
    assert (scores.queries, scores.skipped, scores.classes) == (4, 1, 2)
    scores = example(queries=[0, 4])
    assert (scores.queries, scores.skipped, scores.classes) == (1, 1, 1)
    assert scores.similarity == "cosine"


def test_values_of_classes_are_means_by_their_own_labels() -> None:
    scores = example()
    assert scores.per_class("precision_at_1") == pytest.approx(
        {"cat": 1, "dog": 0.5, "newt": math.nan}, nan_ok=True
    )
    assert set(scores.per_class("mrr")) == set(Y)


def test_classes_with_nothing_to_find_are_nan_and_classes_not_asked_for_are_left_out() -> None:
    scores = example(queries=[0, 2, 4])
    assert set(scores.per_class("mrr")) == {"cat", "dog", "newt"}
    assert math.isnan(scores.per_class("mrr")["newt"])
    assert set(example(queries=[0, 1]).per_class("mrr")) == {"cat"}


@pytest.mark.parametrize(
    "labels",
    [
        [(0, 1), (0, 1), "a", "a", None],
        [2**70, 2**70, -1, -1, 2**70 + 1],
        np.array([5, 5, 7, 7, 9], dtype=np.uint8),
        torch.tensor([5, 5, 7, 7, 9]),
    ],
    ids=["mixed", "huge", "numpy", "torch"],
)
def test_classes_are_found_by_the_label_as_it_was_given(labels: Any) -> None:
    given = labels.tolist() if isinstance(labels, np.ndarray | torch.Tensor) else labels
    scores = evaluate(Z, labels, ["precision_at_1"])
    assert scores.labels == given
    found = scores.per_class("precision_at_1")
    assert (found[given[0]], found[given[2]]) == (1, 0.5)
    assert math.isnan(found[given[4]])


def test_the_mean_is_over_queries_and_not_over_classes() -> None:
    scores = of([1, 1, 1, 0], [0, 0, 0, 1])
    assert scores["score"] == 0.75
    assert scores.per_class("score") == {"class 0": 1, "class 1": 0}


def test_a_caller_cannot_change_the_scores_by_what_they_were_given() -> None:
    """A figure that was reported stays what it was."""
    scores = example()
    before = scores["mrr"]
    values, ids, by_class = scores.per_query("mrr"), scores.ids, scores.per_class("mrr")
    ids.clear()
    by_class.clear()
    try:
        values[:] = 0
    except ValueError as error:
        assert "read-only" in str(error)  # noqa: PT017
    assert scores["mrr"] == before
    assert len(scores.ids) == 5
    assert scores.per_class("mrr")


def test_scores_survive_being_sent_to_another_process() -> None:
    scores = example(("mrr", "pi_intra"))
    again = pickle.loads(pickle.dumps(scores))
    assert repr(again) == repr(scores)
    assert again.to_dict() == scores.to_dict()


# --- Metrics of the whole ---


@pytest.mark.parametrize("name", ["nmi", "pi_intra", "spectral_decay", "roc_auc"])
def test_a_metric_of_the_whole_has_no_value_for_a_query_and_says_so(name: str) -> None:
    scores = example((name, "mrr"))
    assert type(scores[name]) is float
    for look in (scores.per_query, scores.per_class, scores.interval):
        with pytest.raises(
            ValueError,
            match=f"{name} is a metric of the whole embedding and has no value for a single query",
        ):
            look(name)
    with pytest.raises(ValueError, match=f"{name} is a metric of the whole"):
        scores.interval(name, "queries")
    assert name in repr(scores)
    assert scores.to_dict()["metrics"][name] == {"mean": scores[name]}
    assert list(scores.to_frame()) == ["id", "label", "mrr"]


def test_metrics_of_the_whole_alone_still_count_queries() -> None:
    scores = example(("pi_intra", "nmi"))
    assert (scores.queries, scores.skipped, scores.classes) == (4, 1, 2)
    assert "pi_intra" in repr(scores)
    assert len(scores.to_frame()) == 5


# --- Intervals ---


def test_an_interval_surrounds_its_mean() -> None:
    draw = np.random.default_rng(0)
    scores = of(draw.random(200), draw.integers(30, size=200))
    for over in ("queries", "classes"):
        found = scores.interval("score", over)
        assert found.mean == pytest.approx(scores["score"], abs=1e-12)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.mean < found.high
    assert scores.interval("score", "queries").n == 200
    assert scores.interval("score", "classes").n == 30


def test_an_interval_is_over_classes_unless_told_otherwise() -> None:
    scores = of([1, 0, 1, 0, 0.5, 0.3], [0, 0, 1, 1, 2, 2])
    assert (
        scores.interval("score")
        == scores.interval("score", "classes")
        == scores.interval("score", over="classes")
    )


@pytest.mark.parametrize("over", ["query", "class", "Queries", "samples", ""])
def test_an_interval_over_something_else_raises(over: str) -> None:
    """And is not silently that over classes."""
    with pytest.raises(ValueError, match="queries"):
        of([1, 0, 1], [0, 0, 1]).interval("score", over)  # type: ignore[arg-type]


def test_intervals_are_the_same_each_time() -> None:
    draw = np.random.default_rng(1)
    values, classes = draw.random(50), draw.integers(9, size=50)
    for over in ("queries", "classes"):
        assert of(values, classes).interval("score", over) == of(values, classes).interval(
            "score", over
        )


def test_an_interval_leaves_out_queries_with_nothing_to_find() -> None:
    values, classes = [1, 0, 0.5, math.nan, math.nan, 0.7], [0, 0, 1, 1, 2, 3]
    kept, kept_classes = [1, 0, 0.5, 0.7], [0, 0, 1, 3]
    for over in ("queries", "classes"):
        assert of(values, classes).interval("score", over) == of(kept, kept_classes).interval(
            "score", over
        )
    assert of(values, classes).interval("score", "classes").n == 3


def test_an_interval_over_classes_is_wider_where_classes_differ() -> None:
    """Queries of a class share its fate: twenty of them tell little more than one."""
    classes = np.repeat(np.arange(30), 20)
    scores = of(np.random.default_rng(2).random(30)[classes], classes)
    assert width(scores.interval("score", "classes")) > 3 * width(
        scores.interval("score", "queries")
    )


def test_intervals_agree_where_classes_do_not_differ() -> None:
    draw = np.random.default_rng(3)
    scores = of(draw.random(3000), draw.permutation(np.repeat(np.arange(300), 10)))
    assert width(scores.interval("score", "classes")) == pytest.approx(
        width(scores.interval("score", "queries")), rel=0.15
    )


def test_an_interval_over_classes_of_one_query_each_is_that_over_queries() -> None:
    values = np.random.default_rng(4).random(40)
    scores = of(values, np.arange(40))
    assert scores.interval("score", "classes") == scores.interval("score", "queries")


def test_an_interval_over_classes_covers_the_truth_of_other_classes_about_as_often_as_it_says() -> (
    None
):
    """300 repetitions: 40 classes of different levels and sizes drawn from a world of mean 1/2,
    then their queries.

    Over queries alone the interval is far too narrow for that: it is for these classes only.
    """
    draw = np.random.default_rng(5)
    covered = {"classes": 0, "queries": 0}
    for _ in range(300):
        sizes = draw.integers(3, 12, size=40)
        classes = np.repeat(np.arange(40), sizes)
        hits = (draw.random(len(classes)) < draw.beta(1, 1, size=40)[classes]).astype(float)
        by_class = np.bincount(classes, weights=hits)
        for over, found in (
            ("classes", bootstrap(by_class, sizes.astype(float), resamples=200)),
            ("queries", bootstrap(hits, np.ones_like(hits), resamples=200)),
        ):
            assert found.low is not None
            assert found.high is not None
            covered[over] += found.low <= 0.5 <= found.high
    assert 0.90 <= covered["classes"] / 300 <= 0.98
    assert covered["queries"] / 300 < 0.8


def test_an_interval_over_queries_covers_the_truth_of_these_classes_about_as_often_as_it_says() -> (
    None
):
    draw = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        found = bootstrap((draw.random(60) < 0.3).astype(float), np.ones(60), resamples=200)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


# --- The bootstrap ---


def slow_bootstrap(
    sums: list[float], counts: list[float], resamples: int, seed: int
) -> tuple[float, float]:
    """Efron's percentile interval, one draw at a time."""
    draw = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = [int(draw.integers(len(sums))) for _ in sums]
        means.append(sum(sums[unit] for unit in drawn) / sum(counts[unit] for unit in drawn))
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def clustered(units: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums and counts of units of different sizes and levels."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 10, size=units).astype(float)
    return counts * draw.random(units), counts


def test_the_bootstrap_is_a_ratio_of_sums_over_units_drawn_again() -> None:
    sums, counts = clustered(25)
    found = bootstrap(sums, counts)
    low, high = slow_bootstrap(sums.tolist(), counts.tolist(), 2000, seed=1)
    assert found.mean == pytest.approx(sums.sum() / counts.sum())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert found.n == 25


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_bootstrap_agrees_with_that_of_scipy(confidence: float) -> None:
    sums, counts = clustered(80)
    found = bootstrap(sums, counts, confidence, resamples=4000)
    theirs = scipy_stats.bootstrap(
        (sums, counts),
        lambda sums, counts, axis: sums.sum(axis) / counts.sum(axis),
        paired=True,
        n_resamples=4000,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(9),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx(
        (theirs.low, theirs.high), abs=0.06 * (theirs.high - theirs.low)
    )


@pytest.mark.parametrize("units", [3000, 9000])
def test_the_normal_limit_agrees_with_the_bootstrap_it_stands_for(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, counts = clustered(units)
    drawn = bootstrap(sums, counts)
    monkeypatch.setattr(stats, "LARGE", 1000)
    limit = bootstrap(sums, counts)
    assert limit != drawn
    assert (limit.mean, limit.n) == (drawn.mean, drawn.n)
    assert (limit.low, limit.high) == pytest.approx(
        (drawn.low, drawn.high), abs=0.06 * width(limit)
    )


def test_above_the_limit_nothing_is_drawn_and_the_interval_is_symmetric() -> None:
    sums, counts = clustered(stats.LARGE + 1)
    found = bootstrap(sums, counts)
    assert found == bootstrap(sums, counts, seed=1)
    assert found != bootstrap(sums, counts, confidence=0.5)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.mean == pytest.approx(found.mean - found.low)


def test_up_to_the_limit_units_are_drawn() -> None:
    sums, counts = clustered(stats.LARGE)
    assert bootstrap(sums, counts, resamples=20) != bootstrap(sums, counts, resamples=20, seed=1)


def test_the_seed_decides_the_draws() -> None:
    sums, counts = clustered(30)
    assert bootstrap(sums, counts) == bootstrap(sums, counts, seed=0)
    assert bootstrap(sums, counts) != bootstrap(sums, counts, seed=1)


def test_values_that_never_vary_have_no_width() -> None:
    for units in (stats.FEWEST_UNITS, 100, stats.LARGE + 1):
        assert bootstrap(np.full(units, 0.25), np.ones(units)) == Interval(0.25, 0.25, 0.25, units)


def test_the_bootstrap_scales_and_shifts_with_its_values() -> None:
    sums, counts = clustered(30)
    one, other = bootstrap(sums, counts), bootstrap(100 * sums + 7 * counts, counts)
    assert (other.mean, other.low, other.high) == pytest.approx(
        [100 * end + 7 for end in (one.mean, one.low, one.high)]
    )


def test_one_unit_has_a_mean_and_no_ends() -> None:
    assert bootstrap(np.array([3.0]), np.array([4.0])) == Interval(0.75, None, None, 1)


def test_no_unit_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap(np.array([]), np.array([]))


def test_the_bootstrap_leaves_its_values_alone() -> None:
    sums, counts = clustered(30)
    before = sums.tobytes(), counts.tobytes()
    sums.flags.writeable = counts.flags.writeable = False
    bootstrap(sums, counts)
    assert (sums.tobytes(), counts.tobytes()) == before


# --- Written out ---


def test_scores_are_readable() -> None:
    z, y = np.random.default_rng(0).normal(size=(13, 3)), [*[0, 1, 2, 3, 4, 5] * 2, 6]
    text = repr(evaluate(z, y, ["precision_at_1", "mrr", "pi_intra"]))
    head, *lines = text.splitlines()
    assert head == "Scores: 12 queries of 6 classes, 1 skipped (nothing to find); cosine"
    assert [line.split()[0] for line in lines] == ["precision_at_1", "mrr", "pi_intra"]
    assert [line.index("0.") for line in lines] == [lines[0].index("0.")] * 3, (
        "means are in one column"
    )
    assert lines[0].endswith("over classes")
    assert "over queries, [" in lines[0]
    assert "[" not in lines[2]
    assert max(len(line) for line in lines) < 110


def test_queries_are_not_said_to_be_skipped_where_none_was() -> None:
    assert (
        repr(evaluate(Z[:4], Y[:4], ["mrr"])).splitlines()[0]
        == "Scores: 4 queries of 2 classes; cosine"
    )


LONE: dict[str, Callable[[], Scores]] = {
    "one class": lambda: evaluate(np.eye(3), [0, 0, 0], ["map_at_r", "mrr"]),
    "one class with anything to find": lambda: evaluate(
        np.eye(4), [0, 0, 1, 2], ["map_at_r", "mrr"]
    ),
    "one query": lambda: evaluate(np.eye(3), [0, 0, 1], ["map_at_r", "mrr"], queries=[0]),
    "one query with anything to find": lambda: evaluate(
        np.eye(3), [0, 0, 1], ["map_at_r", "mrr"], queries=[0, 2]
    ),
}


@pytest.mark.parametrize("lone", LONE)
def test_an_interval_without_ends_can_be_written_out(lone: str) -> None:
    scores = LONE[lone]()
    assert scores.interval("mrr", "classes") == Interval(scores["mrr"], None, None, 1)
    assert f"{scores['mrr']:.4f}" in repr(scores)
    assert "None" not in repr(scores)
    assert "nan" not in repr(scores)
    entry = json.loads(json.dumps(scores.to_dict(), allow_nan=False))["metrics"]["mrr"]
    assert entry["mean"] == scores["mrr"]
    assert entry["over_classes"] in (None, [None, None])
    assert len(scores.to_frame()) == len(scores.ids)


def test_scores_are_plain_data() -> None:
    scores = example(("mrr", "pi_intra"))
    plain = scores.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    queries, classes = scores.interval("mrr", "queries"), scores.interval("mrr", "classes")
    assert plain == {
        "metrics": {
            "mrr": {
                "mean": scores["mrr"],
                "over_queries": [queries.low, queries.high],
                "over_classes": [classes.low, classes.high],
            },
            "pi_intra": {"mean": scores["pi_intra"]},
        },
        "queries": 4,
        "skipped": 1,
        "classes": 2,
        "similarity": "cosine",
    }


def test_plain_data_holds_a_metric_that_is_infinite_or_undefined_as_it_is() -> None:
    """JSON has no word for either: `json.dumps(..., allow_nan=False)` refuses them."""
    scores = evaluate(
        np.ones((4, 2)), [0, 0, 1, 1], ["spectral_decay", "pi_ratio", "tar_at_far_1e-3", "mrr"]
    )
    assert scores["spectral_decay"] == math.inf
    assert math.isnan(scores["pi_ratio"])
    assert math.isnan(scores["tar_at_far_1e-3"])
    plain = scores.to_dict()["metrics"]
    assert plain["spectral_decay"] == {"mean": math.inf}
    assert math.isnan(plain["pi_ratio"]["mean"])
    assert [line.split()[:2] for line in repr(scores).splitlines()[1:4]] == [
        ["spectral_decay", "inf"],
        ["pi_ratio", "nan"],
        ["tar_at_far_1e-3", "nan"],
    ]


def test_a_frame_has_a_row_for_each_query() -> None:
    pandas = pytest.importorskip("pandas")
    scores = example(
        ("mrr", "pi_intra", "precision_at_1"), queries=[3, 0, 4], ids=["a", "b", "c", "d", "e"]
    )
    frame = scores.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame) == ["id", "label", "mrr", "precision_at_1"]
    assert frame["id"].tolist() == ["d", "a", "e"]
    assert frame["label"].tolist() == ["dog", "cat", "newt"]
    assert frame["precision_at_1"].tolist() == pytest.approx([0, 1, math.nan], nan_ok=True)
    by_label = frame.groupby("label")["mrr"].mean().to_dict()
    assert by_label == pytest.approx(scores.per_class("mrr"), nan_ok=True)


def test_a_frame_takes_labels_and_ids_of_any_kind() -> None:
    labels = [("a", 1), ("a", 1), None, None, frozenset()]
    frame = evaluate(Z, labels, ["mrr"], ids=[(row, "x") for row in range(5)]).to_frame()
    assert frame["label"].tolist() == labels
    assert frame["id"].tolist() == [(row, "x") for row in range(5)]


def test_a_frame_of_its_own_does_not_change_the_scores() -> None:
    scores = example()
    before = scores["mrr"]
    frame = scores.to_frame()
    frame.loc[:, "mrr"] = 0.0
    assert scores["mrr"] == before


def test_without_pandas_a_frame_says_what_to_install_and_all_else_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    scores = example()
    with pytest.raises(ImportError, match=r"pip install pandas.*to_dict and per_query do without"):
        scores.to_frame()
    assert scores.to_dict()["queries"] == 4
    assert "mrr" in repr(scores)
