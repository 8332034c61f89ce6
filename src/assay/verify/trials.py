"""The search again: what it asked, which trials it gave up, which one was selected."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from assay.files import read_json
from assay.hashing import digest_file, plain
from assay.records import lines
from assay.records.keys import own_source, question_seed
from assay.records.lines import RunEntry
from assay.records.store import Store
from assay.records.untyped import StudyRecord
from assay.space import Choice, Range, read_space
from assay.study import search as search_code
from assay.study.search import TrialResult, ask, depends_on_answers
from assay.study.trials import best_of, estimate, is_hopeless
from assay.verify.announced import Announced, folds_of_trials, prunes

Trial = Mapping[str, Any]


def check_trials(record: StudyRecord) -> Iterator[str]:
    """Trials are numbered without a gap, lie in the announced space, and are worth what their folds
    say.
    """
    announced = record.announced["budget"]["trials"]
    strangers = sorted({trial["search"] for trial in record.trials} - set(range(record.searches)))
    if strangers:
        yield (
            f"there are trials of search {strangers[0]}, and {record.searches} searches were"
            " announced"
        )
    for search in range(record.searches):
        trials, where = trials_of(record, search), f"search {search}, " if search else ""
        if trials and trials[0]["parameters"] != record.announced["method"]["defaults"]:
            yield f"{where}trial 0 is not the method's defaults"
        for number, trial in enumerate(trials):
            if trial["trial"] != number:
                yield f"{where}trial {number} is missing in the ledger"
            for problem in (
                *_in_space(record.announced, trial),
                *_value(record.announced, trial, trials[:number]),
            ):
                yield f"{where}trial {number}: {problem}"
        if record.selections and len(trials) != announced:
            yield f"{where}{len(trials)} trials in the ledger, {announced} were announced"


def trials_of(record: StudyRecord, search: int) -> list[dict[str, Any]]:
    """The trials of one search, in order."""
    return [trial for trial in record.trials if trial["search"] == search]


def _typed(trials: Sequence[Trial]) -> list[lines.Trial]:
    return [lines.Trial.from_json(trial, "ledger.jsonl") for trial in trials]


def _in_space(announced: Announced, trial: Trial) -> Iterator[str]:
    """Searched parameters lie in their ranges; the defaults, which are trial 0, may lie outside."""
    space = read_space(announced["space"])
    for name, range_ in space.items():
        if name not in trial["parameters"]:
            yield f"it has no {name}, which was announced to be searched"
        elif trial["trial"] and not _is_in(range_, trial["parameters"][name]):
            yield f"{name}={trial['parameters'][name]} lies outside the announced space"


def _is_in(range_: Range, value: Any) -> bool:
    return range_.takes(value) and (
        isinstance(range_, Choice) or range_.low <= value <= range_.high
    )


def _value(announced: Announced, trial: Trial, before: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The mean over folds; no value where a fold diverged or the trial was given up, which it was
    only by the rule.
    """
    runs, folds = trial["runs"], folds_of_trials(announced, trial["search"])
    diverged = any(run["status"] == "diverged" for run in runs)
    mean = float(sum(run["validation"]["map_at_r"] for run in runs) / len(runs))
    given_up = trial["status"] == "pruned"
    status = "failed" if diverged else "pruned" if given_up else "finished"
    if trial["status"] != status:
        yield f"it is called {trial['status']}, but its runs say {status}"
    if len(runs) != (1 if given_up else len(folds)):
        yield f"it has {len(runs)} runs, {1 if given_up else len(folds)} belong to it"
    if trial["map_at_r"] != (None if diverged or given_up else mean):
        yield "its MAP@R is not the mean of its folds"
    earlier = _typed(before)
    hopeless = prunes(announced) and is_hopeless(
        RunEntry.from_json(runs[0], "ledger.jsonl"),
        earlier,
        announced["protocol"]["resolved"]["prune"],
    )
    if given_up != hopeless:
        rule = "" if hopeless else "not "
        yield (
            f"by the protocol's rule it had {rule}to be given up after its first fold, and it"
            f" was{' not' if hopeless else ''}"
        )
    if hopeless and given_up and trial["estimate"] != estimate(mean, earlier):
        yield "its estimate is not what its first fold gives"


