"""The reality check's tables read again: the arithmetic, and a page that says what the script
computes.
"""

import csv
import importlib.util
import math
import re
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import pytest
from scipy import stats

from assay.published import DATA, reported

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results" / "reality-check-reread.md").read_text()


@pytest.fixture(scope="module")
def reread() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reread", ROOT / "benchmarks" / "reread.py")
    assert spec is not None and spec.loader is not None
    sys.modules["reread"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def count_by_hand(methods: list[str], data: str, spread: float) -> int:
    """Pairs that are different, separated, one at a time."""
    different = 0
    for a, b in combinations(methods, 2):
        first, second = (reported(method, data, "map_at_r", "separated") for method in (a, b))
        assert first is not None and second is not None
        squares = [(100 * (one.half_width or 0) / 2.2621571628) ** 2 for one in (first, second)]
        variance = 2 * spread**2 + sum(squares)
        freedom = variance**2 / sum(square**2 / 9 for square in squares)
        needed = stats.t.ppf(1 - 0.05 / 182, freedom) * math.sqrt(variance)
        different += 100 * abs(first.mean - second.mean) > needed
    return different


def test_there_are_fourteen_methods_and_ninety_one_pairs(reread: ModuleType) -> None:
    assert (len(reread.METHODS), len(reread.PAIRS)) == (14, 91)
    assert "pretrained" not in reread.METHODS


@pytest.mark.parametrize("data", list(DATA))
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5])
def test_the_count_of_pairs_is_that_of_a_loop_over_them(
    reread: ModuleType, data: str, spread: float
) -> None:
    assert reread.remaining(data, "separated", spread) == count_by_hand(
        list(reread.METHODS), data, spread
    )


def test_two_names_of_one_loss_are_15_6_standard_errors_apart_on_cub(reread: ModuleType) -> None:
    pair = reread.one_loss("cub", "separated")
    assert pair.gap == pytest.approx(20.96 - 19.32)
    assert pair.gap / pair.error == pytest.approx(15.6, abs=0.05)


@pytest.mark.parametrize("data", list(DATA))
def test_from_the_last_spread_on_a_pair_is_not_different(reread: ModuleType, data: str) -> None:
    for pair in reread.pairs(data, "concatenated").values():
        last = pair.last_spread
        if last:
            assert pair.differs(last)
        assert not any(pair.differs(last + step * pair.gap) for step in (1e-3, 0.01, 0.1, 1.0))


def test_a_pair_with_no_gap_has_no_spread_and_one_far_apart_has_a_large_one(
    reread: ModuleType,
) -> None:
    same, far = (
        reread.Pair(reread.Score(20, 0.1), reread.Score(20, 0.1)),
        reread.Pair(reread.Score(20, 0.1), reread.Score(90, 0.1)),
    )
    assert (same.last_spread, same.usual_spread) == (0, 0)
    assert far.last_spread == pytest.approx(
        70 / (math.sqrt(2) * stats.norm.ppf(1 - 0.05 / 182)), rel=1e-3
    )
    assert far.usual_spread == pytest.approx(70 / math.sqrt(2), rel=1e-3)


def test_the_page_has_the_tables_of_the_script(reread: ModuleType) -> None:
    for rows in (reread.count_rows(), reread.gap_rows(), reread.best_rows()):
        assert reread.as_markdown(rows) in PAGE


def test_the_page_calls_itself_an_estimate() -> None:
    assert PAGE.splitlines()[0].endswith("an estimate")
    assert "an estimate, not a correction" in PAGE


def test_sentences_of_the_page_follow_from_its_tables(reread: ModuleType) -> None:
    counts, gaps, best = reread.count_rows(), reread.gap_rows(), reread.best_rows()
    spans = {
        spread: (min(row[spread] for row in counts), max(row[spread] for row in counts))
        for spread in ("0", "0.25", "0.5", "1")
    }
    text = re.sub(r"\s+", " ", PAGE)
    assert "Without a spread of the search {} to {} of 91 pairs".format(*spans["0"]) in text
    assert "With 0.25 points {} to {} are".format(*spans["0.25"]) in text
    assert (
        "with 0.5 points {} to {}, with 1 point {} to {}.".format(*spans["0.5"], *spans["1"])
        in text
    )
    assert (
        sum(row["different, no spread"] == "yes" for row in gaps) == 3
        and "In three of six cases" in text
    )
    assert (
        max(row["not different from"] for row in gaps) == 0.33
        and "A spread of 0.33 points is enough" in text
    )
    left = reread.remaining("cub", "separated", reread.one_loss("cub", "separated").last_spread)
    assert (
        f"about {left} of 91 pairs are left (dot in the figure), of {counts[0]['0']} without it"
        in text
    )
    ends = {
        spread: (min(row[spread] for row in best), max(row[spread] for row in best))
        for spread in ("0", "0.5", "1")
    }
    assert "Without a spread {} to {} methods".format(*ends["0"]) in text
    assert (
        "with 0.5 points {} to {}, with 1 point {} or {}.".format(*ends["0.5"], *ends["1"]) in text
    )


def test_the_file_of_pairs_is_what_the_script_writes(reread: ModuleType) -> None:
    rows = list(
        csv.DictReader(
            (ROOT / "docs" / "results" / "reality-check-reread.csv").read_text().splitlines()
        )
    )
    assert len(rows) == 6 * 91
    for row in rows[::37]:
        pair = reread.pairs(row["data"], row["form"])[row["first"], row["second"]]
        assert float(row["difference"]) == pytest.approx(
            pair.first.mean - pair.second.mean, abs=0.005
        )
        assert float(row["not_different_from"]) == pytest.approx(pair.last_spread, abs=1e-4)
