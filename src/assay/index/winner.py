"""From a finished bench to the model to index with: `assay index STORE IMAGES --best`.

The method is that of the bench's answer, as the report and `assay train --final` have it. Where the
answer is to keep what there is, the model is that of the baseline: the trunk or the vectors as they
are. A study hands over one model, the best by validation. Test scores choose none of its models, so
that they stay an estimate for models that were not chosen by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import BadInput, reason_of
from assay.hashing import digest_file
from assay.records.codec import BadRecord
from assay.records.run import REMAKE, WEIGHTS, read_card
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records
from assay.study.models import best_run, name_of_model
from assay.tables import Comparison, answer, comparisons, method_to_train
from assay.tables.studies import has_ended
from assay.tables.table import named, percent, together

AGAIN = "run the same `assay bench` again: it writes the model from its run"
"""The remedy for a model folder that is missing or damaged."""


@dataclass(frozen=True)
class Winner:
    """The model that a bench says to use.

    Args:
        model: its folder.
        method: its method, or the baseline where no method is better.
        why: the bench's answer, in its own words.
        settled: whether the bench tells the method from all others.
        warning: which methods are not shown to differ, where it is not settled, and the pairs on
            which single and concatenated models disagree.
        note: which of the models of its study it is, and their scores.
    """

    model: Path
    method: str
    why: str
    settled: bool
    warning: str | None
    note: str


def find_winner(store: Path, *, data: str | None = None) -> Winner:
    """Return the model to index with, of the store of a finished bench.

    Raises `BadInput` where the bench has not come to its end, no method was trained, or the model
    is not in the store as its study wrote it.

    Args:
        store: the folder of the store.
        data: the data of the bench, or the name of its table in the report, where the store has
            several.
    """
    opened = Store(store)
    comparison = _choose_table(opened, data)
    _check_finished(opened, comparison)
    method, why, rivals, settled = _choose_method(comparison)
    record = comparison.record(method)
    folder = opened.model(name_of_model(record))
    takes_vectors = _check_model(folder, record)
    return Winner(
        model=folder,
        method=method,
        why=why,
        settled=settled,
        warning=_joined(
            None if settled else _warning(opened, comparison, method, rivals),
            answer(comparison).disagreements,
        ),
        note=_note(comparison, record, takes_vectors=takes_vectors),
    )


# --- Which table ---


def _choose_table(store: Store, data: str | None) -> Comparison:
    found = comparisons(store)
    if not found:
        raise BadInput(
            f"{store.root} has no bench so far; `assay bench --out {store.root}` makes one"
        )
    wanted = [one for one in found if data is None or data in _names_of(one, data)]
    if len(wanted) == 1:
        return wanted[0]
    listed = "; ".join(f"{one.slug} ({one.data} under {one.protocol})" for one in wanted or found)
    if not wanted:
        raise BadInput(f"--data {data}: {store.root} has no bench on it; choose one of {listed}")
    raise BadInput(
        f"{store.root} has {len(wanted)} tables, each with its own answer; choose one with --data:"
        f" {listed}"
    )


def _names_of(comparison: Comparison, data: str) -> tuple[str, ...]:
    """Return the names by which a table is chosen; `data` itself, if it is a path to its data."""
    kind, colon, path = data.partition(":")
    same = colon and comparison.data == f"{kind}:{Path(path).name}"
    return (comparison.data, comparison.slug, *((data,) if same else ()))


def _check_finished(store: Store, comparison: Comparison) -> None:
    """Raise `BadInput` where a study that was announced is not at its end, or none was trained."""
    over = {record.key for record in study_records(store) if has_ended(record)}
    over |= {record.key for record in comparison.replaced}
    announced = {
        **{record.key: record.method for record in comparison.unfinished},
        **{key: name for bench in comparison.benches for name, key in bench.members.items()},
    }
    waiting = sorted({name for key, name in announced.items() if key not in over})
    if waiting:
        raise BadInput(
            f"the bench on {comparison.data} in {store.root} is not finished:"
            f" {named(waiting)} {'has' if len(waiting) == 1 else 'have'} no test scores yet, so the"
            f" winner is not known. Run the same `assay bench` to its end, or give a folder of"
            f" {store.root / 'models'} in place of the store"
        )
    if not set(comparison.family.methods) & set(comparison.methods):
        raise BadInput(
            f"the bench on {comparison.data} in {store.root} has no test scores of a trained method"
            f" ({named(comparison.methods) if comparison.methods else 'every study failed'}), so"
            " there is no winner; bench methods of `assay list methods`, or give a model folder in"
            " place of the store"
        )


# --- Which method ---


def _choose_method(comparison: Comparison) -> tuple[str, str, Sequence[str], bool]:
    """Return the method, why, the methods that are not shown to differ, and whether it is settled.

    It is that of `assay train --final`, except that a baseline can be indexed with and not trained:
    it is the baseline where the answer is to keep it, and where the answer is undecided and the
    baseline has the higher MAP@R of the two.
    """
    found = answer(comparison)
    method, why, settled = method_to_train(comparison)
    if found.use is not None or found.over is None:
        return method, why, found.alike, settled
    order = comparison.by_mean(found.setting)
    if not found.undecided or order.index(found.over) < order.index(method):
        return found.over, why, found.alike, not found.undecided
    return method, why, [name for name in (found.over, *found.alike) if name != method], False


def _joined(warning: str | None, disagreements: Sequence[str]) -> str | None:
    """Return the pairs on which single and concatenated models disagree, and the warning."""
    return "; ".join([*disagreements, *([warning] if warning else [])]) or None


def _warning(store: Store, comparison: Comparison, method: str, rivals: Sequence[str]) -> str:
    """Return which methods are not shown to differ from the winner, and how to take another."""
    if not rivals:
        return f"the bench has nothing to compare {method} with, so it may not be the best"
    scores = [f"{name} ({_score(comparison, name)})" for name in rivals]
    others = [store.model(name_of_model(comparison.record(name))) for name in rivals]
    return (
        f"undecided: the bench does not tell {method} ({_score(comparison, method)}) from"
        f" {together(scores)} by test MAP@R, so another may be as good or better. To index with"
        f" another, give its folder in place of the store, such as {others[0]}"
    )


def _score(comparison: Comparison, method: str) -> str:
    return percent(comparison.interval(method, "separated", "map_at_r"))


# --- Which model ---


def _check_model(folder: Path, record: StudyRecord) -> bool:
    """Return whether the model takes vectors.

    Raise `BadInput` where it is not the model that the study handed over.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}, the model of {record.method}, is missing; {AGAIN}")
    remedy = f"; remove this folder and {AGAIN}"
    try:
        card = read_card(folder)
        weights = digest_file(folder / WEIGHTS)
    except BadRecord as error:
        raise BadInput(str(error).replace(REMAKE, remedy)) from None
    except OSError as error:
        raise BadInput(f"{folder / WEIGHTS} cannot be read: {reason_of(error)}{remedy}") from None
    written = {"study": record.key, "run": best_run(record).key, "sha256": weights}
    for name, own in written.items():
        if card.get(name) != own:
            raise BadInput(
                f"{folder} is not the model that the study of {record.method} handed over: it has"
                f" another {name}, so it was altered or exchanged{remedy}"
            )
    return record.announced.data.modality == "features" and card.get("images") is None


def _note(comparison: Comparison, record: StudyRecord, *, takes_vectors: bool) -> str:
    score = f"a test MAP@R of {_score(comparison, record.method)}"
    inputs = f" It takes vectors like those of {comparison.data}." if takes_vectors else ""
    if record.announced.method.baseline:
        return f"The model is not trained; {record.method} has {score}.{inputs}"
    best, count = best_run(record), len(record.reproductions)
    fold = "" if best.fold is None else f", without fold {best.fold}"
    several = (
        f"the one of {count:,} with the best validation: reproduction {best.reproduction} of search"
        f" {best.search}{fold}, MAP@R {100 * best.validation['map_at_r']:.1f}. Test scores had no"
        " part in choosing it"
    )
    return (
        f"The model is {several if count > 1 else 'the only one of its study'}. Single models of"
        f" {record.method} have {score}.{inputs}"
    )
