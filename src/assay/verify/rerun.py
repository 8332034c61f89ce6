"""Runs of a store, computed again to see whether they come out the same.

Each is computed in a store of its own, by the task that computed it first. With the versions and on
a processor of the kind that it was computed with, every byte is the same; elsewhere only scores can
be compared, within a tolerance. No store can prove on which machine it was made, so what decides is
what comes out here: where another run of the same study comes out with the same weights, this
machine computes as the first one did, and no tolerance is granted.
"""

import random
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from assay.data.dataset import Half
from assay.engines import Engine
from assay.errors import BadInput, failed_here
from assay.files import read_bytes
from assay.hashing import digest_file
from assay.npz import read_npy
from assay.progress import Progress, silent
from assay.records.codec import BadRecord, differing_fields
from assay.records.ledger import receipt_of
from assay.records.run import WEIGHTS, Run, RunResult
from assay.records.store import Store
from assay.records.study import StudyRecord, readable_records
from assay.run import HalfLabels, TestEmbedding, Training, Unsealed, single_vectors
from assay.study.announced import AnnouncedStudy
from assay.study.conditions import Conditions
from assay.verify.designs import Designs, other_data
from assay.verify.finding import words_of
from assay.verify.runs import PlacedRun, placed_runs

TOLERANCE = 0.02
"""How far validation MAP@R may lie from the stored one where training led to other weights."""

SAME_WEIGHTS = 0.001
"""How far it may lie where training led to the same weights: last digits of the scoring."""