def check_selection(record: StudyRecord) -> Iterator[str]:
    """In each search the best finished trial was selected; without trials, what was given or
    announced as defaults.
    """
    for search, selection in enumerate(record.selections):
        where = f"search {search}: " if search else ""
        if selection["search"] != search:
            yield f"the selection of search {search} is missing in the ledger"
        for problem in _selection(record, selection, trials_of(record, search)):
            yield where + problem


def _selection(
    record: StudyRecord, selection: Mapping[str, Any], trials: Sequence[dict[str, Any]]
) -> Iterator[str]:
    best = best_of(_typed(trials))
    said, expected = selection["trial"], best and best.trial
    if said != expected:
        yield f"trial {said} was selected, trial {expected} is the best"
        return
    announced = record.announced
    without = (
        announced.get("given", {}).get("parameters", announced["method"]["defaults"])
        if not trials
        else None
    )
    if selection["parameters"] != (best.parameters if best else without):
        origin = "those of the selected trial" if trials else "the given ones"
        yield f"the selected parameters are not {origin}"
    elif best and selection["edges"] != plain(
        read_space(announced["space"]).edges(best.parameters)
    ):
        yield (
            "what is said of parameters on the edges of their ranges does not follow from the space"
        )


def unlike_here(announced: Announced) -> str:
    """In words, which of the versions that a search depends on are others here; empty where none
    is.
    """
    here = {
        "assay": version("assay-dml"),
        "source": own_source(),
        "torch": torch.__version__,
        "optuna": version("optuna"),
        "scipy": version("scipy"),
        "search": digest_file(Path(search_code.__file__)),
    }
    there = announced["versions"]
    unlike = [name for name in here if there.get(name) != here[name]]
    named = {"source": "the source of Assay is another", "search": "the search is another"}
    return ", ".join(
        named.get(name, f"{name} {there.get(name)} there and {here[name]} here") for name in unlike
    )


def ask_again(record: StudyRecord) -> tuple[int, str] | None:
    """The first trial that the search, told what the ledger says of those before it, would not have
    asked, and what instead.
    """
    announced = record.announced
    resolved, defaults = announced["protocol"]["resolved"], announced["method"]["defaults"]
    space, startup, kind = (
        read_space(announced["space"]),
        announced["budget"]["startup"],
        resolved.get("search", "bayesian"),
    )
    method = announced.get("twin_of", record.method)
    for search in range(record.searches):
        seed = question_seed(
            resolved["seed"], announced["data"]["trainval"], method, search, "twin_of" in announced
        )
        told: list[TrialResult] = []
        for number, trial in enumerate(trials_of(record, search)):
            asked = {**defaults, **ask(space, told, defaults, startup, seed, kind)}
            if asked != trial["parameters"]:
                where = f"search {search}: " if search else ""
                return (
                    number,
                    (
                        f"{where}the search asks for {_words(asked)}, the ledger says"
                        f" {_words(trial['parameters'])}"
                    ),
                )
            told.append(TrialResult(trial["parameters"], trial.get("estimate", trial["map_at_r"])))
    return None


def by_model(announced: Announced, number: int) -> bool:
    """Whether trial `number` was asked by a model, whose last digits may depend on the machine."""
    kind = announced["protocol"]["resolved"].get("search", "bayesian")
    return depends_on_answers(number, announced["budget"]["startup"], kind)


def ran_here(store: Store, record: StudyRecord) -> bool:
    """Whether runs of the study say that this machine computed them."""
    here = socket.gethostname()
    for key in sorted(record.runs):
        try:
            if read_json(store.run(key) / "timing.json")["host"] == here:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(parameters.items()))
