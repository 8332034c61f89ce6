"""Which files and functions of Assay a command runs through, in the order of their first call.

    python tools/walk.py bench --data glyphs --methods triplet --set trials=2 --out /tmp/walk

runs `assay bench ...` on the inline engine under a profiler. The walk goes to stdout, what the
command itself prints to stderr. Counts are calls; a generator counts each time that it goes on.
Calls during imports, which fill the registries, are left out. `--files` in front of the command
prints the files only.
"""

import inspect
import sys
import threading
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "assay"
WITH_ENGINE = ("bench", "sweep", "reproduce", "verify")
"""Commands that execute runs."""


class Walk:
    """A profiler that counts the calls of functions below a folder, in all threads.

    Args:
        package: the folder.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.leaving = 0
        self._package = f"{package}/"
        self._importing: Counter[int] = Counter()

    def __enter__(self) -> "Walk":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def files(self) -> Counter[str]:
        """Calls of each file's functions, in the order in which the files are entered."""
        files: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            files[file] += count
        return files

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if event not in ("call", "return") or not code.co_filename.startswith(self._package):
            return
        if code.co_name == "<module>":
            self._importing[thread] += 1 if event == "call" else -1
        elif event == "return" or self._importing[thread] or code.co_name.startswith("<"):
            return  # an import, a comprehension or a lambda
        elif code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a class
            self.calls[code.co_filename.removeprefix(self._package), code.co_qualname] += 1
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            self.leaving += caller.startswith(self._package) and caller != code.co_filename


def run(words: list[str]) -> int:
    """Run the command line in this process and return its exit code."""
    from assay.cli import main

    sys.argv = ["assay", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def print_walk(walk: Walk, files_only: bool = False) -> None:
    """Print files or functions in order, and how many there are."""
    if files_only:
        for file, count in walk.files.items():
            print(f"{count:8}  {file}")
    else:
        for (file, name), count in walk.calls.items():
            print(f"{count:8}  {file:32}  {name}")
    print(
        f"{len(walk.files)} files, {len(walk.calls)} functions, {walk.calls.total()} calls,"
        f" {walk.leaving} of them into another file"
    )


if __name__ == "__main__":
    given = sys.argv[1:]
    files_only = given[:1] == ["--files"]
    words = given[files_only:]
    if not words:
        sys.exit(__doc__)
    if words[0] in WITH_ENGINE:
        words += ["--engine", "inline"]
    with redirect_stdout(sys.stderr), Walk() as walk:
        code = run(words)
    print_walk(walk, files_only)
    sys.exit(code)
