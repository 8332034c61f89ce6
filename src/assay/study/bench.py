"""A bench: the studies of several methods, driven side by side over one engine."""

import math
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from assay.data import Dataset, load
from assay.devices import choose_device
from assay.engines import Engine, Task
from assay.errors import BadInput
from assay.methods import import_parts, methods
from assay.progress import Progress, silent
from assay.protocols import Protocol, protocols
from assay.protocols.settings import check_ranges
from assay.records.benches import AS_IS, declared_benches
from assay.records.ledger import read
from assay.records.progress import Board, Listener
from assay.records.store import Store
from assay.run import Keep, SharesOfTasks, Training
from assay.study.conditions import Conditions
from assay.study.countdown import Countdown
from assay.study.declare import (
    announced_in_words,
    check_test_half,
    declare,
    reference_of,
)
from assay.study.design import Design, design_methods
from assay.study.failures import cause_of, raise_failures, raise_unless_measured
from assay.study.plan import Plan, plan
from assay.study.study import Study, check_space
from assay.study.tryout import try_methods

Done = queue.SimpleQueue[Future[Any]]
"""Tasks that have ended, from all studies."""


@dataclass(frozen=True)
class Bench:
    """A bench that has ended.

    Args:
        out: the store.
        studies: keys of its studies.
    """

    out: Path
    studies: tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """How benches are carried out: engine, device, imports, which weights stay.

    Args:
        engine: where runs execute; opened once the designs have been checked, closed at the end.
        device: auto, cpu or cuda.
        imports: files or modules that register the user's own parts.
        keep: weights that stay: of the selected trial and the reproductions (`best`), or every
            checkpoint of every run (`all`), whose scores on the opened test half then give the
            price of peeking.
        listener: reports the progress.
        allow_leaks: bench data with copies in both halves or with conflicting labels, or vectors of
            a model that was trained on the test half, which are refused otherwise.
    """

    engine: Engine
    device: str = "auto"
    imports: tuple[str, ...] = ()
    keep: Keep = "best"
    listener: Listener = field(default_factory=Listener)
    allow_leaks: bool = False


def run_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    out: Path,
    execution: Execution,
    *,
    new_study: bool = False,
    control: str | None = None,
    reference: str | None = None,
) -> Bench:
    """Study each method on the data under the protocol; finished work is not done again.

    `new_study` begins new studies beside those that the store has. `control` adds a twin of a
    method. `reference` is the method that all others are compared with.
    """
    Store.check_out(out)
    designs = design_bench(
        data,
        with_baseline(names),
        protocol,
        execution.device,
        execution.imports,
        execution.listener.progress,
    )
    designs[0].conditions.check_data(execution.listener.announce, execution.allow_leaks)
    return run_designs(with_control(designs, control), out, execution, new_study, reference)


def plan_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    *,
    workers: int,
    device: str = "auto",
    imports: Sequence[str] = (),
    allow_leaks: bool = False,
    control: str | None = None,
    reference: str | None = None,
    out: Path | None = None,
    new_study: bool = False,
    progress: Progress = silent,
) -> Plan:
    """Return what the bench would cost on so many workers; nothing is written.

    Raise `BadInput` as the bench itself would before its first run, also about the store `out`.
    """
    if out is not None:
        Store.check_out(out)
    designs = design_bench(data, with_baseline(names), protocol, device, imports, progress)
    designs[0].conditions.check_data(Listener().say, allow_leaks)
    designs = with_control(designs, control)
    compared = reference_of(designs, reference)
    if out is not None:
        check_continues(designs, out, new_study)
    return plan(designs, workers, compared)


def check_continues(designs: Sequence[Design], out: Path, new_study: bool) -> None:
    """Raise `BadInput` where a store that is there was begun with other spaces or another test
    half; nothing is written.
    """
    if not (out / "format.json").exists():
        return
    store = Store(out)
    designs = [in_newest_generation(design, store, new_study) for design in designs]
    for design in designs:
        ledger = store.study(design.key) / "ledger.jsonl"
        check_space(design, ledger, read(ledger) if ledger.exists() else [])
    check_test_half(declared_benches(store), designs, store)


# --- what is studied ---


