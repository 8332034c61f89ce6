"""Checks of the models that studies handed over: their weights are those of the run, and their
cards agree with the study.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from assay.errors import BadInput
from assay.files import read_json
from assay.model import CARD, read_model
from assay.records.codec import encode
from assay.records.run import WEIGHTS
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.run.finished import FinishedRun
from assay.verify.finding import Finding


def check_models(store: Store, records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each model folder of the store."""
    by_key = {record.key: record for record in records}
    for folder in sorted(path for path in (store.root / "models").glob("*") if path.is_dir()):
        yield Finding(f"models/{folder.name}", "; ".join(_model(folder, by_key)))


def _model(folder: Path, records: dict[str, StudyRecord]) -> Iterator[str]:
    try:
        card = read_json(folder / CARD)
        record = records.get(card.get("study"))
    except (OSError, ValueError, AttributeError):
        yield f"{CARD} cannot be read"
        return
    if record is None:
        yield f"{CARD} names a study that is not in the store"
        return
    yield from _card(card, record)
    try:
        FinishedRun.of_model(folder, read_model(folder / WEIGHTS))
    except (BadInput, OSError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        yield str(error)


def _card(card: dict[str, Any], record: StudyRecord) -> Iterator[str]:
    """Yield where the card of a model contradicts its study."""
    entry = next((entry for entry in record.reproductions if entry.key == card.get("run")), None)
    if entry is None:
        yield f"{CARD} names a run that is no reproduction of its study"
        return
    tested = record.test_of(entry).to_json() if record.complete else {}
    expected = {
        "method": record.trained_method,
        "search": entry.search,
        "searches": record.searches,
        "preregistration": record.preregistration,
        "parameters": encode(record.selection.parameters) if record.selection else None,
        "validation": encode(entry.validation),
        "test": {name: tested.get(name) for name in ("separated", "concatenated")},
    }
    wrong = [name for name, value in expected.items() if card.get(name) != value]
    if wrong:
        yield f"{CARD} does not say what its study says ({wrong[0]})"
