"""Runs of a store, computed again to see whether they come out the same.

Each is computed in a store of its own, by the task that computed it first. On the machine and with
the versions that it was computed with, every byte must be the same; elsewhere only the score can be
compared, within a tolerance.
"""

import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch

from assay.data import Dataset, load, splits
from assay.engines import Engine
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.methods import import_parts, methods
from assay.progress import Progress, silent
from assay.records.codec import BadRecord
from assay.records.run import WEIGHTS, Run, RunResult, read_timing
from assay.records.store import Store
from assay.records.study import StudyRecord, read_record
from assay.run import Training
from assay.study.conditions import Conditions
from assay.study.design import Design
from assay.verify.runs import PlacedRun, placed_runs

TOLERANCE = 0.02
"""How far validation MAP@R may lie from the stored one where machine or versions are others."""

OF_THE_ENVIRONMENT = ("environment", "source")
"""Fields of a run's configuration that are others where versions are."""

Outcome = Literal["same bytes", "within tolerance", "DIFFERENT"]


@dataclass(frozen=True)
class Repeated:
    """The outcome of a run that was computed again.

    Args:
        run: its key in the store.
        what: the method, and the trial or reproduction that it belongs to.
        outcome: same bytes, within tolerance, or different.
        explanation: by how much it differs, and how machine or versions differ from those that
            computed it first.
    """

    run: str
    what: str
    outcome: Outcome
    explanation: str = ""


@dataclass(frozen=True)
class _Repetition:
    """A run of a study, the same run as its announcement gives it here, and the task for it."""

    record: StudyRecord
    place: PlacedRun
    run: Run
    task: Training

    def ended(self, outcome: Outcome, explanation: str = "") -> Repeated:
        what = f"{self.record.title}, {self.place}"
        return Repeated(self.place.entry.key, what, outcome, explanation)


@dataclass
class Designs:
    """The designs of studies, made again from their announcements; each design is made once.

    Each data set is loaded once.
    """

    data: str | None
    imports: Sequence[str]
    _loaded: dict[str, Dataset] = field(default_factory=dict)
    _designs: dict[str, Design] = field(default_factory=dict)

    def has_data_of(self, record: StudyRecord) -> bool:
        """Return whether the data are those that the study worked on."""
        dataset, protocol = self._dataset(record), record.resolved
        try:
            trainval, _ = splits.of(dataset, protocol)
        except BadInput:  # too few classes for its folds, say
            return False
        return trainval.fingerprint == record.announced.data.trainval

    def design(self, record: StudyRecord) -> Design:
        """Return the design of a study, as its announcement has it."""
        if record.key not in self._designs:
            name = record.trained_method
            if name not in methods:
                raise BadInput(
                    f"there is no method {name!r} here; where it is your own, give its file with"
                    " --import"
                )
            twin = record.announced.twin_of is not None
            self._designs[record.key] = Design(self.conditions(record), methods[name], twin=twin)
        return self._designs[record.key]

    def conditions(self, record: StudyRecord) -> Conditions:
        """Return the data and the protocol of a study, on the device of its runs if it is here."""
        on_gpu = record.announced.environment.device == "cuda" and torch.cuda.is_available()
        return Conditions.open(
            self._dataset(record),
            record.resolved.declared,
            "cuda" if on_gpu else "cpu",
            self.imports,
        )

    def _dataset(self, record: StudyRecord) -> Dataset:
        name = self.data or record.announced.data.name
        try:
            if name not in self._loaded:
                self._loaded[name] = load(name)
        except BadInput as error:
            remedy = (
                ""
                if self.data
                else (
                    "; a store keeps the name of its data, not where they lie: give --data"
                    " kind:path"
                )
            )
            raise BadInput(f"{error}{remedy}") from None
        return self._loaded[name]


def rerun(
    store: Store,
    count: int,
    seed: int,
    engine: Engine,
    data: str | None = None,
    imports: Sequence[str] = (),
    progress: Progress = silent,
) -> Iterator[Repeated]:
    """Compute `count` runs of the store again, chosen at random by the seed, and compare them.

    The store itself is only read.

    Args:
        store: whose runs.
        count: how many; all where there are fewer.
        seed: of the choice.
        engine: where the runs execute; opened for them and closed at the end.
        data: where the data lie, if not where their name says; studies on other data are then left
            out.
        imports: the user's own files.
        progress: is called with the number of runs that are done.
    """
    import_parts(imports)
    designs = Designs(data, imports)
    chosen = _choose(store, designs, count, seed)
    with tempfile.TemporaryDirectory(prefix="assay-rerun-") as folder:
        scratch = Store.create(Path(folder) / "store")
        repetitions = [
            _repetition(record, place, designs, scratch, progress) for record, place in chosen
        ]
        progress("runs repeated", 0, len(repetitions))
        with engine:
            waiting = {engine.submit(repetition.task): repetition for repetition in repetitions}
            for done, future in enumerate(as_completed(waiting), start=1):
                future.result()
                progress("runs repeated", done, len(repetitions))
                yield _compare(store, scratch, waiting[future])


