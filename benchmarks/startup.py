"""How long a user waits before anything happens: `import assay` and `assay --help`.

python benchmarks/startup.py

Best of several runs, with the bare interpreter beside them, all in one session.
"""

import subprocess
import sys
import time

RUNS = 10
MUST = {"import assay": 0.3, "assay --help": 0.6}


def best(command: list[str]) -> float:
    """Shortest wall-clock time of several runs, in seconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    python = sys.executable
    measured = {
        "bare python": best([python, "-c", "pass"]),
        "import assay": best([python, "-c", "import assay"]),
        "assay --help": best([python, "-m", "assay", "--help"]),
    }
    print(f"| what | seconds (best of {RUNS}) | must be below |")
    print("| --- | --- | --- |")
    for name, seconds in measured.items():
        print(f"| {name} | {seconds:.3f} | {MUST.get(name, '')} |")
    late = [name for name, limit in MUST.items() if measured[name] >= limit]
    if late:
        raise SystemExit(f"too slow: {', '.join(late)}")


if __name__ == "__main__":
    main()