def design_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    device: str,
    imports: Sequence[str],
    progress: Progress = silent,
) -> list[Design]:
    """Return a design for each method; everything is looked up and checked, nothing is written.

    `["all"]` names every method that suits the trunk and the supervision.
    """
    import_parts(imports)
    declared = protocols[protocol] if isinstance(protocol, str) else protocol
    if problem := protocols.misnamed(declared.name, declared.fingerprint):
        raise BadInput(
            f"the protocol: {problem}. Give it a name of its own, or change settings with"
            " `customise`, which does"
        )
    check_ranges(declared)
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice or not names:
        raise BadInput(
            f"the method {twice[0]!r} is named twice" if twice else "name at least one method"
        )
    everything = list(names) == ["all"]
    chosen = list(methods) if everything else [methods[name].name for name in names]
    on = choose_device(device)
    dataset = load(data, progress) if isinstance(data, str) else data
    conditions = Conditions.open(dataset, declared, on, imports)
    if everything:
        chosen = [
            name
            for name in chosen
            if methods[name].starts in ("any", conditions.starts)
            and Design(conditions, methods[name]).why_not_listed is None
        ]
    designs = design_methods(conditions, chosen)
    try_methods(designs)
    return designs


def with_baseline(names: Sequence[str]) -> list[str]:
    """Return the names with that of the baseline that every bench has.

    >>> with_baseline(["triplet"])
    ['triplet', 'as_is']
    """
    return [*names, *([] if list(names) == ["all"] or AS_IS in names or not names else [AS_IS])]


def with_control(designs: Sequence[Design], control: str | None) -> list[Design]:
    """Return the designs and, if asked for, the twin of one of them, which has its own seeds."""
    if control is None:
        return list(designs)
    found = next((design for design in designs if design.name == control), None)
    if found is None or not found.trials:
        searched = [design.name for design in designs if design.trials]
        raise BadInput(
            f"--control {control}: name a method of this bench that is searched:"
            f" {', '.join(searched) or 'none is'}"
        )
    return [*designs, replace(found, twin=True)]


# --- how it is carried out ---


def run_designs(
    designs: Sequence[Design],
    out: Path,
    execution: Execution,
    new_study: bool,
    reference: str | None = None,
) -> Bench:
    """Declare a bench of these designs and carry it out.

    Each design is carried out as the newest study of its kind in the store, or as a new one.
    """
    store, announce = Store.create(out), execution.listener.announce
    with store.driving():
        designs = [in_newest_generation(design, store, new_study) for design in designs]
        studies = open_studies(designs, store, execution)
        bench = declare(store, designs, reference)
        announce("bench", announced_in_words(bench))
        if bench.reference:
            announce("bench", f"every method is compared with {bench.reference}")
        if bench.look > 1:
            before = len(bench.after)
            announce(
                "bench",
                f"look number {bench.look}: {before} studies were declared or tested before",
            )
        with execution.engine as engine:
            carry_out(studies, store, engine, execution.listener)
    return Bench(out, tuple(design.key for design in designs))


def in_newest_generation(design: Design, store: Store, new: bool = False) -> Design:
    """Return the design as the newest study of its kind in the store, or as the one after that."""
    generations = [design]
    while (store.study(generations[-1].key) / "ledger.jsonl").exists():
        generations.append(replace(design, generation=len(generations)))
    return generations[-1] if new or len(generations) == 1 else generations[-2]


def open_studies(designs: Sequence[Design], store: Store, execution: Execution) -> list[Study]:
    """Return the studies of these designs.

    Raise `BadInput` where a study in the store was announced with another search space.
    """
    studies = [Study(design, store, execution.listener, execution.keep) for design in designs]
    for study in studies:
        study.check()
    return studies


def carry_out(studies: Sequence[Study], store: Store, engine: Engine, listener: Listener) -> None:
    """Drive the studies to their ends."""
    designs = [study.design for study in studies]
    trained = [design for design in designs if design.method.loss]
    for words in dict.fromkeys(design.conditions.augmentation for design in trained):
        listener.announce("augmentation", words)
    for needed in dict.fromkeys(design.conditions.disk_needed() for design in designs):
        if needed:
            listener.announce("images", needed)
    to_train = [study for study in studies if study.design.method.loss and not study.trained]
    for study in studies:
        study.parts = _parts(engine.workers, len(to_train))
    drive(studies, engine, listener, Board(store))


def _parts(workers: int, studies: int) -> int:
    """Return into how many tasks a study splits runs that could be one stack.

    That is about two for each worker over all studies. A study never has more tasks than there are
    workers, since a longer stack wastes less.

    >>> [_parts(2, studies) for studies in (1, 2, 3, 4, 10)]
    [2, 2, 2, 1, 1]
    """
    return min(workers, math.ceil(2 * workers / max(1, studies)))


# --- studies side by side over one engine ---