ANOTHER_PROCESSOR = "a processor of another kind may give them, which nothing proves"
"""Why other bytes may come out with the same versions."""

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
        explanation: by how much it differs, and which tolerance was granted for what reason.
    """

    run: str
    what: str
    outcome: Outcome
    explanation: str = ""


@dataclass(frozen=True)
class _Computed:
    """What came out when a run was computed again.

    Args:
        outcome: same bytes or different; None: that depends on whether this machine computes as the
            first one did.
        same_weights: whether training led to the same weights, byte for byte.
        apart: how far validation MAP@R lies from the stored one.
        explanation: by how much it differs, or what else is wrong.
        unlike: how the versions differ from those that computed it first; empty if they do not.
        test_apart: how far test MAP@R of the weights computed here lies from the recorded one.
    """

    outcome: Outcome | None
    same_weights: bool = False
    apart: float = 0.0
    explanation: str = ""
    unlike: str = ""
    test_apart: float = 0.0


@dataclass(frozen=True)
class Repetition:
    """A run of a study, the same run as its announcement gives it here, and the task for it."""

    record: StudyRecord
    place: PlacedRun
    run: Run
    task: Training

    def ended(self, outcome: Outcome, explanation: str = "") -> Repeated:
        """Return the outcome of this run."""
        what = f"{self.record.title}, {self.place}"
        return Repeated(self.place.entry.key, what, outcome, explanation)


_Chosen = tuple[StudyRecord, PlacedRun]


def rerun(
    store: Store,
    count: int,
    seed: int,
    engine: Engine,
    designs: Designs,
    progress: Progress = silent,
) -> Iterator[Repeated]:
    """Compute `count` runs of the store again, chosen at random by the seed, and compare them.

    Nothing is taken from the user's cache: trainval is packed from the data. The store itself is
    only read.

    Args:
        store: whose runs.
        count: how many; all where there are fewer.
        seed: of the choice.
        engine: where the runs execute; opened for them and closed at the end.
        designs: of the studies.
        progress: is called with the number of runs that are done.
    """
    with tempfile.TemporaryDirectory(prefix="assay-rerun-") as folder, engine:
        chosen, others = _choose(store, designs, count, seed)
        scratch = Store.create(Path(folder) / "store")

        def compute(places: Sequence[_Chosen]) -> Iterator[tuple[Repetition, _Computed]]:
            repetitions = [repetition_of(*place, designs, scratch, progress) for place in places]
            waiting = {engine.submit(repetition.task): repetition for repetition in repetitions}
            for done, future in enumerate(as_completed(waiting), start=1):
                future.result()
                progress("runs repeated", done, len(repetitions))
                computed = _compare(store, scratch, waiting[future])
                if computed.outcome is None and not computed.same_weights:
                    computed = _test(store, scratch, designs, waiting[future], computed, progress)
                yield waiting[future], computed

        proven, open_ones = set[str](), list[tuple[Repetition, _Computed]]()
        for repetition, computed in compute(chosen):
            proven |= _shown_by(repetition, computed)
            if computed.outcome is None:
                open_ones.append((repetition, computed))
            else:
                yield repetition.ended(computed.outcome, computed.explanation)
        unproven = {repetition.record.key for repetition, _ in open_ones} - proven
        for repetition, computed in compute(_controls(others, unproven)):
            proven |= _shown_by(repetition, computed)
        for repetition, computed in open_ones:
            yield _judge(repetition, computed, as_first=repetition.record.key in proven)


def _shown_by(repetition: Repetition, computed: _Computed) -> set[str]:
    """Return the key of the study that this machine is shown to compute as the first one did.

    Where nothing is trained by steps, weights show nothing.
    """
    trained = repetition.record.announced.method.head == "linear"
    return {repetition.record.key} if trained and computed.same_weights else set()


def _controls(others: Sequence[_Chosen], studies: Collection[str]) -> list[_Chosen]:
    """Return a run of each of these studies that can show something, where one was not chosen."""
    found = {
        record.key: (record, place)
        for record, place in others
        if record.key in studies and record.announced.method.head == "linear"
    }
    return list(found.values())


def _judge(repetition: Repetition, computed: _Computed, *, as_first: bool) -> Repeated:
    """Return the outcome of a run with other bytes.

    `as_first` says whether this machine computes as the one that computed the study first.
    """
    if as_first and not computed.unlike:
        return repetition.ended(
            "DIFFERENT",
            f"{computed.explanation}; training of this study comes out here with the same weights,"
            " so this run was altered, or computed on a processor of another kind",
        )
    tolerance = SAME_WEIGHTS if computed.same_weights else TOLERANCE
    apart = max(computed.apart, computed.test_apart)
    reason = computed.unlike or (
        "with the same versions, as a processor of another kind may give it, which nothing proves"
    )
    return repetition.ended(
        "within tolerance" if apart <= tolerance else "DIFFERENT",
        f"{computed.explanation}, tolerance {tolerance}; {reason}",
    )


def device_of_runs(store: Store) -> str:
    """Return the device to repeat runs on: `auto` if some were computed on a GPU, else `cpu`."""
    computed_on = {record.announced.environment.device for record in readable_records(store)}
    return "cpu" if computed_on <= {"cpu"} else "auto"


def _choose(
    store: Store, designs: Designs, count: int, seed: int
) -> tuple[list[_Chosen], list[_Chosen]]:
    """Choose runs at random among studies whose data are available.

    Return them, and the others in a random order.
    """
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
    draw, keys = random.Random(seed), sorted(found)
    chosen = draw.sample(keys, min(count, len(found)))
    others = [key for key in keys if key not in chosen]
    draw.shuffle(others)
    for record in {record.key: record for record, _ in map(found.__getitem__, chosen)}.values():
        if not designs.has_data_of(record):
            raise BadInput(other_data(record.announced.data.name, record))
    return [found[key] for key in chosen], [found[key] for key in others]


def repetition_of(
    record: StudyRecord, place: PlacedRun, designs: Designs, scratch: Store, progress: Progress
) -> Repetition:
    """Return the run as the announcement has it, in a task of its own."""
    design = designs.design(record)
    run = design.study.run(place.stage, place.search, place.number, place.fold, place.parameters)
    view = design.conditions.place(design.conditions.trainval, progress)
    return Repetition(
        record,
        place,
        run,
        Training(
            (run,),
            str(scratch.root),
            str(view),
            design.conditions.imports,
            channels=design.conditions.trainval.inputs,
        ),
    )


def _compare(store: Store, scratch: Store, repetition: Repetition) -> _Computed:
    """Compare the run in the store with the one that was computed again."""
    folder, again = store.run(repetition.place.entry.key), scratch.run(repetition.run.key)
    try:
        stored, run = RunResult.read(folder / "result.json"), Run.read(folder / "config.json")
        computed = RunResult.read(again / "result.json")
    except BadRecord as error:
        if failed_here(error):
            raise
        return _Computed(
            "DIFFERENT", explanation=f"its folder in the store cannot be read ({words_of(error)})"
        )
    config = run.to_json()
    other = [name for name, value in repetition.run.to_json().items() if config.get(name) != value]
    settings = [name for name in other if name not in OF_THE_ENVIRONMENT]
    if settings:
        return _Computed(
            "DIFFERENT",
            explanation=f"config.json has another {settings[0]} than the study announced",
        )
    if stored.status != computed.status:
        return _Computed(
            "DIFFERENT", explanation=f"it is {stored.status} in the store, {computed.status} here"
        )
    there, here = stored.validation["map_at_r"], computed.validation["map_at_r"]
    same = read_bytes(folder / "result.json") == read_bytes(again / "result.json")
    same_weights = digest_file(again / WEIGHTS) == stored.weights
    return _Computed(
        "same bytes" if same and same_weights else None,
        same_weights,
        abs(here - there),
        _in_words(stored, computed, same),
        "; ".join(differences_of_environment(run, repetition.run)),
    )


def _in_words(stored: RunResult, computed: RunResult, same: bool) -> str:
    """Return how two results differ: by their scores, or else by which fields.

    `same` says whether their files are the same bytes.
    """
    there, here = (f"{one.validation['map_at_r']:.6f}" for one in (stored, computed))
    words = f"validation MAP@R {here}, in the store {there}"
    if here != there or same:
        return words
    other = ", ".join(differing_fields(stored.to_json(), computed.to_json()))
    return f"{words}, and of result.json another {other or 'layout'}"


def _test(
    store: Store,
    scratch: Store,
    designs: Designs,
    repetition: Repetition,
    computed: _Computed,
    progress: Progress,
) -> _Computed:
    """Embed the test half with weights that were trained here, and compare MAP@R with the record.

    Other weights can be fitted to the test half so that no validation changes.
    """
    record, key = repetition.record, repetition.place.entry.key
    tested = next((one for one in record.tests if key in one.runs), None)
    if tested is None:
        return computed
    conditions, protocol = designs.conditions(record), AnnouncedStudy(record.announced).run_protocol
    half, test = open_half(store, record, conditions, scratch, progress)
    TestEmbedding(repetition.run.key, test)()
    z = torch.from_numpy(read_npy(test.vectors(repetition.run.key)))
    alone = single_vectors(z, protocol.dim, protocol.similarity)
    here = HalfLabels.of(half).score(alone, ["map_at_r"], protocol.similarity)["map_at_r"]
    there = tested.folds[tested.runs.index(key)]["map_at_r"]
    words = f"{computed.explanation}; test MAP@R {here:.6f}, in the ledger {there:.6f}"
    return replace(computed, test_apart=abs(here - there), explanation=words)


def open_half(
    store: Store, record: StudyRecord, conditions: Conditions, scratch: Store, progress: Progress
) -> tuple[Half, Unsealed]:
    """Return the test half of a study with its receipt, and the same for tasks on `scratch`."""
    receipt = receipt_of(store.study(record.key) / "ledger.jsonl")
    half = conditions.test.open(receipt)
    return half, conditions.unsealed(scratch.root, half, receipt, progress)


def differences_of_environment(stored: Run, run: Run) -> list[str]:
    """Return in words how versions differ from those that computed the run first."""
    there, here = asdict(stored.environment), asdict(run.environment)
    named = {"source": "another source of Assay", "images": "another decoder of images"}
    unlike = [
        named.get(name, f"{name} {there[name]} there, {value} here")
        for name, value in here.items()
        if there[name] != value
    ]
    if stored.source != run.source:
        unlike.append("another source of the method")
    return unlike
