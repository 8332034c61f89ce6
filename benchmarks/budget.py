"""How a budget of runs is best split into searches and trials, from the recorded trials of a real bench.

python benchmarks/budget.py STORE [--draws 4000]

STORE is a bench with many searches whose checkpoints were kept, so that every trial has a test score:

    assay bench --data omniglot:PATH --set trunk=lite0 --methods contrastive,triplet,multi_similarity,normalized_softmax \
        --set searches=32 --keep-weights all --out STORE

A search of T trials is made again by drawing trial 0 (the defaults) of one recorded search and T - 1 other recorded trials: the
one that validates best is selected, and its test score is the score of the search. Each row costs about as many runs a
method as `quick.v2`. Mean: the expected score, the mean over methods. Half-width: of the simultaneous interval for a
difference of two methods among four and the yardstick, at the mean spread; that is what a bench can tell apart.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.stats import alpha_of_look
from assay.store import Store
from assay.study import StudyRecord, study_records
from assay.verify.announced import folds_of_trials

Floats = NDArray[np.float64]
SPLITS = ((2, 14), (3, 8), (4, 6), (5, 4), (6, 3), (8, 2))
"""Searches and trials of each: all with trials on two folds and one reproduction on four."""
METHODS = 4
PAIRS = 10


def trials_of(record: StudyRecord) -> tuple[Floats, Floats]:
    """Return validation and test MAP@R of the defaults and of all other trials, as columns; those that diverged left out.

    Searches validate on different folds, some of which are easier: of every value the mean over the trials on the same
    folds is taken away.
    """
    assert record.peek is not None
    kept = [trial for trial in record.peek["trials"] if trial["validation"] is not None]
    values = np.array([(trial["validation"], float(np.mean(trial["test"]))) for trial in kept])
    folds = [tuple(folds_of_trials(record.announced, trial["search"])) for trial in kept]
    centred = values.copy()
    for pair in set(folds):
        same = np.array([one == pair for one in folds])
        centred[same] -= values[same].mean(axis=0)
    centred += values.mean(axis=0)
    defaults = np.array([trial["trial"] == 0 for trial in kept])
    return centred[defaults], centred[~defaults]


def scores_of_searches(first: Floats, rest: Floats, trials: int, draws: int) -> Floats:
    """Return the test scores of so many searches that are made again from recorded trials."""
    draw = np.random.default_rng(0)
    scores = np.empty(draws)
    for number in range(draws):
        others = rest[draw.choice(len(rest), trials - 1, replace=False)]
        tried = np.vstack([first[draw.integers(len(first))], others])
        scores[number] = tried[tried[:, 0].argmax(), 1]
    return scores


def half_width(spread: float, searches: int) -> float:
    """Return that of the simultaneous interval for a pair with equal spreads (docs/statistics.md)."""
    freedom = min(2 * searches, METHODS * (searches - 1))
    level = 1 - alpha_of_look(1) / (2 * PAIRS)
    return float(stats.t.ppf(level, freedom)) * spread * math.sqrt(2 / searches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--draws", type=int, default=4000)
    asked = parser.parse_args()
    records = [record for record in study_records(Store(asked.store)) if record.searched and record.peek]
    methods = [record.method for record in records]
    print("| searches x trials | runs | " + " | ".join(f"{name}: mean (spread)" for name in methods) + " | mean | half-width |")
    print("|---|---|" + "---|" * (len(methods) + 2))
    for searches, trials in SPLITS:
        found = [scores_of_searches(*trials_of(record), trials, asked.draws) for record in records]
        spread = math.sqrt(float(np.mean([np.var(scores, ddof=1) for scores in found])))
        cells = [f"{100 * scores.mean():.2f} ({100 * scores.std(ddof=1):.2f})" for scores in found]
        mean, width = np.mean([scores.mean() for scores in found]), half_width(spread, searches)
        runs = searches * (2 * trials + 4)
        print(f"| {searches} x {trials} | {runs} | {' | '.join(cells)} | {100 * mean:.2f} | {100 * width:.1f} |")


if __name__ == "__main__":
    main()
