"""Finished studies as their records would say them, and stores made of them, without a single run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.records.ledger import Kind, read
from assay.records.store import Store
from assay.records.untyped import StudyRecord
from entries import write_raw

METRICS = ("precision_at_1", "r_precision", "map_at_r")
Body = dict[str, Any]


def simulate(
    method: str,
    scores: Sequence[float] | Sequence[Sequence[float]],
    year: int | None = 2006,
    *,
    protocol: str = "f" * 64,
    name: str = "quick.v1",
    data: str = "glyphs",
    trainval: str = "t" * 64,
    test: str = "e" * 64,
    torch: str = "2.13",
    edges: Body | None = None,
    metrics: Sequence[str] = METRICS,
    fold_noise: float | None = None,
    trials: Sequence[Body] | None = None,
    resolved: Mapping[str, Any] | None = None,
    announced: Mapping[str, Any] | None = None,
    reproductions: Sequence[Body] = (),
    peek: Body | None = None,
    key: str | None = None,
) -> StudyRecord:
    """A finished study with these MAP@R values; concatenated scores are a little higher, P@1 and
    the rest in step.

    `scores` are those of the reproductions of one search, or a row for each of several searches.
    """
    rows = [list(row) if isinstance(row, Sequence) else [row] for row in scores]
    by_search = (
        rows if isinstance(scores[0], Sequence) else [[value for row in rows for value in row]]
    )
    searched = trials is None or bool(trials)
    searches = len(by_search)
    done = [
        {
            "search": s,
            "trial": 0,
            "status": "finished",
            "map_at_r": 0.5,
            "parameters": {"margin": 0.1},
            "runs": [],
        }
        for s in range(searches)
    ]
    own: Body = {"metrics": list(metrics)} if tuple(metrics) != METRICS else {}
    return StudyRecord(
        key=key or method,
        announced={
            "method": {
                "name": method,
                "paper": None if year is None else {"year": year},
                "defaults": {"margin": 0.1},
                "departures": [],
                "batch_shrunk": False,
                "batch": [8, 4],
            },
            "protocol": {
                "name": name,
                "fingerprint": protocol,
                "resolved": {
                    "dim": 64,
                    "departures": [],
                    "trunk": "conv",
                    **own,
                    **(resolved or {}),
                },
            },
            "data": {"name": data, "trainval": trainval, "classes": 10, "samples": 100},
            "space": {
                "margin": {"kind": "Real", "low": 0.0, "high": 2.0, "log": False, "natural": "low"}
            },
            "environment": {"torch": torch, "device": "cpu", "threads": 1},
            "versions": {"assay": "0", "source": "0" * 64},
            "budget": {
                "folds": 4,
                "searches": searches,
                "trials": int(searched),
                "trial_folds": 4,
                "reproductions": len(by_search[0]),
                "reproduction_runs": len(reproductions),
            },
            **(announced or {}),
        },
        preregistration="0" * 64,
        trials=list(done if trials is None else trials),
        selections=[
            {
                "search": s,
                "trial": 0 if searched else None,
                "parameters": {"margin": 0.1},
                "edges": edges or {},
            }
            for s in range(searches)
        ],
        reproductions=list(reproductions),
        seal={"test": test, "classes": 10, "samples": 100},
        tests=[
            {"search": s, "reproduction": r, **_test(score, metrics, fold_noise)}
            for s, row in enumerate(by_search)
            for r, score in enumerate(row)
        ],
        peek=peek,
    )


def _test(score: float, metrics: Sequence[str], fold_noise: float | None) -> Body:
    separated = {
        metric: score + 0.1 * (metric in ("precision_at_1", "recall_at_1")) for metric in metrics
    }
    concatenated = {metric: value + 0.03 for metric, value in separated.items()}
    test: Body = {
        "separated": {**separated, "queries": 10, "skipped": 0},
        "concatenated": concatenated,
    }
    if fold_noise is not None:
        shifts = (-fold_noise, fold_noise, -fold_noise, fold_noise)
        test["folds"] = [
            {metric: value + shift for metric, value in separated.items()} for shift in shifts
        ]
    return test


def paired(
    means: Mapping[str, float], count: int, seed: int = 0, noise: float = 0.003
) -> dict[str, list[float]]:
    """Scores of methods with these means: what a reproduction has in common, and noise of each
    method's own.
    """
    draw = np.random.default_rng(seed)
    shared = draw.normal(0, 0.01, count)
    return {
        method: (mean + shared + draw.normal(0, noise, count)).tolist()
        for method, mean in means.items()
    }


def peeked(
    draw: np.random.Generator, count: int, epoch: float, trials: Sequence[Sequence[float]]
) -> Body:
    """A peek in which the best checkpoint lies `epoch` above the chosen one, give or take, in each
    of four folds.
    """
    epochs = [
        {
            "search": 0,
            "reproduction": r,
            "fold": f,
            "run": "r",
            "chosen": 2,
            "test": {"0": 0.1, "2": 0.4, "4": 0.4 + abs(draw.normal(epoch, epoch / 4))},
        }
        for r in range(count)
        for f in range(4)
    ]
    scored = [
        {"search": 0, "trial": number, "validation": 0.5 - number / 100, "test": list(test)}
        for number, test in enumerate(trials)
    ]
    return {"test": "e" * 64, "epochs": epochs, "trials": scored}


def write_store(store: Store, records: Sequence[StudyRecord]) -> Store:
    """The records as ledgers and studies of a store."""
    for record in records:
        folder = store.study(record.key)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ledger.jsonl"
        lines: list[tuple[Kind, Any]] = [
            ("preregistration", record.announced),
            *(("trial", trial) for trial in record.trials),
            *(("selection", selection) for selection in record.selections),
            *(("reproduction", entry) for entry in record.reproductions),
            ("seal", record.seal),
            *(("test", test) for test in record.tests),
            *((("peek", record.peek),) if record.peek is not None else ()),
        ]
        write_raw(path, lines[len(read(path)) if path.exists() else 0 :])
    return store
