"""How many trials the search needs, against random search, on recorded and on synthetic landscapes.

python benchmarks/search.py [--seeds 20] [--only NAME,...] [--processes 2] [--to-the-end]

recorded: the searches of Musgrave et al. 2020 over one parameter, of which the value of every trial
is known. The landscape is a line through the recorded points, on the scale and in the range in
which they were searched; the mean where a point was tried twice, the nearest point beyond the
outermost. Two trials side by side differ by 1 to 2% by chance, so the peaks of that line are mostly
luck, which no search can foresee. `smoothed` is the same line through the means of five
neighbouring points: what is left of the landscape without most of the luck. Of searches over
several parameters only the best value so far was recorded: the handful of trials that were records
have a value and the rest none, too few for a landscape.

synthetic: standard functions of 2 to 5 dimensions (sfu.ca/~ssurjano), turned upside down.

Counted are the trials until 99% is reached: of the best value; where a function has no natural
zero, of the way from the median of the space to the optimum. A search that does not get there in 50
trials counts as 51; one that does ends there, unless it is told to go on `--to-the-end`, which
takes longer. The first trial is the method's defaults, as in a study; on a synthetic function a
random point, the same for both searches.
"""

import argparse
import csv
import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray

from assay.hashing import derive
from assay.methods import defaults, methods
from assay.protocols import Protocol, Search, protocols, resolve
from assay.space import Integer, Parameters, Real, Space, Value
from assay.study.search import TrialResult, ask, uniform
from assay.trunks import trunk_facts

RECORDS = Path(__file__).parent / "landscapes" / "mlrc_bo_trials.csv.gz"
TRIALS, ENOUGH = 50, 0.99
GUESSES = 1000
"""Random searches, which cost nothing, whose median says what guessing needs; one of 20 moves by
several trials.
"""
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """What a search climbs.

    Args:
        name: as the table shows it.
        space: in which it is searched.
        value: of a point, the higher the better.
        floor: value that counts as 0%.
        best: value that counts as 100%.
        first: parameters of the first trial; None: a random point.
    """

    name: str
    space: Space
    value: Callable[[Parameters], float]
    floor: float
    best: float
    first: Mapping[str, Value] | None = None

    def defaults(self, seed: int) -> Mapping[str, Value]:
        """Parameters of the first trial."""
        return uniform(self.space, 0, derive("first", seed)) if self.first is None else self.first

    def share(self, value: float) -> float:
        """How much of the way to the best this is."""
        return (value - self.floor) / (self.best - self.floor)


# --- Recorded ---

MARGIN = Real(-0.2, 2)
RECORDED: dict[str, tuple[str, Real | Integer]] = {
    "cars_ntxent": ("nt_xent", Real(1e-5, 100, log=True)),
    "cars_triplet": ("triplet", MARGIN),
    "cub_fastap_large_batch": ("fastap", Integer(2, 250)),
    "cub_ntxent": ("nt_xent", Real(1e-4, 100, log=True)),
    "cub_ntxent_large_batch": ("nt_xent", Real(1e-2, 100, log=True)),
    "cub_triplet": ("triplet", MARGIN),
    "cub_triplet_large_batch": ("triplet", MARGIN),
    "sop_ntxent": ("nt_xent", Real(1e-5, 100, log=True)),
    "sop_triplet": ("triplet", MARGIN),
}
"""Every recorded search over one parameter: our method, and the range that was searched."""


@cache
def records() -> dict[str, dict[float, float]]:
    """By experiment with a value for every trial: the mean value at each point that was tried, in
    order.
    """
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(RECORDS, "rt") as file:
        for row in csv.DictReader(file):
            if row["val_map_at_r"]:
                found[row["experiment"]][float(row["value"])].append(float(row["val_map_at_r"]))
    return {
        name: {point: mean(points[point]) for point in sorted(points)}
        for name, points in found.items()
    }


def recorded(experiment: str) -> Landscape:
    return _through(experiment, experiment, list(records()[experiment].values()))


def smoothed(experiment: str) -> Landscape:
    values = list(records()[experiment].values())
    return _through(
        f"{experiment} smoothed",
        experiment,
        [mean(values[max(0, i - 2) : i + 3]) for i in range(len(values))],
    )


def _through(name: str, experiment: str, values: Sequence[float]) -> Landscape:
    """The line that has these values at the points that were tried."""
    method, range_ = RECORDED[experiment]
    first = defaults(methods[method], resolve(protocols["quick"], "photo", trunk_facts))
    (parameter,) = first
    shares = [range_.share(point) for point in records()[experiment]]

    def value(parameters: Parameters) -> float:
        return float(np.interp(range_.share(float(parameters[parameter])), shares, values))

    return Landscape(name, Space(**{parameter: range_}), value, 0.0, max(values), first)


# --- Synthetic ---


def branin(x: Vector) -> float:
    bowl = x[1] - 5.1 / (4 * np.pi**2) * x[0] ** 2 + 5 / np.pi * x[0] - 6
    return float(bowl**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x[0]) + 10)


def camel(x: Vector) -> float:
    return float(
        (4 - 2.1 * x[0] ** 2 + x[0] ** 4 / 3) * x[0] ** 2
        + x[0] * x[1]
        + (4 * x[1] ** 2 - 4) * x[1] ** 2
    )


def hartmann(x: Vector) -> float:
    steep = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
    peaks = (
        np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]])
        / 10_000
    )
    return float(-(np.array([1, 1.2, 3, 3.2]) * np.exp(-(steep * (x - peaks) ** 2).sum(1))).sum())


