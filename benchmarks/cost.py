"""What replicated searches cost: a bench of ten methods on features under `quick.v1` and under
`quick.v2`, in turns.

python benchmarks/cost.py DATA [--methods A,B] [--rounds 2]

DATA are features, for example `features:omniglot.npz` by `assay embed lite0 omniglot:PATH --out
omniglot.npz`. Each bench is the command as a user types it, in a fresh store, start-up and report
included. Seconds are those of the fastest round.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = (
    "contrastive,triplet,nt_xent,proxy_nca,margin,normalized_softmax,"
    "arcface,fastap,multi_similarity,proxy_anchor"
)
PROTOCOLS = ("quick.v1", "quick.v2")


def bench(data: str, methods: str, protocol: str) -> tuple[float, int]:
    """Return the seconds of a bench and the number of its runs."""
    with tempfile.TemporaryDirectory() as out:
        asked = [
            "bench",
            "--data",
            data,
            "--methods",
            methods,
            "--protocol",
            protocol,
            "--out",
            out,
        ]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "assay", *asked], check=True, stdout=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - start
        return seconds, sum(1 for _ in Path(out).glob("runs/*/*/result.json"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    rounds = [
        {name: bench(asked.data, asked.methods, name) for name in PROTOCOLS}
        for _ in range(asked.rounds)
    ]
    best = {name: min(one[name] for one in rounds) for name in PROTOCOLS}
    print("| protocol | seconds | ratio | runs |")
    print("| --- | --- | --- | --- |")
    for name, (seconds, runs) in best.items():
        print(f"| {name} | {seconds:.1f} | {seconds / best[PROTOCOLS[0]][0]:.2f} | {runs} |")


if __name__ == "__main__":
    main()
