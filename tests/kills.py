"""Commands that are killed at random system calls, and what must hold after each kill.

`strace` kills the command on its n-th call that changes a file: so a kill lies between any two
changes of the disk, wherever the command is written. As a program, it prints its counts:

    python tests/kills.py --count 100 --seed 0

Each command is run once undisturbed, which shows its system calls and the bytes that must come out.
It then begins again and is killed at one of these calls; `verify` must find nothing wrong; and the
same command must end with the same bytes, without computing a finished run again.
"""

import argparse
import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import assay.study  # loaded before the commands are forked, which then start at once
import assay.verify  # noqa: F401
from assay.cli import main
from assay.records.ledger import read
from assay.records.store import Store
from assay.report import write
from faults import everything, finished
from miniature import MINI, make_features

CHANGES = (
    "openat", "open", "creat", "write", "pwrite64", "writev", "ftruncate", "rename", "renameat",
    "renameat2", "fsync", "fdatasync", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "mkdir", "mkdirat", "rmdir", "chmod", "fchmod", "fchmodat",
)  # fmt: skip
"""System calls that change files; of those that open a file, the ones that open it for writing."""

OPENING = {"openat", "open"}
WRITING = re.compile("O_WRONLY|O_RDWR|O_CREAT")
CALL = re.compile(r"(?:\d+ +)?(\w+)\(")

SETTINGS = tuple(word for setting in MINI for word in ("--set", setting))
LONGEST = 120
"""Seconds after which a command is taken to hang."""


# --- Commands in processes of their own -----------------------------------------------------------


class Ended(NamedTuple):
    """How a process ended: its exit code, or the negative number of its signal; what it said."""

    code: int
    said: str


class Point(NamedTuple):
    """A system call of a command: the n-th of its name, in words."""

    call: str
    number: int
    shown: str


def run(words: Sequence[str], folder: Path, tracing: Sequence[str] = ()) -> Ended:
    """Run a command in a fork of this process, under strace with the options `tracing`."""
    waiting, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_command(words, folder / "said", waiting)
    os.close(waiting)
    with open(go, "wb") as start:  # noqa: PTH123 (a file by its number)
        tracer = _trace(pid, tracing) if tracing else None
        start.write(b"x")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if tracer:
        tracer.communicate(timeout=LONGEST)
    return Ended(code, (folder / "said").read_text())


def _be_the_command(words: Sequence[str], said: Path, waiting: int) -> None:
    """Run the command in this process, once a byte can be read, and leave."""
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["assay", *words]
    os.read(waiting, 1)
    code = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _trace(pid: int, tracing: Sequence[str]) -> subprocess.Popen[str]:
    """Start strace on a process, and wait until it is attached."""
    command = ["strace", "-f", "-y", "-q", "-s", "8", "-p", str(pid), *tracing]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        if tracer.poll() is not None:
            raise RuntimeError(f"strace cannot attach here: {tracer.communicate()[1].strip()}")
        time.sleep(0.005)
    return tracer


def changes(words: Sequence[str], folder: Path, below: Path) -> list[Point]:
    """Run a command undisturbed, and return its system calls that change a file below a folder."""
    log = folder / "calls"
    ended = run(words, folder, ["-o", str(log), "-e", f"trace={','.join(CHANGES)}"])
    assert ended.code == 0, ended.said
    points, seen = [], Counter[str]()
    for line in log.read_text(errors="replace").splitlines():
        if found := CALL.match(line):
            seen[found[1]] += 1
            if str(below) in line and (found[1] not in OPENING or WRITING.search(line)):
                points.append(Point(found[1], seen[found[1]], _what(line, below)))
    return points


def _what(line: str, below: Path) -> str:
    """Return the kind of file that a line of strace is about: its name, without digits of hashes.

    The last path of a line counts, which is where a file is renamed to.
    """
    path = re.findall(rf"{re.escape(str(below))}([^\">]*)", line)[-1]
    name = re.sub(r"\.draft-[^/]*|[0-9a-f]{8,}", "*", path)
    return re.sub(r"/[0-9a-f]{2}(?=/|$)", "", name).strip("/") or "."


def kill_at(point: Point, words: Sequence[str], folder: Path) -> Ended:
    """Run a command and kill it when it makes this system call, before the call has an effect."""
    killing = f"inject={point.call}:signal=KILL:when={point.number}"
    log = str(folder / "killed")
    return run(words, folder, ["-o", log, "-e", f"trace={','.join(CHANGES)}", "-e", killing])


def strace_works() -> bool:
    """Return whether strace is here and may attach to a process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        tracer = _trace(process.pid, ["-e", "trace=none"])
    except (FileNotFoundError, RuntimeError):
        return False
    finally:
        process.kill()
        process.communicate()
    tracer.communicate()
    return True


class Broken(AssertionError):
    """Something was lost, wrong or refused after a kill."""


# --- What is killed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A command, what is there before it, and what must be the same bytes after it.

    Args:
        words: of the command, in the folder that it is given.
        before: the folder with which it begins.
        kept: what must be the same bytes.
        looks: whether the command looks at the test half, and records that each time.
    """

    words: Callable[[Path], list[str]]
    before: Path
    kept: Callable[[Path], dict[str, object]]
    looks: bool = False


