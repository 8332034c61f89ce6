"""Whether training under a protocol is long enough: runs that ended at their last epoch, and what
ten times as much would change.

python benchmarks/length.py DATA [--methods A,B] [--protocol quick.v2] [--seeds 2] [--times 10]
[--set field=value]

Each method runs with its defaults on every fold. The long training has `--times` as many epochs and
as much patience; a learning rate that falls to zero falls more slowly by the same factor. Printed
for each method: mean validation MAP@R of the best checkpoint of the short and of the long training,
mean number of epochs, and how many runs had their best epoch last or ran out of epochs. A best
checkpoint is a maximum over validations, and the long training has more of them: what it adds is an
upper bound. Below: rank correlation (Spearman) and agreement of pairs (Kendall) between the two
orders of the methods.
"""

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from assay.devices import keep_freed_memory
from assay.protocols import Protocol, customise, protocols

METHODS = (
    "contrastive,triplet,nt_xent,proxy_nca,margin,normalized_softmax,"
    "arcface,fastap,multi_similarity,proxy_anchor"
)


@dataclass(frozen=True)
class Job:
    """The runs of one method under one protocol."""

    data: str
    method: str
    protocol: Protocol
    seeds: int
    times: int


@dataclass(frozen=True)
class Trained:
    """Mean results of the runs of one job, and how many of these had not converged."""

    score: float
    epochs: float
    runs: int
    best_is_last: int
    out_of_epochs: int


def train(job: Job) -> Trained:
    """Run a method's defaults on every fold, in this process and on one thread."""
    keep_freed_memory()
    torch.set_num_threads(1)
    from assay.data.packs import read_pack
    from assay.run import compute
    from assay.study.bench import design_bench

    design = design_bench(job.data, [job.method], job.protocol, "cpu", ())[0]
    if job.times > 1:
        longer = replace(
            job.protocol,
            epochs=job.times * design.protocol.epochs,
            patience=job.times * design.protocol.patience,
        )
        design = design_bench(job.data, [job.method], longer, "cpu", ())[0]
    view = read_pack(design.conditions.place(design.conditions.trainval))
    places = [(seed, fold) for seed in range(job.seeds) for fold in range(design.protocol.folds)]
    runs = [design.study.run("trial", seed, 0, fold, design.first) for seed, fold in places]
    fits = compute(runs, view)
    last = [fit.history[-1].epoch for fit in fits]
    return Trained(
        score=100 * float(np.mean([fit.best.validation["map_at_r"] for fit in fits])),
        epochs=float(np.mean(last)),
        runs=len(fits),
        best_is_last=sum(fit.best.epoch == epoch for fit, epoch in zip(fits, last, strict=True)),
        out_of_epochs=sum(epoch == design.protocol.epochs for epoch in last),
    )


def print_table(
    methods: Sequence[str], short: Sequence[Trained], long: Sequence[Trained], times: int
) -> None:
    """Print a row for each method, then how well the two orders agree."""
    print(
        f"| method | MAP@R | epochs | best is last | out of epochs | MAP@R at {times}x | epochs |"
        " out of epochs |"
    )
    print("| --- |" + " --- |" * 7)
    for name, one, other in zip(methods, short, long, strict=True):
        cells = [
            f"{one.score:.1f}",
            f"{one.epochs:.1f}",
            f"{one.best_is_last} of {one.runs}",
            str(one.out_of_epochs),
        ]
        cells += [f"{other.score:.1f}", f"{other.epochs:.1f}", str(other.out_of_epochs)]
        print(f"| {name} | {' | '.join(cells)} |")
    scores, longer = [one.score for one in short], [one.score for one in long]
    means = f"mean {np.mean(scores):.2f} and {np.mean(longer):.2f}"
    print(
        f"\n{means}; Spearman {stats.spearmanr(scores, longer)[0]:.2f}, Kendall"
        f" {stats.kendalltau(scores, longer)[0]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--protocol", default="quick.v2")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    asked = parser.parse_args()
    methods, protocol = (
        asked.methods.split(","),
        customise(protocols[asked.protocol], asked.settings),
    )
    jobs = [
        Job(asked.data, name, protocol, asked.seeds, times)
        for times in (asked.times, 1)
        for name in methods
    ]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(train, jobs, chunksize=1)
    print_table(methods, found[len(methods) :], found[: len(methods)], asked.times)


if __name__ == "__main__":
    main()
