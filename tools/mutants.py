"""Put single faults into the source, one at a time, and see which of them the tests catch.

    python tools/mutants.py --out before.json                       # draw faults and run the tests
    python tools/mutants.py --again before.json --src DIR/src --tests DIR/tests --out after.json
    python tools/mutants.py --compare before.json after.json        # exit code 1: tests lost power

Run it before and after a change of the tree; `--again` finds the faults where code has moved.
A run that was stopped continues from its --out file. `--list` runs nothing.
"""

import argparse
import compileall
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import TypeVar

import hypothesis
import pytest
from mutations import Mutant, apply, draw, find_again, find_faults, is_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "assay"
MEMORY = 8 * 2**30
"""Bytes that one process of the tests may allocate: a fault can make a loop endless."""
MUTATED = "ASSAY_MUTATED"
"""Variable that tells the tests which files are mutated."""
CLEAN_LIMIT = 1800.0
"""Seconds that the tests of an area may take without a fault."""

AREAS = {
    "losses": ("losses/*", "pairs describe oracle pitfalls methods losses bridge"),
    "metrics": ("metrics/*", "answers geometry metrics scores evaluate verification similarity"),
    "stats": ("stats/*", "stats ranks verdicts friedman comparison"),
    "records": (
        "records/* hashing.py files.py",
        "hashing canonical files records source store ledger status look merge replicated faults",
    ),
    "seal": (
        "records/ledger.py::Receipt records/ledger.py::completing_line data/seal.py "
        "run/testing.py evaluation/look.py",
        "answers ledger splits look similarity checkpoints seal",
    ),
    "search": ("study/search.py study/announced.py space.py", "space search landscapes study"),
    "splits": ("data/splits.py data/packs.py", "official_splits splits look packs pack replicated"),
}
"""Of each area: files to put faults in (`file::name`: in that class or function), and its tests.

A word of the tests stands for all files `test_WORD.py`, which may be a pattern; cheapest first.
"""


@dataclass
class Report:
    """What became of the mutants of one tree.

    Args:
        tree: digest of source and tests.
        mutants: all mutants, with outcomes where their tests ran.
        seconds: how long the tests of each area take without a fault.
    """

    tree: str
    mutants: list[Mutant]
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        mutants = [Mutant(**one) for one in content["mutants"]]
        return cls(content["tree"], mutants, content["seconds"])

    def write(self, path: Path) -> None:
        """Write the report, whole or not at all."""
        draft = path.with_name(path.name + ".draft")
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(path)

    def take_outcomes(self, earlier: "Report") -> None:
        """Take the outcomes of an earlier run, if that was on the same source and tests."""
        if earlier.tree == self.tree:
            known = {(one.id, one.path, one.start): one for one in earlier.mutants if one.by}
            self.mutants = [known.get((one.id, one.path, one.start), one) for one in self.mutants]
            self.seconds = earlier.seconds

    def print_summary(self) -> None:
        """Print the outcomes by area."""
        for area in dict.fromkeys(one.area for one in self.mutants):
            counts = Counter(one.outcome or "not run" for one in self.mutants if one.area == area)
            print(f"{area:8}", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))


def digest_of(*folders: Path) -> str:
    """Return a hash of all Python files in the folders, with their names."""
    found = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            found.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return found.hexdigest()


def compare(before: Report, after: Report) -> int:
    """Print the mutants whose outcome differs; return 1 if one that was caught survives now."""
    now = {one.id: one for one in after.mutants}
    pairs = [(one, now[one.id]) for one in before.mutants if one.id in now]
    for old, new in pairs:
        if old.outcome != new.outcome:
            print(f"{old.outcome} -> {new.outcome}: {new}\n    in: {old.statement}")
    lost = [new for old, new in pairs if (old.outcome, new.outcome) == ("caught", "survived")]
    print(f"{len(pairs)} mutants compared; caught before and not now: {len(lost)}")
    return 1 if lost else 0


# --- running the tests ---------------------------------------------------------------------------