def device_of_runs(store: Store) -> str:
    """Return the device to repeat runs on: `auto` if some were computed on a GPU, else `cpu`."""
    computed_on = {record.announced.environment.device for record in readable_records(store)}
    return "cpu" if computed_on <= {"cpu"} else "auto"


def _choose(
    store: Store, designs: Designs, count: int, seed: int
) -> list[tuple[StudyRecord, PlacedRun]]:
    """Choose the runs at random among studies whose data are available."""
    records = readable_records(store)
    if designs.data:
        ours = [record for record in records if designs.has_data_of(record)]
        if records and not ours:
            raise BadInput(other_data(designs.data, records[0]))
        records = ours
    found = {
        place.entry.key: (record, place) for record in records for place in placed_runs(record)
    }
    if not found:
        raise BadInput(f"{store.root} holds no finished run that could be repeated")
    chosen = [
        found[key] for key in random.Random(seed).sample(sorted(found), min(count, len(found)))
    ]
    for record in {record.key: record for record, _ in chosen}.values():
        if not designs.has_data_of(record):
            raise BadInput(other_data(record.announced.data.name, record))
    return chosen


def readable_records(store: Store) -> list[StudyRecord]:
    """Return the studies whose ledgers can be read; `verify` reports the others."""
    found = []
    for key in store.studies():
        with suppress(BadInput, KeyError):
            found.append(read_record(store.study(key)))
    return [record for record in found if record is not None]


def other_data(name: str, record: StudyRecord) -> str:
    """Return the message for data that are not those of a study."""
    data = record.announced.data
    return (
        f"{name} is not the data that {record.method} was studied on ({data.name},"
        f" {data.samples} samples of {data.classes} classes in trainval,"
        f" fingerprint {data.trainval[:12]}): it is another data set, or files were added,"
        " removed or altered. Computing again needs the same data: give those with --data"
    )


def _repetition(
    record: StudyRecord, place: PlacedRun, designs: Designs, scratch: Store, progress: Progress
) -> _Repetition:
    """Return the run as the announcement has it, in a task of its own."""
    design = designs.design(record)
    run = design.study.run(place.stage, place.search, place.number, place.fold, place.parameters)
    view = design.conditions.place(design.conditions.trainval, progress)
    return _Repetition(
        record,
        place,
        run,
        Training((run,), str(scratch.root), str(view), design.conditions.imports),
    )


def _compare(store: Store, scratch: Store, repetition: _Repetition) -> Repeated:
    """Compare the run in the store with the one that was computed again."""
    folder, again = store.run(repetition.place.entry.key), scratch.run(repetition.run.key)
    try:
        stored, run = RunResult.read(folder / "result.json"), Run.read(folder / "config.json")
        computed = RunResult.read(again / "result.json")
    except BadRecord as error:
        return repetition.ended("DIFFERENT", f"its folder in the store cannot be read ({error})")
    there, here = stored.validation["map_at_r"], computed.validation["map_at_r"]
    same = (folder / "result.json").read_bytes() == (again / "result.json").read_bytes()
    config = run.to_json()
    other = [name for name, value in repetition.run.to_json().items() if config.get(name) != value]
    settings = [name for name in other if name not in OF_THE_ENVIRONMENT]
    if settings:
        return repetition.ended(
            "DIFFERENT", f"config.json has another {settings[0]} than the study announced"
        )
    if same and digest_file(again / WEIGHTS) == stored.weights:
        return repetition.ended("same bytes")
    difference = f"validation MAP@R {here:.6f}, in the store {there:.6f}"
    unlike = differences_of_environment(folder, run, repetition.run)
    if not unlike:
        return repetition.ended(
            "DIFFERENT", f"{difference}, on the same machine and with the same versions"
        )
    outcome: Outcome = "within tolerance" if abs(here - there) <= TOLERANCE else "DIFFERENT"
    return repetition.ended(outcome, f"{difference}, tolerance {TOLERANCE}; {'; '.join(unlike)}")


def differences_of_environment(folder: Path, stored: Run, run: Run) -> list[str]:
    """Return in words how machine and versions differ from those that computed the run first."""
    there, here = asdict(stored.environment), asdict(run.environment)
    named = {"source": "another source of Assay", "images": "another decoder of images"}
    unlike = [
        named.get(name, f"{name} {there[name]} there, {value} here")
        for name, value in here.items()
        if there[name] != value
    ]
    if stored.source != run.source:
        unlike.append("another source of the method")
    timing = read_timing(folder)
    host = "unknown" if timing is None else timing.host
    if host != socket.gethostname():
        unlike.append(f"another machine ({host} there, {socket.gethostname()} here)")
    return unlike