def store_bytes(place: Path) -> dict[str, object]:
    """Return all that is the same bytes whatever happens to a store."""
    return everything(place / "store") | files_in(place / "store" / "benches")


def files_in(folder: Path) -> dict[str, object]:
    """Return the bytes of all files below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_looks(place: Path) -> dict[str, object]:
    """Return what a look must leave as it is."""
    kept: dict[str, object] = {}
    for name, content in (store_bytes(place) if (place / "store").exists() else {}).items():
        if name.endswith("ledger.jsonl"):
            assert isinstance(content, list)
            content = [line for line in content if line["kind"] != "look"]
        if not name.endswith("study.json"):  # `verify` compares it with the ledger
            kept[name] = content
    return kept


Looks = dict[str, list[object]]
"""Recorded looks by file, without the clock."""


def looks(place: Path) -> Looks:
    """Return the looks in ledgers, beside models and in the index of looks."""
    found: Looks = {}
    for path in sorted(place.glob("store/studies/*/ledger.jsonl")):
        found[str(path)] = [line.body for line in read(path) if line.kind == "look"]
    for path in sorted(place.glob("**/looks.jsonl")):
        found[str(path)] = [_without_clock(line) for line in path.read_text().split("\n")[:-1]]
    return found


def _without_clock(line: str) -> dict[str, object]:
    try:
        return {name: value for name, value in json.loads(line).items() if name != "at"}
    except ValueError:
        raise Broken(f"a line of looks was torn: {line[-80:]}") from None


def wrong_looks(before: Looks, now: Looks, once: Looks, most: int) -> str:
    """Return which file of looks lost one, or has more than so many new ones.

    `once` is what one look leaves there.
    """
    for name, known in {**{name: [] for name in once}, **before}.items():
        found = now.get(name, [])
        new = found[len(known) :]
        if found[: len(known)] != known:
            return f"{name} lost looks"
        if len(new) > most * (len(once[name]) - len(known)):
            return f"{name} has {len(new)} new looks after {most} tries"
        if any(one not in once[name] for one in new):
            return f"{name} has other looks"
    return ""


def scenes(stage: Path) -> dict[str, Scene]:
    """Prepare, in a folder, what the commands begin with; return the commands by name."""
    data = f"features:{make_features(stage / 'mini.npz')}"
    benched, other, empty = stage / "benched", stage / "other", stage / "empty"

    def bench(place: Path, method: str, *settings: str) -> list[str]:
        more = ["--methods", method, "--engine", "inline", *SETTINGS, *settings]
        return ["bench", "--data", data, "--out", str(place / "store"), *more]

    def bench_from_memory(place: Path) -> list[str]:
        return bench(place, "xbm_contrastive,triplet_offline", "--set", "sampler=coreset")

    def sweep(place: Path) -> list[str]:
        return ["sweep", *bench(place, "triplet")[1:], "--vary", "dim=4,8"]

    def merge(place: Path) -> list[str]:
        stores = [str(one / "store") for one in (benched, other)]
        return ["merge", *stores, "--out", str(place / "store")]

    def report(place: Path) -> list[str]:
        return ["report", str(place / "store")]

    def evaluate(model: str, place: Path) -> list[str]:
        (folder,) = place.glob(model)
        return ["evaluate", str(folder), "--data", data, "--test", *SETTINGS]

    def embed(place: Path) -> list[str]:
        return ["embed", str(place / "model"), data, "--out", str(place / "z.npz")]

    def do(place: Path, words: list[str]) -> None:
        _be_at(place)
        ended = run(words, stage)
        assert ended.code == 0, ended.said

    for place, method in ((benched, "triplet"), (other, "contrastive")):
        Store.create(place / "store", f"salt of {place.name}")
        do(place, bench(place, method))
    Store.create(empty / "store", "salt")
    looked, alone = shutil.copytree(benched, stage / "looked"), stage / "alone"
    shutil.copytree(benched, alone, ignore=shutil.ignore_patterns("store"))
    model = ["--method", "triplet", "--out", str(alone / "model"), *SETTINGS]
    do(alone, ["train", "--data", data, *model])
    of_the_study, of_none = "store/models/*triplet*", "model"
    do(looked, evaluate(of_the_study, looked))
    do(alone, evaluate(of_none, alone))
    unreported = shutil.copytree(benched, stage / "unreported")
    shutil.rmtree(unreported / "store" / "report")
    return {
        "bench": Scene(partial(bench, method="triplet"), empty, store_bytes),
        "bench from memory": Scene(bench_from_memory, empty, store_bytes),
        "sweep": Scene(sweep, benched, store_bytes),
        "merge": Scene(merge, empty, store_bytes),
        "report": Scene(report, unreported, lambda place: files_in(place / "store" / "report")),
        "look of a study's model": Scene(
            partial(evaluate, of_the_study), looked, without_looks, looks=True
        ),
        "look of another model": Scene(
            partial(evaluate, of_none), alone, without_looks, looks=True
        ),
        "embed": Scene(
            embed, alone, lambda place: {"z": (place / "z.npz").read_bytes()}, looks=True
        ),
    }


# --- What must hold -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Undisturbed:
    """What a command does and leaves that is not killed."""

    points: list[Point]
    kept: dict[str, object]
    looks: Looks


def undisturbed(scene: Scene, place: Path, folder: Path) -> Undisturbed:
    """Run the command without a kill."""
    _begin(scene, place)
    points = changes(scene.words(place), folder, place)
    return Undisturbed(points, scene.kept(place), looks(place))


def disturb(scene: Scene, point: Point, place: Path, folder: Path, whole: Undisturbed) -> bool:
    """Kill the command at the point and run it again; raise `Broken` where that does harm.

    Return whether it was killed: where the disk is not read in the same order, it may not come to
    the point.
    """
    _begin(scene, place)
    words, before = scene.words(place), looks(place)
    ended = kill_at(point, words, folder)
    if ended.code == 0:
        return False
    _check(ended.code == -9, f"it ended with {ended.code}: {ended.said}")
    _check_no(wrong_looks(before, looks(place), whole.looks, 1))
    _verify(place, folder)
    kept = finished(place / "store")
    again = run(words, folder)
    _check(again.code == 0, f"the same command ends with {again.code}: {again.said}")
    lost = kept.items() - finished(place / "store").items()
    _check(not lost, f"finished runs were lost or computed again: {[name for name, _ in lost]}")
    found = scene.kept(place)
    other = [name for name in found | whole.kept if found.get(name) != whole.kept.get(name)]
    _check(not other, f"other bytes: {other}")
    _check_no(wrong_looks(before, looks(place), whole.looks, 1 + scene.looks))
    few = [name for name, all_ in whole.looks.items() if len(looks(place)[name]) < len(all_)]
    _check(not few, f"looks are missing from {few}")
    _verify(place, folder, "--complete")
    return True


def _begin(scene: Scene, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(scene.before, place)
    _be_at(place)


def _be_at(place: Path) -> None:
    """Let commands keep their cache and their index of looks in a folder."""
    os.environ["ASSAY_CACHE"] = str(place / "cache")
    os.environ["ASSAY_LOOKS"] = str(place / "index")


def _verify(place: Path, folder: Path, *more: str) -> None:
    if (place / "store").exists():
        ended = run(["verify", str(place / "store"), *more], folder)
        wrong = [line for line in ended.said.splitlines() if not line.startswith(("ok", "taken"))]
        _check(ended.code == 0, f"verify {' '.join(more)}: {'; '.join(wrong)}")


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise Broken(problem)


def _check_no(problem: str) -> None:
    _check(not problem, problem)


# --- The program ----------------------------------------------------------------------------------


def kills(count: int, seed: int, only: str | None = None) -> Iterator[tuple[str, Point, str]]:
    """Kill so many commands; yield the name of each, where it was killed, and what broke."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="assay-kills-") as name:
        folder = Path(name).resolve()
        place = folder / "place"
        (folder / "stage").mkdir()
        prepared = scenes(folder / "stage")
        names = [one for one in prepared if only in (None, one)]
        whole = {one: undisturbed(prepared[one], place, folder) for one in names}
        done = 0
        while done < count:
            one = names[done % len(names)]
            point = draw.choice(whole[one].points)
            try:
                if not disturb(prepared[one], point, place, folder, whole[one]):
                    continue
                problem = ""
            except Broken as error:
                problem = str(error)
            done += 1
            yield one, point, problem


def show(killed: Sequence[tuple[str, Point, str]]) -> Iterator[str]:
    """Yield the counts in words."""
    for title, which in (
        ("command", Counter(name for name, _, _ in killed)),
        ("system call", Counter(point.call for _, point, _ in killed)),
    ):
        yield f"by {title}: " + ", ".join(f"{name} {many}" for name, many in which.most_common())
    different = len({(name, point) for name, point, _ in killed})
    broken = sum(bool(problem) for _, _, problem in killed)
    yield f"{len(killed)} kills at {different} different points, {broken} did harm"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill commands at random system calls.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", help="only this one")
    given = parser.parse_args()
    write.draw = lambda figure, form: b"<svg></svg>"  # type: ignore[assignment]  # takes longest
    gc.collect()
    gc.freeze()  # else the collector of each fork copies all that is loaded
    every = []
    for name, point, problem in kills(given.count, given.seed, given.command):
        every.append((name, point, problem))
        harm = f"  HARM: {problem}" if problem else ""
        print(f"{name}: {point.call} {point.number}, {point.shown}{harm}", flush=True)
    print("\n".join(show(every)))
    sys.exit(any(problem for _, _, problem in every))
