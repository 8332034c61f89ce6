"""Identification with unknowns: GAP, and the detection and identification rate."""

import numpy as np
import pytest

from assay.errors import BadInput
from assay.index.calibration.open_set import (
    Predictions,
    detection_rate,
    evaluate_open_set,
    global_average_precision,
)
from loops import for_each


def clustered(classes=40, size=6, noise=0.5, dim=24, seed=0):
    """Return vectors around class centres, with their labels."""
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), size)
    return draw.normal(size=(classes, dim))[y] + noise * draw.normal(size=(len(y), dim)), y


def predictions(rows):
    """Return predictions from rows of confidence, right, known and class."""
    confidence, right, known, classes = (np.array(column) for column in zip(*rows, strict=True))
    return Predictions(confidence.astype(float), right.astype(bool), known.astype(bool), classes)


EIGHT = [
    (0.95, True, True, 0),
    (0.90, False, False, 5),
    (0.85, True, True, 1),
    (0.80, False, True, 0),
    (0.70, True, True, 1),
    (0.60, False, False, 6),
    (0.55, True, True, 2),
    (0.50, False, False, 6),
]
"""Five queries of the known classes 0 to 2, three of the unknown classes 5 and 6."""


def gap_by_loops(confidence, right, known):
    """Return GAP where equal confidences enter together, one prediction at a time."""
    total = 0.0
    for own, is_right in zip(confidence, right, strict=True):
        if is_right:
            as_sure = [r for c, r in zip(confidence, right, strict=True) if c >= own]
            total += sum(as_sure) / len(as_sure)
    return total / known


def rate_by_loops(found, rate):
    """Return the detection rate by trying each confidence as threshold, and none at all."""
    rows = list(zip(found.confidence, found.right, found.known, found.classes, strict=True))

    def share(rows, accepted):
        shares = []
        for label in sorted({row[3] for row in rows}):
            own = [row for row in rows if row[3] == label]
            shares.append(sum(accepted(row) for row in own) / len(own))
        return sum(shares) / len(shares)

    best = 0.0
    for threshold in {row[0] for row in rows}:
        alarms = share([r for r in rows if not r[2]], lambda r, t=threshold: r[0] >= t)
        if alarms <= rate + 1e-9:
            known = [row for row in rows if row[2]]
            best = max(best, share(known, lambda r, t=threshold: r[1] and r[0] >= t))
    return best


# --- worked by hand -------------------------------------------------------------------------------


def test_gap_of_eight_predictions_worked_by_hand():
    found = predictions(EIGHT)
    expected = (1 / 1 + 2 / 3 + 3 / 5 + 4 / 7) / 5
    assert global_average_precision(found.confidence, found.right, 5) == pytest.approx(expected)


def test_detection_rates_of_eight_predictions_worked_by_hand():
    found = predictions(EIGHT)
    # No false alarm: above 0.90 there is one of the two queries of class 0.
    assert detection_rate(found, 0.0) == pytest.approx((1 / 2 + 0 + 0) / 3)
    # Half: class 5 is accepted whole, so above 0.60: half of class 0, all of class 1.
    assert detection_rate(found, 0.5) == pytest.approx((1 / 2 + 1 + 0) / 3)
    # Three quarters: one of the two of class 6 as well, so above 0.50.
    assert detection_rate(found, 0.75) == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert detection_rate(found, 1.0) == pytest.approx((1 / 2 + 1 + 1) / 3)


def test_equal_confidences_enter_together():
    assert global_average_precision([1, 1, 1], [True, False, False], 1) == pytest.approx(1 / 3)
    found = predictions([(0.5, True, True, 0), (0.5, False, False, 1)])
    assert detection_rate(found, 0.1) == 0


def test_without_known_or_unknown_queries_there_is_no_rate():
    for rows in ([EIGHT[0]], [EIGHT[1]]):
        assert np.isnan(detection_rate(predictions(rows), 0.1))


# --- loops and laws -------------------------------------------------------------------------------


