"""The run store: content-addressed runs that workers place whole, studies that only the driver
writes.
"""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from assay.errors import BadInput
from assay.files import DRAFT, lock_now, new_folder, read_json, remove_drafts, write_atomically
from assay.hashing import digest_file, pretty
from assay.records.codec import FORMAT, check_format
from assay.records.lines import RunEntry
from assay.records.run import CHECKPOINTS, RunResult, check_run

Keep = Literal["best", "all"]
"""Which weights of a run stay: those of its best validation, or those of every one."""


class Store:
    """A folder of runs and studies; docs/store.md describes every file of it.

    Opening one for reading checks its format; `create` makes it first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "format.json").exists():
            raise BadInput(
                f"{root} is not a run store (no format.json in it); `assay bench --out {root}`"
                " makes one"
            )
        check_format(_format_of(root), f"the store {root}")

    @classmethod
    def create(cls, root: Path) -> "Store":
        """Return the store at `root`, and make it first where there is none.

        Raises `BadInput` where the folder contains other files.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not (root / "format.json").exists():
                _refuse_strangers(root)
                write_atomically(root / "format.json", pretty({"format": FORMAT}))
        except OSError as error:
            raise BadInput(
                f"cannot write to {root}: {error.strerror}; give another --out"
            ) from None
        _check_writable(root)
        return cls(root)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the store's lock; raise `BadInput` with the holder's name if another process has it.

        Remove drafts and partial files of killed processes first.
        """
        holder = self.root / "driver.json"
        _check_writable(self.root)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_now(self.root / "driver.lock"))
            except BlockingIOError:
                by = self.driver() or "another process"
                raise BadInput(
                    f"another command is writing to {self.root} ({by}); wait for it to end, or"
                    " give another --out"
                ) from None
            remove_drafts(self.root)
            self._clear_partial()
            write_atomically(holder, pretty({"pid": os.getpid(), "host": socket.gethostname()}))
            stack.callback(holder.unlink, missing_ok=True)
            yield

    def driver(self) -> str | None:
        """Return the process that drives this store now, None where there is none."""
        try:
            holder = read_json(self.root / "driver.json")
            here = holder["host"] == socket.gethostname()
            return (
                None
                if here and not _is_alive(holder["pid"])
                else f"process {holder['pid']} on {holder['host']}"
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def progress(self) -> Path:
        """The file in which the driver writes how far it is."""
        return self.root / "progress.json"

    def run(self, key: str) -> Path:
        """Return the folder of the run with this key."""
        return self.root / "runs" / key[:2] / _inside(key)

    def has_run(self, key: str, keep: Keep = "best") -> bool:
        """Return whether the run is finished, with all checkpoints where `keep` is "all".

        A folder appears only when all its files are written.
        """
        return (self.run(key) / "result.json").exists() and (
            keep == "best" or (self.run(key) / CHECKPOINTS).exists()
        )

    def new_run(self, key: str) -> AbstractContextManager[Path]:
        """Return a folder to fill, which becomes that of the run when the `with` block ends.

        A folder without a result is no run, and is removed first.
        """
        if self.run(key).is_dir() and not self.has_run(key):
            shutil.rmtree(self.run(key), ignore_errors=True)
        return new_folder(self.run(key))

    def checkpoints(self, key: str) -> dict[int, Path]:
        """Return the weights of every validation of a run by epoch; none where none were kept."""
        return dict(
            sorted(
                (int(path.stem), path)
                for path in (self.run(key) / CHECKPOINTS).glob("*.safetensors")
            )
        )

    def new_checkpoints(self, key: str) -> AbstractContextManager[Path]:
        """Return a folder to fill, which becomes that of the run's checkpoints on leaving."""
        return new_folder(self.run(key) / CHECKPOINTS)

    def partial(self, key: str) -> Path:
        """Return the folder of the files from which an unfinished run resumes after a kill.

        It is removed when the run is finished.
        """
        return self.root / "partial" / key[:2] / key

    def drop_partial(self, key: str) -> None:
        """Remove the partial files of a finished run."""
        shutil.rmtree(self.partial(key), ignore_errors=True)

    def _clear_partial(self) -> None:
        """Remove partial files of finished runs, except where checkpoints are still missing."""
        for folder in self.root.glob("partial/*/*"):
            if self.has_run(folder.name, "all" if (folder / CHECKPOINTS).exists() else "best"):
                self.drop_partial(folder.name)

    def result(self, key: str) -> RunResult:
        """Return the outcome of a finished run; its weights, which may be large, are not checked.

        Raises `BadInput` where one of its other files is not as it was placed.
        """
        folder = self.run(key)
        problem = check_run(folder, weights=False)
        if problem:
            raise BadInput(
                f"{folder}: {problem}; remove this folder and run the same command again: "
                "that run is computed again, and nothing else"
            )
        return RunResult.read(folder / "result.json")

    def entry(self, key: str) -> RunEntry:
        """Return a finished run as lines of a ledger hold it."""
        result = self.result(key)
        return RunEntry(
            key=key,
            status=result.status,
            validation=result.validation,
            best_epoch=result.best_epoch,
            last_epoch=result.last_epoch,
            result=digest_file(self.run(key) / "result.json"),
            training=result.training,
        )

    def test_vectors(self, key: str, test_fingerprint: str) -> Path:
        """Return the file of a run's test vectors, which exists once the seal is open."""
        return self.run(key) / "test" / f"{_inside(test_fingerprint)}.npy"

    def study(self, key: str) -> Path:
        """Return the folder of the study with this key."""
        return self.root / "studies" / _inside(key)

    def studies(self) -> list[str]:
        """Return the keys of all studies begun here, sorted."""
        return sorted(
            path.name
            for path in (self.root / "studies").glob("*")
            if (path / "ledger.jsonl").exists()
        )

    def bench(self, key: str) -> Path:
        """Return the file of the declared bench with this key."""
        return self.root / "benches" / f"{key}.json"

    def benches(self) -> list[str]:
        """Return the keys of all benches declared here, sorted."""
        return sorted(path.stem for path in (self.root / "benches").glob("*.json"))

    def answers(self, test_fingerprint: str) -> Path:
        """Return the file of the labels of a test half, which exists once the seal is open."""
        return self.root / "answers" / f"{_inside(test_fingerprint)}.npz"

    def model(self, name: str) -> Path:
        """Return the folder of a chosen model."""
        return self.root / "models" / name


def _inside(name: str) -> str:
    """Return the name; raise `BadInput` where a record makes it a path that leads elsewhere."""
    if "/" in name or name in ("", ".", ".."):
        raise BadInput(f"{name!r} is no key: it leads out of its folder. The ledger was altered")
    return name


def place_file(path: Path, content: bytes) -> None:
    """Add one file to a finished run folder, whole or not at all; the one already there stays."""
    if not path.exists():
        write_atomically(path, content)


def _check_writable(root: Path) -> None:
    """Raise `BadInput` where no file can be made in the folder.

    A full disk is reported on the first write.
    """
    try:
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise BadInput(
                f"cannot write to {root}: {error.strerror}; give another --out"
            ) from None


def _refuse_strangers(root: Path) -> None:
    strangers = sorted(path.name for path in root.iterdir() if not path.name.startswith(DRAFT))
    if strangers:
        raise BadInput(
            f"{root} is not a run store: it contains other files ({strangers[0]}, ...); give an"
            " empty --out"
        )


def _format_of(root: Path) -> object:
    try:
        return read_json(root / "format.json")["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(
            f"{root / 'format.json'} cannot be read; restore it, or give another --out"
        ) from None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
