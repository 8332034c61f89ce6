"""Lines of ledgers, made by hand: each with values that a test does not have to think of."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.hashing import plain
from assay.protocols import ResolvedAugment, ResolvedBatch, ResolvedOptimiser, ResolvedProtocol
from assay.records.announced_data import AnnouncedData
from assay.records.keys import Environment
from assay.records.ledger import Kind, Ledger
from assay.records.lines import (
    AnnouncedMethod,
    AnnouncedProtocol,
    Budget,
    Look,
    Preregistration,
    Reproduction,
    RunEntry,
    Seal,
    Selection,
    TestScores,
    Trial,
    Versions,
)
from assay.registry import Paper
from assay.space import Real, Space

HASH = "0" * 64
RESOLVED = ResolvedProtocol(
    name="quick.v1",
    trunk="conv",
    weights="none",
    frozen="nothing",
    size=32,
    dim=64,
    augment=ResolvedAugment(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0),
    batch=ResolvedBatch(embedding=(8, 4), classification=(32, 1)),
    optimiser=ResolvedOptimiser(lr=1e-3, schedule="constant"),
    shortest_epoch=1,
    epochs=4,
    validate_every=2,
    patience=4,
)


def budget(
    searches: int = 1, trials: int = 2, reproductions: int = 1, folds: int = 2, **other: int
) -> Budget:
    """The budget of a study that trains on every fold."""
    own = Budget(
        searches=searches,
        trials=trials,
        trial_folds=folds if trials else 0,
        startup=1,
        reproductions=reproductions,
        reproduction_runs=searches * reproductions * folds,
        folds=folds,
    )
    return replace(own, **other)


def announcement(
    method: str = "triplet",
    *,
    year: int | None = 2006,
    trainval: str = "7" * 64,
    data: str = "glyphs",
    protocol: str = "quick.v1",
    fingerprint: str = "f" * 64,
    resolved: ResolvedProtocol = RESOLVED,
    own_budget: Budget | None = None,
    **other: Any,
) -> Preregistration:
    """The preregistration of a study; `other` are fields of it."""
    own = Preregistration(
        protocol=AnnouncedProtocol(
            protocol, fingerprint, fingerprint, replace(resolved, name=protocol)
        ),
        data=AnnouncedData(data, "drawing", trainval, 10, 100),
        weights=None,
        method=AnnouncedMethod(
            name=method,
            baseline=False,
            source=HASH,
            head="linear",
            about="",
            miner=None,
            fixed={},
            batch=(8, 4),
            batch_shrunk=False,
            defaults={"margin": 0.1},
            departures=(),
            paper=None if year is None else Paper("A paper", year, "arxiv.org"),
        ),
        space=Space(margin=Real(0, 2, natural="low")),
        budget=own_budget or budget(),
        versions=Versions("0", HASH, "3", "2.13", "4", "1", HASH),
        environment=Environment("cpu", 1, "2.13", HASH),
    )
    return replace(own, **other)


def run_entry(key: str = "a" * 64, map_at_r: float = 0.5, **other: Any) -> RunEntry:
    """A finished run."""
    own = RunEntry(
        key=key,
        status="finished",
        validation={"map_at_r": map_at_r},
        best_epoch=2,
        last_epoch=4,
        result=HASH,
    )
    return replace(own, **other)


def trial(
    number: int = 0,
    map_at_r: float | None = 0.25,
    *,
    search: int = 0,
    parameters: Mapping[str, Any] | None = None,
    runs: Sequence[RunEntry] = (),
    **other: Any,
) -> Trial:
    """A trial that has ended; one without a value was given up."""
    own = Trial(
        search=search,
        trial=number,
        parameters=parameters or {"margin": 0.1},
        status="pruned" if map_at_r is None else "finished",
        map_at_r=map_at_r,
        runs=tuple(runs),
    )
    return replace(own, **other)


def selection(number: int | None = 0, search: int = 0, **other: Any) -> Selection:
    """The choice of a search."""
    return replace(Selection(search, number, {"margin": 0.1}, {}), **other)


def reproduction(
    number: int = 0, fold: int | None = 0, search: int = 0, **other: Any
) -> Reproduction:
    """A run of a reproduction."""
    return Reproduction(
        search=search, reproduction=number, fold=fold, **{**vars(run_entry()), **other}
    )


def seal(test: str = "e" * 64) -> Seal:
    """The opening of a test half."""
    return Seal(test, 10, 100, HASH, HASH, HASH)


def scored(number: int = 0, search: int = 0, **other: Any) -> TestScores:
    """Test scores of a reproduction."""
    scores = {"map_at_r": 0.5}
    own = TestScores(
        search=search,
        reproduction=number,
        test="e" * 64,
        runs=("a" * 64,),
        concatenated=scores,
        separated=scores,
        folds=(scores,),
        vectors=(HASH,),
        classes=HASH,
    )
    return replace(own, **other)


def look(run: str = "a" * 64, map_at_r: float = 0.5) -> Look:
    """A look at the test half."""
    scores = {"map_at_r": map_at_r}
    return Look(run, "e" * 64, "features:mini.npz", 10, "cosine", scores, 10, 0)


def write_raw(path: Path, lines: Sequence[tuple[Kind, Any]]) -> Ledger:
    """Append lines to a ledger whatever they say, as a forger would: only the chain holds."""
    ledger = Ledger(path)
    for kind, body in lines:
        ledger._append(kind, plain(body))
    return ledger
