"""Records of finished studies, and stores made of them, without a single run."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from assay.records.keys import Environment
from assay.records.ledger import Kind, read
from assay.records.lines import (
    Peek,
    PeekedRun,
    PeekedTrial,
    Preregistration,
    Reproduction,
    TestScores,
    Trial,
)
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.space import Edge
from assay.tables.family import BASELINES
from entries import (
    HASH,
    announcement,
    budget,
    reproduction,
    scored,
    seal,
    selection,
    trial,
    write_raw,
)

METRICS = ("precision_at_1", "r_precision", "map_at_r")
Body = dict[str, Any]
Line = TypeVar("Line", Trial, Reproduction)


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
    peek: Peek | Body | None = None,
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
    own: Body = {"metrics": list(metrics)} if tuple(metrics) != METRICS else {}
    counts = budget(
        searches,
        int(searched),
        len(by_search[0]),
        folds=4,
        trial_folds=4,
        reproduction_runs=len(reproductions),
    )
    body = announcement(
        method,
        year=year,
        trainval=trainval,
        data=data,
        protocol=name,
        fingerprint=protocol,
        own_budget=counts,
        environment=Environment("cpu", 1, torch, HASH),
    ).to_json()
    body["protocol"]["resolved"] |= {**own, **(resolved or {})}
    body["method"]["baseline"] = method in BASELINES
    body["data"]["modality"] = "features"
    for part, value in (announced or {}).items():
        body[part] = {**body[part], **value} if part in ("data", "method") else value
    tried = [{"search": search} for search in range(searches)] if trials is None else trials
    return StudyRecord(
        key=key or method,
        announced=Preregistration.from_json(body, "ledger.jsonl"),
        preregistration=HASH,
        trials=tuple(_like(trial(0, 0.5), one) for one in tried),
        selections=tuple(
            selection(
                0 if searched else None,
                search,
                edges={parameter: Edge(**edge) for parameter, edge in (edges or {}).items()},
            )
            for search in range(searches)
        ),
        reproductions=tuple(_like(reproduction(), one) for one in reproductions),
        seal=seal(test),
        tests=tuple(
            _test(search, number, score, metrics, fold_noise)
            for search, row in enumerate(by_search)
            for number, score in enumerate(row)
        ),
        looks=(),
        peek=_peek(peek) if isinstance(peek, dict) else peek,
    )


def _peek(body: Body) -> Peek:
    """Return the peek of this JSON, in which hashes of weights may be left out."""
    epochs = [{"weights": {}, **entry} for entry in body["epochs"]]
    return Peek.from_json({**body, "epochs": epochs}, "ledger.jsonl")


def _like(entry: Line, changes: Body) -> Line:
    """Return the entry with these fields of its JSON changed."""
    return type(entry).from_json({**entry.to_json(), **changes}, "ledger.jsonl")


def _test(
    search: int, number: int, score: float, metrics: Sequence[str], fold_noise: float | None
) -> TestScores:
    separated = {
        metric: score + 0.1 * (metric in ("precision_at_1", "recall_at_1")) for metric in metrics
    }
    shifts = () if fold_noise is None else (-fold_noise, fold_noise, -fold_noise, fold_noise)
    return scored(
        number,
        search,
        separated={**separated, "queries": 10, "skipped": 0},
        concatenated={metric: value + 0.03 for metric, value in separated.items()},
        folds=tuple(
            {metric: value + shift for metric, value in separated.items()} for shift in shifts
        ),
    )


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
) -> Peek:
    """A peek in which the best checkpoint lies `epoch` above the chosen one, give or take, in each
    of four folds.
    """
    epochs = tuple(
        PeekedRun(
            search=0,
            reproduction=number,
            fold=fold,
            run="r",
            chosen=2,
            test={0: 0.1, 2: 0.4, 4: 0.4 + abs(draw.normal(epoch, epoch / 4))},
            weights={0: HASH, 2: HASH, 4: HASH},
        )
        for number in range(count)
        for fold in range(4)
    )
    tried = tuple(
        PeekedTrial(0, number, 0.5 - number / 100, tuple(test))
        for number, test in enumerate(trials)
    )
    return Peek("e" * 64, epochs, tried)


def write_store(store: Store, records: Sequence[StudyRecord]) -> Store:
    """The records as ledgers and studies of a store."""
    for record in records:
        folder = store.study(record.key)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ledger.jsonl"
        assert record.seal is not None
        entries = [
            record.announced,
            *record.trials,
            *record.selections,
            *record.reproductions,
            record.seal,
            *record.tests,
            *((record.peek,) if record.peek is not None else ()),
        ]
        lines: list[tuple[Kind, Any]] = [(entry.kind, entry.to_json()) for entry in entries]
        write_raw(path, lines[len(read(path)) if path.exists() else 0 :])
    return store