def pytest_configure() -> None:
    """Make property tests repeatable, however busy the machine is (this file is also a plugin)."""
    hypothesis.settings.register_profile("mutants", deadline=None, database=None)
    hypothesis.settings.load_profile("mutants")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the doctests of all files of the source but those that are mutated."""
    mutated = [Path(file) for file in os.environ[MUTATED].split(os.pathsep)]
    is_wanted = any(collection_path in (file, *file.parents) for file in mutated)
    is_source = Path("src").resolve() in collection_path.parents
    return True if is_source and not is_wanted else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put doctests first, then the files as on the command line: conftest puts slow ones first."""
    order = {file: number for number, file in enumerate(config.args)}
    items.sort(key=lambda item: order.get(str(item.path), -1))


def find_tests(area: str, tests: Path) -> list[Path]:
    """Return the test files of an area, cheapest first."""
    found = [file for word in AREAS[area][1].split() for file in tests.rglob(f"test_{word}.py")]
    return list(dict.fromkeys(found))


def copy_tree(tree: Path, src: Path, tests: Path) -> None:
    """Copy source and tests, and link what lies beside them (documents that tests read)."""
    tree.mkdir()
    for other in tests.parent.iterdir():
        if other.name not in ("src", "tests") and not other.name.startswith("."):
            (tree / other.name).symlink_to(other)
    for folder, name in ((src, "src"), (tests, "tests")):
        shutil.copytree(folder, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    # Bytecode is checked by hash: by time and size, that of a mutant would outlive it.
    mode = PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(tree / "src", quiet=2, invalidation_mode=mode)


def run_tests(tree: Path, area: str, mutated: Iterable[str], limit: float) -> tuple[str, str]:
    """Run an area's tests and the mutated files' doctests; return the outcome and what failed."""
    files = find_tests(area, tree / "tests")
    if not files:
        sys.exit(f"{area}: no file of tests matches `{AREAS[area][1]}`: edit AREAS")
    temporary = tree / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    path = [tree / "src", tree / "tests", Path(__file__).parent]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),  # for the workers of the tests too
        MUTATED: os.pathsep.join(str(tree / "src" / PACKAGE / file) for file in mutated),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(temporary / "hypothesis"),
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "mutants", "--hypothesis-seed=0"]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={temporary / 'pytest'}"]
    with (tree / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [*command, *map(str, files), str(tree / "src")],
            cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return "caught", f"time limit of {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the workers that it may have left
            process.wait()
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    said = failed[1] if failed else f"exit code {code}: {text.strip().rpartition(chr(10))[2]}"
    return ("caught", said.replace(f"{tree}/", "")) if code else ("survived", "no test")


def run_clean(tree: Path, area: str, mutated: Iterable[str]) -> tuple[str, float]:
    """Return the area and how long its tests take without a fault; exit if one of them fails."""
    begin = time.monotonic()
    outcome, by = run_tests(tree, area, mutated, CLEAN_LIMIT)
    if outcome == "caught":
        sys.exit(f"{area}: a test fails without any fault: {by}. Repair it first.")
    return area, round(time.monotonic() - begin, 1)


def run_mutant(tree: Path, mutant: Mutant, limit: float) -> Mutant:
    """Return the mutant with its outcome."""
    begin = time.monotonic()
    file = tree / "src" / PACKAGE / mutant.path
    source = file.read_bytes()
    try:
        file.write_bytes(apply(source, mutant))
        outcome, by = run_tests(tree, mutant.area, [mutant.path], limit)
    finally:
        file.write_bytes(source)
    return replace(mutant, outcome=outcome, by=by, seconds=round(time.monotonic() - begin, 1))


Result = TypeVar("Result")


def run_each(trees: Sequence[Path], tasks: Iterable[Callable[[Path], Result]]) -> Iterator[Result]:
    """Run tasks, each in a tree that no other uses meanwhile; yield results as they come."""
    free = SimpleQueue[Path]()
    for tree in trees:
        free.put(tree)

    def run(task: Callable[[Path], Result]) -> Result:
        tree = free.get()
        try:
            return task(tree)
        finally:
            free.put(tree)

    pool = ThreadPoolExecutor(len(trees))
    try:
        for future in as_completed([pool.submit(run, task) for task in tasks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_all(report: Report, trees: Sequence[Path], limit: float, save: Callable[[], None]) -> None:
    """Run the tests for every mutant that has no outcome, and without a fault before that."""
    waiting = {one.id: number for number, one in enumerate(report.mutants) if not one.outcome}
    mutants = [report.mutants[number] for number in waiting.values()]
    areas = dict.fromkeys(one.area for one in mutants if one.area not in report.seconds)
    files = {area: {one.path for one in mutants if one.area == area} for area in areas}
    cleans = [partial(run_clean, area=area, mutated=files[area]) for area in areas]
    for area, seconds in run_each(trees, cleans):
        print(f"{area}: tests pass without a fault ({seconds:.0f} s)", flush=True)
        report.seconds[area] = seconds
        save()
    limits = {area: max(limit, 2 * seconds) for area, seconds in report.seconds.items()}
    tasks = [partial(run_mutant, mutant=one, limit=limits[one.area]) for one in mutants]
    for done in run_each(trees, tasks):
        print(f"{done.outcome:8} {done} ({done.by}, {done.seconds:.0f} s)", flush=True)
        report.mutants[waiting[done.id]] = done
        save()


# --- command line --------------------------------------------------------------------------------


def choose(options: argparse.Namespace, areas: Sequence[str]) -> list[Mutant]:
    """Return the mutants to run: those of a file, found in this tree again, or newly drawn."""
    faults = list(find_faults(options.src / PACKAGE))
    if options.again:
        renames = dict(pair.split("=") for pair in options.renames.split(",") if pair)
        old = [one for one in Report.read(options.again).mutants if one.area in areas]
        return [find_again(one, faults, renames) for one in old]
    drawn: list[Mutant] = []
    for number, area in enumerate(areas):
        inside = [fault for fault in faults if is_in(fault, AREAS[area][0].split())]
        count = options.count // len(areas) + (number < options.count % len(areas))
        drawn += draw(inside, area, count, random.Random(f"{options.seed} {area}"))
    return drawn


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("--seed", type=int, default=0, help="which faults are drawn")
    add("--count", type=int, default=70, help="how many, over all areas")
    add("--area", default=",".join(AREAS), help="areas, comma-separated: %(default)s")
    add("--src", type=Path, default=ROOT / "src", help="folder that holds the package")
    add("--tests", type=Path, default=ROOT / "tests", help="folder of tests")
    add("--list", action="store_true", help="print the mutants and run nothing")
    add("--out", type=Path, help="JSON file for the outcomes, written after every mutant")
    add("--again", type=Path, metavar="JSON", help="take the mutants of this file")
    add("--renames", default="", metavar="OLD=NEW,...", help="identifiers renamed since --again")
    add("--limit", type=float, default=240, help="seconds a mutant; one that takes more is caught")
    add("--jobs", type=int, default=2, help="mutants at a time")
    add("--compare", type=Path, nargs=2, metavar="JSON", help="compare two files of outcomes")
    return parser.parse_args()


def main() -> int:
    """Run the command line; return its exit code."""
    options = read_options()
    if options.compare:
        return compare(*map(Report.read, options.compare))
    mutants = choose(options, options.area.split(","))
    report = Report(digest_of(options.src, options.tests), mutants)
    if options.out and options.out.exists():
        report.take_outcomes(Report.read(options.out))
    for one in report.mutants:
        if options.list or options.again:
            print(f"{one}\n    in: {one.statement}")
    if options.list:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that copies are removed
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Path(folder).resolve() / str(number) for number in range(options.jobs)]
        for tree in trees:
            copy_tree(tree, options.src.resolve(), options.tests.resolve())
        save = partial(report.write, options.out) if options.out else (lambda: None)
        run_all(report, trees, options.limit, save)
    report.print_summary()
    return 0


if __name__ == "__main__":
    sys.exit(main())
