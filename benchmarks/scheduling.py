"""What it costs to hand out runs: speed on two workers, overhead per task, memory of the driver,
clusters that are not there.

python benchmarks/scheduling.py [PART ...] [--small]

Parts: `speedup`, `overhead`, `memory`, `decisions`, `cluster`; all of them where none is named.
`--small` tries everything in a minute or two, for seeing that it works: its figures mean little.

The simulated cluster has 168 slots on this machine, each a process of Ray in which a run is a
sleep: one of 3 s stands for a run of half an hour, on a clock 600 times as fast. Everything goes
through the loop that drives real benches; studies are stubs that ask for as many runs as real ones
do, in the same steps.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from assay.engines import Engine, LocalEngine, Task
from assay.engines.ray import RayEngine, connect
from assay.hashing import derive
from assay.protocols import customise, protocols
from assay.records.ledger import Ledger
from assay.records.lines import RunEntry, Trial
from assay.records.progress import Board, Listener, StudyState, TimeLeft
from assay.records.store import Store
from assay.space import Real, Space
from assay.study.bench import Execution, drive, run_bench
from assay.study.design import Design
from assay.study.search import TrialResult, ask
from assay.study.study import Steps, Study

ENGINES: dict[str, Callable[[], Engine]] = {"local": LocalEngine, "ray": RayEngine}
METHODS = ("contrastive", "triplet")
WHO = partial(subprocess.check_output, ("sh", "-c", "sleep 0.5; echo $PPID"))
"""A task that keeps its process for a moment and tells which it is."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        runs: equal tasks of the comparison of two workers with one.
        seconds: length of a run.
        settings: of the real bench on glyphs.
        trips: empty tasks, one after the other.
        tasks: empty tasks in all, of the memory's course.
        trials: of each study of the simulated bench.
        slots: of the simulated cluster.
        lengths: seconds of a simulated run.
    """

    runs: int = 24
    seconds: float = 10.0
    settings: tuple[str, ...] = ("trials=2", "startup=1", "reproductions=2", "patience=100")
    trips: int = 300
    tasks: int = 10_000
    trials: int = 50
    slots: int = 168
    lengths: tuple[float, ...] = (3.0, 1.0, 0.3)


SMALL = Size(
    runs=6,
    seconds=1.0,
    settings=(
        "trials=1",
        "startup=0",
        "reproductions=1",
        "patience=100",
        "epochs=1",
        "iterations=20",
    ),
    trips=50,
    tasks=1_000,
    trials=4,
    slots=8,
    lengths=(0.5,),
)

STUDIES, FOLDS, REPRODUCTIONS = 42, 4, 10
"""Of the reality check: 14 methods on 3 data sets."""


class Stub(Study):
    """A study that asks for runs as a real one does: the folds of a trial together, then all
    reproductions.
    """

    def __init__(self, number: int, trials: int, task: Callable[[int], Task]) -> None:
        self.trials, self.task, self.done = trials, task, 0
        self.state = StudyState(
            str(number), f"study {number}", trials, trials * FOLDS + REPRODUCTIONS * FOLDS
        )
        self.number = number
        self.design = cast("Design", SimpleNamespace(iterations_of_run=1))

    def steps(self) -> Steps:
        """The tasks of each step."""
        for many in [FOLDS] * self.trials + [FOLDS * REPRODUCTIONS]:
            yield [self.task(derive(self.number, self.done + extra)) for extra in range(many)]
            self.done += many

    def say(self, text: str) -> None:
        """Nothing."""


class Memory(Listener):
    """Notes the size of this process as tasks are done."""

    def __init__(self, studies: Sequence[Stub], at: Sequence[int]) -> None:
        self._studies, self._at, self.megabytes = studies, list(at), list[float]()

    def tick(self, states: Sequence[StudyState], left: TimeLeft | None) -> None:
        """Look, where the next mark is passed."""
        if self._at and sum(study.done for study in self._studies) >= self._at[0]:
            self._at.pop(0)
            self.megabytes.append(resident())


def resident() -> float:
    """Megabytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def carry_out(studies: Sequence[Study], engine: Engine, listener: Listener | None = None) -> float:
    """Seconds that the bench of these studies takes."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        drive(studies, engine, listener or Listener(), Board(Store.create(Path(folder) / "store")))
        return time.perf_counter() - begin


def row(*cells: object) -> None:
    print(
        "| "
        + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        + " |",
        flush=True,
    )


def table(*headings: str) -> None:
    print()
    row(*headings)
    row(*["---"] * len(headings))


# --- two workers ----------------------------------------------------------------------------------


def burn(seconds: float) -> Task:
    """A task that keeps one core busy for about so long, on this machine at this hour."""
    begin, count = time.perf_counter(), 5_000_000
    sum(range(count))
    return partial(sum, range(int(count * seconds / (time.perf_counter() - begin))))


def speedup(size: Size) -> None:
    """Two workers against one: tasks that only compute, and a real bench on glyphs with runs of one
    thread.
    """
    table(
        "bench of equal runs, local engine",
        "one worker, s",
        "two workers, s",
        "times as fast",
        "must be at least",
    )
    task = burn(size.seconds / 10)
    _compare(f"{size.runs} runs of a loop", partial(_burned, task, size.runs), 1.8)
    _compare(
        "the same in bare processes: what the machine gives", partial(_bare, task, size.runs), ""
    )
    _benched(size, 2)  # the cache is filled before anything is timed
    _compare(f"{', '.join(METHODS)} on glyphs under quick", partial(_benched, size), 1.8)


def _compare(what: str, seconds: Callable[[int], float], least: object) -> None:
    """One and two workers in turns, for the machine's pace changes from minute to minute; the
    medians.
    """
    rounds = [(seconds(1), seconds(2)) for _ in range(3)]
    one, two = (statistics.median(times) for times in zip(*rounds, strict=True))
    row(what, one, two, one / two, least)


def _burned(task: Task, runs: int, workers: int) -> float:
    with LocalEngine(workers) as engine:
        _wake(engine, workers)
        begin = time.perf_counter()
        for future in [engine.submit(task) for _ in range(runs)]:
            future.result()
        return time.perf_counter() - begin


def _bare(task: Task, runs: int, processes: int) -> float:
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(time.sleep, [0.5] * 2 * processes))
        begin = time.perf_counter()
        for future in [pool.submit(task) for _ in range(runs)]:
            future.result()
        return time.perf_counter() - begin


def _benched(size: Size, workers: int) -> float:
    protocol = customise(protocols["quick"], size.settings)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        run_bench(
            "glyphs",
            METHODS,
            protocol,
            Path(folder) / "store",
            Execution(LocalEngine(workers), device="cpu"),
        )
        return time.perf_counter() - begin


def _wake(engine: Engine, workers: int) -> None:
    """Have every worker started before anything is timed."""
    for future in [engine.submit(partial(time.sleep, 0.5)) for _ in range(2 * workers)]:
        future.result()


def _wake_all(engine: Engine) -> None:
    """Have as many processes answer as there are slots: the first would do all the work while the
    last are starting.
    """
    awake: set[bytes] = set()
    while len(awake) < engine.workers:
        awake |= {future.result() for future in [engine.submit(WHO) for _ in range(engine.workers)]}


# --- overhead -------------------------------------------------------------------------------------


def overhead(size: Size) -> None:
    """What a task costs beside its own work: alone, among many, and as a share of a run."""
    table(
        "engine",
        "round trip of an empty task, ms",
        "empty tasks a second",
        f"beside runs of {size.seconds:g} s, %",
        "must be below",
    )
    for name, start in ENGINES.items():
        with start() as engine:
            _wake(engine, engine.workers)
            trip = statistics.median(_timed(engine, partial(int)) for _ in range(size.trips))
            studies = [Stub(number, 5, lambda _: partial(int)) for number in range(10)]
            rate = sum(study.state.total for study in studies) / carry_out(studies, engine)
            rounds = 3
            begin = time.perf_counter()
            for future in [
                engine.submit(partial(time.sleep, size.seconds))
                for _ in range(rounds * engine.workers)
            ]:
                future.result()
            beside = (time.perf_counter() - begin) / (rounds * size.seconds) - 1
            row(name, 1000 * trip, rate, 100 * beside, 2)


def _timed(engine: Engine, task: Task) -> float:
    begin = time.perf_counter()
    engine.submit(task).result()
    return time.perf_counter() - begin


# --- memory ---------------------------------------------------------------------------------------


def memory(size: Size) -> None:
    """The driver's size over many tasks that are as large as real ones, packed: about 4 kB."""
    marks = [size.tasks // 10, size.tasks // 2, size.tasks]
    table("driver's memory, MB", *(f"after {mark:,} tasks" for mark in marks), "tasks a second")
    trials = -(-size.tasks // STUDIES // FOLDS)
    for name, start in ENGINES.items():
        with start() as engine:
            _wake(engine, engine.workers)
            studies = [Stub(number, trials, _payload) for number in range(STUDIES)]
            listener = Memory(studies, marks)
            seconds = carry_out(studies, engine, listener)
            row(
                name,
                *(round(size) for size in listener.megabytes),
                sum(study.done for study in studies) / seconds,
            )


def _payload(seed: int) -> Task:
    return partial(len, seed.to_bytes(16, "big") * 256)


# --- decisions ------------------------------------------------------------------------------------


def decisions(size: Size) -> None:
    """What the driver itself does for a trial: ask for the next parameters, and put the answer on
    the record.
    """
    table("the driver's own work", "trials so far", "ms")
    space = Space(
        margin=Real(0.0, 1.0), weight=Real(0.1, 10.0, log=True), scale=Real(1.0, 100.0, log=True)
    )
    told: list[TrialResult] = []
    for number in range(size.trials):
        begin = time.perf_counter()
        parameters = ask(
            space, told, {"margin": 0.1, "weight": 1.0, "scale": 10.0}, min(5, size.trials // 2), 0
        )
        if number in (size.trials // 2, size.trials - 1):
            row(
                "ask for the next trial, three parameters",
                number,
                1000 * (time.perf_counter() - begin),
            )
        told.append(
            TrialResult(parameters, float(parameters["margin"]) / float(parameters["scale"]))
        )
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        run = RunEntry(
            key="0" * 64,
            status="finished",
            validation={"map_at_r": 0.5},
            best_epoch=1,
            last_epoch=1,
            result="0" * 64,
        )
        begin = time.perf_counter()
        for number in range(size.trials):
            ledger.record(Trial(0, number, {"margin": 0.5}, "finished", 0.5, (run,) * FOLDS))
        row("record it", size.trials, 1000 * (time.perf_counter() - begin) / size.trials)


# --- a cluster that is not there ------------------------------------------------------------------


def cluster(size: Size) -> None:
    """The whole reality check, runs as sleeps, on as many slots as its searches can use."""
    total = STUDIES * (size.trials + REPRODUCTIONS) * FOLDS
    table(
        f"{total:,} runs on {size.slots} slots, s each",
        "ideal, s",
        "measured, s",
        "efficiency, %",
        "runs a second",
        "cores kept busy by",
    )
    os.environ.update(
        {"RAY_worker_register_timeout_seconds": "900"}
    )  # so many processes take their time to begin
    with ExitStack() as stack:
        connect(None, stack, size.slots)
        engine = stack.enter_context(RayEngine())
        _wake_all(engine)
        for seconds in size.lengths:
            studies = [
                Stub(number, size.trials, partial(_asleep, seconds)) for number in range(STUDIES)
            ]
            before = processor_seconds()
            taken = carry_out(studies, engine)
            busy = {
                name: (spent - before.get(name, 0.0)) / taken
                for name, spent in processor_seconds().items()
            }
            ideal = best_possible(size, seconds)
            row(
                seconds,
                ideal,
                taken,
                100 * ideal / taken,
                total / taken,
                ", ".join(f"{name} {cores:.2f}" for name, cores in busy.items()),
            )


def _asleep(seconds: float, seed: int) -> Task:
    return partial(time.sleep, seconds)


def best_possible(size: Size, seconds: float) -> float:
    """Seconds where handing out costs nothing: rounds of trials, then of reproductions, on so many
    slots.
    """
    trial_rounds = -(-STUDIES * FOLDS // size.slots) * size.trials
    return seconds * (trial_rounds + -(-STUDIES * FOLDS * REPRODUCTIONS // size.slots))


def processor_seconds() -> dict[str, float]:
    """Seconds of computing so far, by part of the cluster: this driver, Ray's own processes, and
    those that do the runs.
    """
    spent = dict.fromkeys(["driver", "raylet", "gcs", "workers"], 0.0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name = path.with_name("cmdline").read_bytes().split(b"\0")[0].decode()
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        part = "driver" if path.parent.name == str(os.getpid()) else _part(name)
        if part:
            spent[part] += seconds
    return spent


def _part(name: str) -> str | None:
    known = {"raylet": "raylet", "gcs_server": "gcs"}
    return "workers" if name.startswith("ray::") else known.get(Path(name).name)


PARTS: dict[str, Callable[[Size], None]] = {
    "speedup": speedup,
    "overhead": overhead,
    "memory": memory,
    "decisions": decisions,
    "cluster": cluster,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--small", action="store_true", help="try it quickly")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part is called {unknown.pop()}; there are {', '.join(PARTS)}")
    for name in given.parts or PARTS:
        PARTS[name](SMALL if given.small else Size())


if __name__ == "__main__":
    main()
