"""Checks of the search: trials, what was given up, what was selected, and what is asked again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from assay.records.keys import own_source, search_source
from assay.records.lines import Preregistration, Selection, Trial
from assay.records.study import StudyRecord
from assay.study.announced import AnnouncedStudy
from assay.study.search import (
    TrialResult,
    best_of,
    depends_on_results,
    distance,
    estimate,
    is_hopeless,
)
from assay.verify.finding import Finding

LAST_DIGITS = 1e-5
"""Share of a range by which the parameters that a model asks for may differ elsewhere: one unit of
the sixth digit, to which they are rounded.
"""

NEAR = 0.01
"""Share of a range within which the model may end elsewhere. With the instructions of older
processors, 9 of 576 trials that a model asked for were others: 8 by at most 1e-6, one by 0.0013.
"""


def check_trials(record: StudyRecord) -> Iterator[str]:
    """Yield where trials have gaps, lie outside the space, or contradict the scores of folds."""
    announced = record.announced.budget.trials
    unknown = sorted({trial.search for trial in record.trials} - set(range(record.searches)))
    if unknown:
        yield (
            f"there are trials of search {unknown[0]}, and {record.searches} searches were"
            " announced"
        )
    study = AnnouncedStudy(record.announced)
    for search in range(record.searches):
        trials, where = record.trials_of(search), f"search {search}, " if search else ""
        if trials and trials[0].parameters != record.announced.method.defaults:
            yield f"{where}trial 0 is not the method's defaults"
        for number, trial in enumerate(trials):
            if trial.trial != number:
                yield f"{where}trial {number} is missing in the ledger"
            for problem in (
                *_outside_space(record.announced, trial),
                *_wrong_value(study, trial, trials[:number]),
            ):
                yield f"{where}trial {number}: {problem}"
        if record.selections and len(trials) != announced:
            yield f"{where}{len(trials)} trials in the ledger, {announced} were announced"


def _outside_space(announced: Preregistration, trial: Trial) -> Iterator[str]:
    """Yield parameters outside their ranges; the defaults, which are trial 0, may lie outside."""
    for name, range_ in announced.space.items():
        if name not in trial.parameters:
            yield f"it has no {name}, which was announced to be searched"
        elif trial.trial and not range_.holds(trial.parameters[name]):
            yield f"{name}={trial.parameters[name]} lies outside the announced space"


def _wrong_value(study: AnnouncedStudy, trial: Trial, before: Sequence[Trial]) -> Iterator[str]:
    """Yield where status, value or estimate of a trial do not follow from its runs.

    Its value is the mean over its folds. It has none where a fold diverged, or where it was given
    up, which the protocol's rule decides.
    """
    runs, folds = trial.runs, study.folds_of_trials(trial.search)
    diverged = any(run.status == "diverged" for run in runs)
    mean = sum(run.validation["map_at_r"] for run in runs) / len(runs)
    given_up = trial.status == "pruned"
    status = "failed" if diverged else "pruned" if given_up else "finished"
    if trial.status != status:
        yield f"it is called {trial.status}, but its runs say {status}"
    if len(runs) != (1 if given_up else len(folds)):
        yield f"it has {len(runs)} runs, {1 if given_up else len(folds)} belong to it"
    if trial.map_at_r != (None if diverged or given_up else mean):
        yield "its MAP@R is not the mean of its folds"
    hopeless = study.prunes and is_hopeless(runs[0], before, study.protocol.prune)
    if given_up != hopeless:
        yield (
            "it was given up after its first fold, but the protocol's rule keeps it"
            if given_up
            else "it was kept after its first fold, but the protocol's rule gives it up"
        )
    if hopeless and given_up and trial.estimate != estimate(mean, before):
        yield "its estimate is not what its first fold gives"


def check_selection(record: StudyRecord) -> Iterator[str]:
    """Yield where a search did not select its best finished trial.

    Without trials the selected parameters are the given ones, or the defaults.
    """
    for search, selection in enumerate(record.selections):
        where = f"search {search}: " if search else ""
        if selection.search != search:
            yield f"the selection of search {search} is missing in the ledger"
        for problem in _wrong_selection(record, selection, record.trials_of(search)):
            yield where + problem


def _wrong_selection(
    record: StudyRecord, selection: Selection, trials: Sequence[Trial]
) -> Iterator[str]:
    best, announced = best_of(trials), record.announced
    expected = best and best.trial
    if selection.trial != expected:
        yield f"trial {selection.trial} was selected, trial {expected} is the best"
        return
    untried = announced.given.parameters if announced.given else announced.method.defaults
    without = None if trials else untried
    if selection.parameters != (best.parameters if best else without):
        origin = "those of the selected trial" if trials else "the given ones"
        yield f"the selected parameters are not {origin}"
    elif selection.edges != (announced.space.edges(best.parameters) if best else {}):
        yield "the parameters that are said to lie on an end of their range do not"


def check_asked(record: StudyRecord) -> Finding:
    """Return whether the search asks for the same trials again, given the same results.

    What a model asks may differ a little on another processor; where the search computed it is
    nothing that a store could prove, so each difference is reported.
    """
    what = f"{record.title}: trials asked again"
    others = list(_asked_otherwise(record))
    if not others:
        return Finding(what)
    first = others[0]
    trusted = f"that the trials of {record.title} are those that its search asked for"
    if unlike := versions_unlike_here(record.announced):
        return Finding(what, note=f"{first}; nothing follows from that: {unlike}", trusted=trusted)
    for other in others:
        if not other.by_model or other.distance > NEAR:
            return Finding(what, f"ledger.jsonl, {other}")
    farthest = max(others, key=lambda other: other.distance)
    if farthest.distance <= LAST_DIGITS:
        last = "other last digits, as the model of a search may have on another processor"
        return Finding(what, note=f"{farthest}: {last}")
    return Finding(
        what,
        note=f"{farthest}: {100 * farthest.distance:.2g}% of a range apart, as the model of a"
        " search may end on another processor, and as a hand may choose",
        trusted=trusted,
    )


@dataclass(frozen=True)
class _OtherTrial:
    """A trial with other parameters than those that the search asks for here.

    Args:
        place: the search and the trial.
        asked: parameters that are asked for.
        recorded: parameters that the ledger has.
        distance: how far apart these lie, as a share of a range.
        by_model: whether a model asks for the trial.
    """

    place: str
    asked: Mapping[str, Any]
    recorded: Mapping[str, Any]
    distance: float
    by_model: bool

    def __str__(self) -> str:
        return (
            f"{self.place}: the search asks for {_words(self.asked)}, the ledger says"
            f" {_words(self.recorded)}"
        )


def _asked_otherwise(record: StudyRecord) -> Iterator[_OtherTrial]:
    """Yield the trials that the search would not have asked for.

    The search is given the results of the trials before, as the ledger has them.
    """
    study = AnnouncedStudy(record.announced)
    kind, startup = study.protocol.search, record.announced.budget.startup
    for search in range(record.searches):
        where = f"search {search}, " if search else ""
        results: list[TrialResult] = []
        for number, trial in enumerate(record.trials_of(search)):
            asked = study.ask_one(search, results)
            if asked != trial.parameters:
                yield _OtherTrial(
                    f"{where}trial {number}",
                    asked,
                    trial.parameters,
                    distance(record.announced.space, asked, trial.parameters),
                    depends_on_results(number, startup, kind),
                )
            results.append(TrialResult(trial.parameters, trial.value))


def versions_unlike_here(announced: Preregistration) -> str:
    """Return in words which versions that a search depends on are others here, empty if none."""
    here = {
        "assay": version("assay-dml"),
        "source": own_source(),
        "torch": version("torch"),
        "optuna": version("optuna"),
        "scipy": version("scipy"),
        "search": search_source(),
    }
    there = asdict(announced.versions)
    named = {"source": "the source of Assay is another", "search": "the search is another"}
    return ", ".join(
        named.get(name, f"{name} {there[name]} there and {value} here")
        for name, value in here.items()
        if there[name] != value
    )


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(parameters.items()))