def levy(x: Vector) -> float:
    w = 1 + (x - 1) / 4
    middle = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)
    return float(
        np.sin(np.pi * w[0]) ** 2
        + middle.sum()
        + (w[-1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[-1]) ** 2)
    )


def rosenbrock(x: Vector) -> float:
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def ackley(x: Vector) -> float:
    return float(
        -20 * np.exp(-0.2 * np.sqrt((x**2).mean()))
        - np.exp(np.cos(2 * np.pi * x).mean())
        + 20
        + np.e
    )


def styblinski_tang(x: Vector) -> float:
    return float((x**4 - 16 * x**2 + 5 * x).sum() / 2)


SYNTHETIC: dict[str, tuple[Callable[[Vector], float], list[Real], float]] = {
    "branin 2": (branin, [Real(-5, 10), Real(0, 15)], 0.397887),
    "six-hump camel 2": (camel, [Real(-3, 3), Real(-2, 2)], -1.031629),
    "hartmann 3": (hartmann, [Real(0, 1)] * 3, -3.86278),
    "levy 4": (levy, [Real(-10, 10)] * 4, 0.0),
    "rosenbrock 4": (rosenbrock, [Real(-2.048, 2.048)] * 4, 0.0),
    "ackley 5": (ackley, [Real(-32.768, 32.768)] * 5, 0.0),
    "styblinski-tang 5": (styblinski_tang, [Real(-5, 5)] * 5, -195.830829),
}
"""Function, ranges and lowest value; the number in the name is that of the dimensions."""


def synthetic(name: str) -> Landscape:
    function, ranges, lowest = SYNTHETIC[name]
    space = Space(**{f"x{axis}": range_ for axis, range_ in enumerate(ranges)})

    def value(parameters: Parameters) -> float:
        return -function(np.array([float(parameters[axis]) for axis in space]))

    floor = median(value(uniform(space, number, seed=0)) for number in range(1001))
    return Landscape(name, space, value, floor, -lowest)


# --- Searching ---

LANDSCAPES: dict[str, Callable[[], Landscape]] = {
    **{name: partial(recorded, name) for name in RECORDED},
    **{f"{name} smoothed": partial(smoothed, name) for name in RECORDED},
    **{name: partial(synthetic, name) for name in SYNTHETIC},
}


@dataclass(frozen=True)
class Found:
    """What came of one search: the trials until it was there, and the share that was missing at its
    end.
    """

    needed: int
    missing: float


def climb(landscape: Landscape, search: Search, seed: int) -> Iterator[float]:
    """How much of the way to the best each trial is."""
    told: list[TrialResult] = []
    for _ in range(TRIALS):
        first = landscape.defaults(seed)
        parameters = ask(
            landscape.space, told, first, Protocol.startup, derive(landscape.name, seed), search
        )
        value = landscape.value(parameters)
        told.append(TrialResult(parameters, value))
        yield landscape.share(value)


def needed(shares: Iterable[float]) -> int:
    """The trials until one was good enough; one more than there are where none was."""
    return next((number for number, share in enumerate(shares, 1) if share >= ENOUGH), TRIALS + 1)


def until_there(shares: Iterable[float]) -> Iterator[float]:
    """All up to the first that is good enough."""
    for share in shares:
        yield share
        if share >= ENOUGH:
            return


def search_once(name: str, search: Search, to_the_end: bool, seed: int) -> Found:
    trials = climb(LANDSCAPES[name](), search, seed)
    shares = list(trials if to_the_end else until_there(trials))
    return Found(needed(shares), 1 - max(shares))


def seconds_per_question(landscape: Landscape) -> float:
    """The best of five, for the last question of a study."""
    points = [uniform(landscape.space, number, seed=0) for number in range(TRIALS - 1)]
    told = [TrialResult(point, landscape.value(point)) for point in points]
    times = []
    for seed in range(5):
        start = time.perf_counter()
        ask(landscape.space, told, landscape.defaults(seed), Protocol.startup, seed)
        times.append(time.perf_counter() - start)
    return min(times)


def row(name: str, ours: Sequence[Found], random: Sequence[Found]) -> str:
    cells = [name]
    cells += [
        f"{median(one.needed for one in found):g}" for found in (ours, random[: len(ours)], random)
    ]
    cells += [f"{mean(one.needed <= TRIALS for one in found):.0%}" for found in (ours, random)]
    cells += [f"{median(one.missing for one in found):.2%}" for found in (ours, random)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="names, or parts of names, separated by commas", default="")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--to-the-end", action="store_true", help="all 50 trials, also where fewer are enough"
    )
    asked = parser.parse_args()
    names = [name for name in LANDSCAPES if any(part in name for part in asked.only.split(","))]
    if not names:
        parser.error(f"--only {asked.only}: no such landscape; there are {', '.join(LANDSCAPES)}")
    over = f"random, {GUESSES} seeds"
    print(
        f"| landscape | trials to 99% | random, same seeds | {over} | reached in 50 | random |"
        " missing at the end | random |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with ProcessPoolExecutor(asked.processes) as pool:
        for name in names:
            ours = pool.map(
                partial(search_once, name, "bayesian", asked.to_the_end), range(asked.seeds)
            )
            guessing = partial(search_once, name, "random", asked.to_the_end)
            random = pool.map(guessing, range(max(asked.seeds, GUESSES)), chunksize=50)
            print(row(name, list(ours), list(random)), flush=True)
    costs = [f"{seconds_per_question(LANDSCAPES[name]()):.2f} ({name})" for name in names]
    print(f"Seconds for question {TRIALS}: {', '.join(costs)}")


if __name__ == "__main__":
    main()