@for_each("seed", range(30))
def test_scores_are_those_of_loops_whatever_the_ties_and_the_order(seed):
    draw = np.random.default_rng(seed)
    known = np.append(draw.random(24) < 0.6, [True, False])
    rows = [
        (draw.integers(8) / 8, one and draw.random() < 0.7, one, draw.integers(4) + 10 * (not one))
        for one in known
    ]
    found = predictions(rows)
    count = int(found.known.sum())
    expected = gap_by_loops(found.confidence, found.right, count)
    again = predictions([rows[row] for row in draw.permutation(len(rows))])
    for one in (found, again):
        gap = global_average_precision(one.confidence, one.right, count)
        assert gap == pytest.approx(expected)
        for rate in (0.05, 0.25, 0.6):
            assert detection_rate(one, rate) == pytest.approx(rate_by_loops(found, rate))


def test_clear_classes_are_all_found_and_noise_is_not():
    clear = evaluate_open_set(*clustered(noise=0.05), "cosine")
    assert clear.gap.value == 1 and clear.detected[1].value == 1
    draw = np.random.default_rng(0)
    noise = evaluate_open_set(draw.normal(size=(240, 24)), np.repeat(np.arange(40), 6), "cosine")
    assert noise.gap.value < 0.1 and noise.detected[1].high < 0.2


def test_identical_vectors_find_nothing():
    found = evaluate_open_set(np.ones((240, 4)), np.repeat(np.arange(40), 6), "cosine")
    assert found.gap.value == 0 and found.detected[1].value == 0


def test_counts_are_those_of_the_splits():
    found = evaluate_open_set(*clustered(classes=41, size=5), "cosine", splits=2)
    assert (found.known, found.unknown, found.splits) == (20, 21, 2)
    assert (found.queries, found.impostors) == (20 * 3, 21 * 5)


def test_similarities_agree_where_they_order_alike():
    z, y = clustered()
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    by_angle, by_distance = (
        evaluate_open_set(unit, y, name, splits=3) for name in ("cosine", "euclidean")
    )
    assert by_angle.gap.value == pytest.approx(by_distance.gap.value)
    bits = np.packbits(z > 0, axis=1)
    packed, plain = (evaluate_open_set(one, y, "hamming", splits=3) for one in (bits, z))
    assert packed == plain


def test_names_and_seeds():
    z, y = clustered(noise=0.9)
    found = evaluate_open_set(z, y, "cosine")
    assert evaluate_open_set(z, [f"class {label:02d}" for label in y], "cosine") == found
    other = evaluate_open_set(z, y, "cosine", seed=1)
    assert other != found and abs(other.gap.value - found.gap.value) < 0.1


def test_classes_of_one_image_do_not_take_part():
    z, y = clustered()
    more = np.vstack([z, np.random.default_rng(9).normal(size=(5, 24))])
    assert evaluate_open_set(more, [*y, *range(100, 105)], "cosine") == evaluate_open_set(
        z, y, "cosine"
    )


def test_a_rate_that_so_few_unknown_queries_cannot_show_is_left_out():
    found = evaluate_open_set(*clustered(), "cosine")
    assert found.impostors == 120
    assert found.detected[0] is None and found.detected[1] is not None


def test_limits_over_classes_cover_the_score_of_other_classes():
    values = [evaluate_open_set(*clustered(noise=1.0, seed=one), "cosine").gap for one in range(12)]
    mean = np.mean([one.value for one in values])
    assert sum(one.low <= mean <= one.high for one in values) >= 10
    assert all(one.low < one.value < one.high for one in values)


@for_each("rate", [0, 1, -1, float("nan")])
def test_a_rate_of_false_alarms_that_is_none_is_refused(rate):
    with pytest.raises(BadInput, match="false alarms"):
        evaluate_open_set(*clustered(), "cosine", rates=[rate])


def test_too_few_classes_are_refused():
    with pytest.raises(BadInput, match="19 classes have two images"):
        evaluate_open_set(*clustered(classes=19), "cosine")