def drive(studies: Sequence[Study], engine: Engine, listener: Listener, board: Board) -> None:
    """Give every study the results of its tasks until all have ended.

    One thread decides, writes ledgers and studies; workers only place runs. A study's next step
    depends on nothing but its own results, so the order in which tasks end changes nothing. A
    task that has ended costs the same however many wait.
    """
    done: Done = queue.SimpleQueue()
    states = [study.state for study in studies]
    running = [_RunningStudy(study, engine, done) for study in studies]
    countdown, shares = Countdown(), SharesOfTasks(board.store)
    board.post(states, None, engine.workers, last=True)
    owners: dict[Future[Any], _RunningStudy] = {}
    for study in running:
        owners |= dict.fromkeys(study.advance(), study)
    while any(study.waiting for study in running):
        for future in _arrivals(done):
            study = owners.pop(future)
            study.settle(future)
            if study.error is None and not study.waiting:
                owners |= dict.fromkeys(study.advance(), study)
        work = [study.work(shares.now()) for study in running]
        left = countdown.left(*(sum(part) for part in zip(*work, strict=True)))
        listener.tick(states, left)
        board.post(states, left, engine.workers)
    board.post(states, None, engine.workers, last=True)
    trained = [study.state for study in studies if study.design.method.loss]
    measured = [state.method for state in trained if state.stage == "done"]
    errors = {study.name: study.error for study in running if study.error is not None}
    raise_failures(errors, measured, board.store.root)
    raise_unless_measured([state.method for state in trained], measured)


def _arrivals(done: Done) -> Iterator[Future[Any]]:
    """Yield tasks that ended since the last call; wait up to one second for the first."""
    try:
        yield done.get(timeout=1)
        while True:
            yield done.get_nowait()
    except queue.Empty:
        return


class _RunningStudy:
    """A study under way: its generator and the step it waits for."""

    def __init__(self, study: Study, engine: Engine, done: Done) -> None:
        self._study, self._steps, self._engine, self._done = study, study.steps(), engine, done
        self._step: dict[Future[Any], Task] | None = None
        self.waiting: set[Future[Any]] = set()
        self.error: BaseException | None = None
        self._tasks: dict[str, int] = {}
        self._before: dict[str, float] = {}
        self._finished, self._iterations = 0.0, study.design.iterations_of_run

    @property
    def name(self) -> str:
        """Name of the study: its method, and the value in a sweep."""
        return self._study.state.method

    def advance(self) -> set[Future[Any]]:
        """Send the results of this step, submit the next step's tasks, and return their futures.

        Steps without tasks are passed over.
        """
        try:
            while not self.waiting:
                begun = self._step is not None
                tasks = (
                    self._steps.send([future.result() for future in self._step or ()])
                    if begun
                    else next(self._steps)
                )
                self._step = {self._engine.submit(task): task for task in tasks}
                self.waiting = set(self._step)
                trainings = (task for task in tasks if isinstance(task, Training))
                self._tasks = {task.runs[0].key: len(task.runs) for task in trainings}
        except StopIteration:
            return set()
        except Exception as error:
            self._give_up(error)
            return set()
        for future in self.waiting:
            future.add_done_callback(self._done.put)
        return self.waiting

    def settle(self, future: Future[Any]) -> None:
        """Record that a task has ended."""
        if self.error is not None:
            return
        self.waiting.discard(future)
        if (error := future.exception()) is not None:
            self._give_up(error)
            return
        task = (self._step or {})[future]
        if not isinstance(task, Training):
            return
        for run in task.runs:
            self._study.report_done(run)
        self._study.state.done += len(task.runs)
        del self._tasks[task.runs[0].key]
        self._finished += len(task.runs) * (1 - self._before.pop(task.runs[0].key, 0.0))

    def work(self, shares: Mapping[str, float]) -> tuple[float, float]:
        """Return the iterations that were done in this session, and those that are left.

        Of a task that was resumed, only what it has done since counts. `shares` are those that are
        done of tasks under way.
        """
        done, under_way = self._finished, 0.0
        for key in shares.keys() & self._tasks.keys():
            runs, share = self._tasks[key], shares[key]
            before = self._before[key] = min(self._before.get(key, share), share)
            done += runs * (share - before)
            under_way += runs * share
        state, each = self._study.state, self._iterations
        left = 0.0 if state.stage == "failed" else state.total - state.done - under_way
        return done * each, left * each

    def _give_up(self, error: BaseException) -> None:
        """End this study on its first error.

        Others go on, and the error is raised when they have ended.
        """
        self.error = error
        for future in self.waiting:
            future.cancel()
        self._study.announce(f"failed: {cause_of(error)}")
        self._study.state.stage, self._study.state.error = "failed", str(error)
        self.waiting = set()
