r"""How a budget of runs is best split into searches, trials and folds, from the recorded trials
of a real bench.

python benchmarks/budget.py STORE [--draws 4000]

STORE is a bench with many searches, trials on all four folds and every checkpoint kept, so that
each run of each trial has a validation score and a test score:

    assay bench --data features:omniglot.npz --methods
        contrastive,triplet,multi_similarity,normalized_softmax \ --set searches=16 --set
        trial_folds=4 --keep-weights all --out STORE

A search of T trials on F folds is made again by drawing trial 0 (the defaults) of one recorded
search, T - 1 other recorded trials, and F folds: the trial that validates best on these folds is
selected. Its score is the mean test score of its runs on two of the other folds, which had no part
in the selection. A reproduction on all four folds would spread less, so half-widths are a little
too large in every row. Trials that diverged are left out.

Mean: the expected score, the mean over methods. Half-width: of the simultaneous interval for a
difference of two methods among four and the yardstick, at the mean spread; that is what a bench can
tell apart.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.stats import alpha_of_look

Floats = NDArray[np.float64]
SPLITS = (
    (3, 8, 2), (4, 6, 2), (5, 4, 2), (6, 3, 2),
    (3, 16, 1), (4, 6, 1), (4, 8, 1), (4, 12, 1), (5, 6, 1), (5, 8, 1), (6, 6, 1), (8, 4, 1),
)  # fmt: skip
"""Searches, trials of each, folds of a trial: each with one reproduction on four folds."""
METHODS = 4
PAIRS = 10
FOLDS = 4


def trials_of(record: StudyRecord) -> tuple[Floats, Floats]:
    """Return MAP@R of the defaults and of all other trials: (trials, folds, 2), by validation and
    by test.

    Folds are not equally hard: the mean over all trials on the same fold is taken away and the mean
    over folds put back.
    """
    assert record.peek is not None
    values, numbers = [], []
    for trial, peeked in zip(record.trials, record.peek.trials, strict=True):
        if trial.map_at_r is not None:
            validated = [run.validation["map_at_r"] for run in trial.runs]
            values.append(list(zip(validated, peeked.test, strict=True)))
            numbers.append(trial.trial)
    scores, first = np.array(values), np.array(numbers) == 0
    if scores.shape[1] != FOLDS:
        raise SystemExit(
            f"{record.method}: its trials have {scores.shape[1]} folds; bench it with --set"
            f" trial_folds={FOLDS}"
        )
    scores += scores.mean(axis=(0, 1)) - scores.mean(axis=0)
    return scores[first], scores[~first]


def scores_of_searches(first: Floats, rest: Floats, trials: int, folds: int, draws: int) -> Floats:
    """Return the test scores of so many searches that are made again from recorded trials."""
    draw = np.random.default_rng(0)
    scores = np.empty(draws)
    for number in range(draws):
        others = rest[draw.choice(len(rest), trials - 1, replace=False)]
        tried = np.concatenate([first[[draw.integers(len(first))]], others])
        order = draw.permutation(FOLDS)
        chosen = tried[tried[:, order[:folds], 0].mean(axis=1).argmax()]
        scores[number] = chosen[order[-2:], 1].mean()
    return scores


def half_width(spread: float, searches: int) -> float:
    """Return that of the simultaneous interval for a pair with equal spreads
    (docs/statistics.md).
    """
    freedom = min(2 * searches, METHODS * (searches - 1))
    level = 1 - alpha_of_look(1) / (2 * PAIRS)
    return float(stats.t.ppf(level, freedom)) * spread * math.sqrt(2 / searches)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--draws", type=int, default=4000)
    asked = parser.parse_args()
    records = [
        record for record in study_records(Store(asked.store)) if record.searched and record.peek
    ]
    methods = [record.method for record in records]
    print("| searches x trials x folds | runs | " + " | ".join(methods) + " | mean | half-width |")
    print("| --- | --- |" + " --- |" * (len(methods) + 2))
    for searches, trials, folds in SPLITS:
        found = [
            scores_of_searches(*trials_of(record), trials, folds, asked.draws) for record in records
        ]
        spread = math.sqrt(float(np.mean([np.var(scores, ddof=1) for scores in found])))
        cells = [f"{100 * scores.mean():.2f} ({100 * scores.std(ddof=1):.2f})" for scores in found]
        mean, width = np.mean([scores.mean() for scores in found]), half_width(spread, searches)
        row = [f"{searches} x {trials} x {folds}", str(searches * (folds * trials + FOLDS)), *cells]
        print(f"| {' | '.join(row)} | {100 * mean:.2f} | {100 * width:.1f} |")


if __name__ == "__main__":
    main()
