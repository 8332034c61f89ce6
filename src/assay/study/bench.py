"""A bench: the studies of several methods, driven side by side over one engine."""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.data import Dataset, load, splits
from assay.data.scan import reporting
from assay.embed import choose_device
from assay.engines import Engine, LocalEngine, Task
from assay.errors import BadInput
from assay.methods import import_parts, methods
from assay.protocol import Protocol
from assay.protocols import protocols
from assay.run import Training
from assay.store import Store
from assay.study.arena import Arena, describe_data
from assay.study.design import Design
from assay.study.plan import Plan, plan
from assay.study.progress import Listener, Silent
from assay.study.study import Study


@dataclass(frozen=True)
class Bench:
    """What was benched, and where."""

    out: Path
    studies: tuple[str, ...]


def run_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    out: Path,
    *,
    workers: int | None = None,
    device: str = "auto",
    imports: Sequence[str] = (),
    listener: Listener | None = None,
) -> Bench:
    """Study each method on the data under the protocol; what is finished already is not done again."""
    listener = listener or Silent()
    with reporting(listener.preparing):
        designs = design_bench(data, names, protocol, device, imports)
    store = Store.create(out)
    with store.driving(), LocalEngine(workers) as engine:
        if words := designs[0].arena.disk_needed():
            listener.say("images", words)
        drive([Study(design, store, listener) for design in designs], engine, listener)
    return Bench(out, tuple(design.key for design in designs))


def plan_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    *,
    workers: int | None = None,
    device: str = "auto",
    imports: Sequence[str] = (),
) -> Plan:
    """What the bench would cost; nothing is written."""
    return plan(design_bench(data, names, protocol, device, imports), workers or LocalEngine().workers)


def design_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    device: str,
    imports: Sequence[str],
) -> list[Design]:
    """A design for each method, everything looked up and checked before anything is written."""
    import_parts(imports)
    declared = protocols[protocol] if isinstance(protocol, str) else protocol
    chosen, on = choose(names), choose_device(device)
    dataset = load(data) if isinstance(data, str) else data
    trainval, test = splits.of(dataset, declared)
    here = tuple(str(Path(name).resolve()) if name.endswith(".py") else name for name in imports)
    arena = Arena(describe_data(dataset, trainval), trainval, test, declared, on, here)
    arena.check_trunk()
    designs = [Design(arena, methods[name]) for name in chosen]
    for design in designs:
        design.preregistration  # noqa: B018 (raises what does not go together)
    return designs


def choose(names: Sequence[str]) -> list[str]:
    """The methods named, in that order; `all` is every one."""
    if list(names) == ["all"]:
        return list(methods)
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice or not names:
        raise BadInput(f"the method {twice[0]!r} is named twice" if twice else "name at least one method")
    return [methods[name].name for name in names]


def drive(studies: Sequence[Study], engine: Engine, listener: Listener) -> None:
    """Keep every study supplied with answers until all have ended.

    One thread decides, writes ledgers and studies; workers only place runs. A study's next step depends on nothing but
    its own answers, so the order in which tasks arrive changes nothing.
    """
    running = [_Progress(study) for study in studies]
    clock = _Clock(studies)
    for progress in running:
        progress.advance(engine)
    while waiting := [future for progress in running for future in progress.waiting]:
        done, _ = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
        for progress in running:
            clock.finished += progress.settle(done)
            if done and not progress.waiting and progress.error is None:
                progress.advance(engine)
        listener.tick([study.state for study in studies], clock.seconds_left())
    for progress in running:
        if progress.error is not None:
            raise progress.error


class _Progress:
    """A study under way: its generator and the step it waits for."""

    def __init__(self, study: Study) -> None:
        self._study, self._steps = study, study.steps()
        self._step: dict[Future[Any], Task] | None = None
        self.waiting: set[Future[Any]] = set()
        self.error: BaseException | None = None

    def advance(self, engine: Engine) -> None:
        """Hand over the answers of this step and submit the tasks of the next one that has any."""
        try:
            while not self.waiting:
                begun = self._step is not None
                tasks = self._steps.send([future.result() for future in self._step or ()]) if begun else next(self._steps)
                self._step = {engine.submit(task): task for task in tasks}
                self.waiting = set(self._step)
        except StopIteration:
            pass

    def settle(self, done: set[Future[Any]]) -> int:
        """Count this step's tasks among those done, raising what they raised; how many of them were runs."""
        finished = [(future, task) for future, task in (self._step or {}).items() if future in self.waiting & done]
        self.waiting -= done
        runs = 0
        for future, task in finished:
            if future.exception() is not None:
                self._give_up(future.exception())
            elif isinstance(task, Training):
                runs += len(task.runs)
                for run in task.runs:
                    self._study.listener.say(self._study.design.method.name, f"run {run.key[:12]} done")
        self._study.state.done += runs
        return runs

    def _give_up(self, error: BaseException | None) -> None:
        """End this study on its first error; the others go on, and the error is raised when they are through."""
        for future in self.waiting:
            future.cancel()
        if self.error is None:
            self._study.listener.say(self._study.design.method.name, "failed; the other methods go on")
        self._study.state.stage = "failed"
        self.waiting, self.error = set(), self.error or error


class _Clock:
    """Time left, from the pace of this session."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self._studies, self._start = studies, time.monotonic()
        self.finished = 0

    def seconds_left(self) -> float | None:
        if not self.finished:
            return None
        left = sum(study.state.total - study.state.done for study in self._studies if study.state.stage != "failed")
        return left * (time.monotonic() - self._start) / self.finished
