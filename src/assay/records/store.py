"""The run store: content-addressed runs that workers place whole, studies that only the driver
writes.
"""

import errno
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from assay.errors import BadInput, check_utf8
from assay.files import (
    DRAFT,
    lock_now,
    names_in,
    new_folder,
    read_json,
    remove_drafts,
    write_atomically,
)
from assay.hashing import digest_file, pretty
from assay.records.codec import FORMAT, check_format
from assay.records.lines import RunEntry
from assay.records.run import CHECKPOINTS, RunResult, check_run

Keep = Literal["best", "all"]
"""Which weights of a run stay: those of its best validation, or those of every one."""


ANOTHER = "give another --out"
"""Remedy for a store that a command cannot write to."""


class Store:
    """A folder of runs and studies; docs/store.md describes every file of it.

    Opening one for reading checks its format; `create` makes it first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "format.json").exists():
            remedy = (
                "give the folder of a bench"
                if root.exists()
                else f"`assay bench --out {root}` makes one"
            )
            raise BadInput(f"{root} is not a run store (no format.json in it); {remedy}")
        check_format(_format_document(root)["format"], f"the store {root}")

    @classmethod
    def create(cls, root: Path, salt: str | None = None) -> "Store":
        """Return the store at `root`, and make it first where there is none.

        A new store gets the salt of its commitments, a random one where none is given. Raises
        `BadInput` as `check_out` does.
        """
        cls.check_out(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not (root / "format.json").exists():
                _write_format(root, [salt or secrets.token_hex(32)])
        except OSError as error:
            raise BadInput(f"cannot write to {root}: {error.strerror}; {ANOTHER}") from None
        return cls(root)

    @classmethod
    def check_out(cls, root: Path) -> None:
        """Raise `BadInput` where no store could be made or continued at `root`; nothing is made.

        That is so where nothing can be written, the folder contains other files, the store there
        has another format, or its path, with all links followed, is not UTF-8.
        """
        check_utf8(root.resolve())
        try:
            above = next(
                path
                for path in (root, *root.absolute().parents)
                if path.exists() or path.is_symlink()
            )
            if not above.is_dir():
                raise BadInput(f"cannot write to {root}: {above} is no folder; {ANOTHER}")
            if above == root and not (root / "format.json").exists():
                _refuse_strangers(root)
        except OSError as error:
            raise BadInput(f"cannot write to {root}: {error.strerror}; {ANOTHER}") from None
        _check_writable(above, ANOTHER, root)
        if (root / "format.json").exists():
            cls(root)

    @contextmanager
    def driving(self, remedy: str = "") -> Iterator[None]:
        """Hold the store's lock; raise `BadInput` with the holder's name if another process has it.

        Remove drafts and partial files of killed processes first. `remedy` is for a store that
        cannot be written to, where it is not another --out.
        """
        holder = self.root / "driver.json"
        _check_writable(self.root, remedy or ANOTHER)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_now(self.root / "driver.lock"))
            except BlockingIOError:
                by = self.driver() or "another process"
                raise BadInput(
                    f"another command is writing to {self.root} ({by}); wait for it to end"
                    f"{'' if remedy else f', or {ANOTHER}'}"
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
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    @property
    def salts(self) -> tuple[str, ...]:
        """Salts that open the commitments of its benches: its own, then those of merged stores."""
        found = _format_document(self.root).get("salts")
        if not found or not all(isinstance(salt, str) for salt in found):
            raise BadInput(
                f"{self.root / 'format.json'} has no salts, which open the commitments of its"
                " benches; restore it from a copy"
            )
        return tuple(found)

    def add_salts(self, salts: Sequence[str]) -> None:
        """Keep the salts of a store that is merged into this one."""
        united = list(dict.fromkeys([*self.salts, *salts]))
        if len(united) > len(self.salts):
            _write_format(self.root, united)

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

    def share(self, key: str) -> Path:
        """Return the file that tells which share of a task is done; the key is its first run's."""
        return self.root / "partial" / f"{_inside(key)}.share"

    def shares(self) -> list[Path]:
        """Return the files of the tasks under way that tell which share is done."""
        return list(self.root.glob("partial/*.share"))

    def drop_partial(self, key: str) -> None:
        """Remove the partial files of a finished run."""
        shutil.rmtree(self.partial(key), ignore_errors=True)

    def _clear_partial(self) -> None:
        """Remove partial files of finished runs, except where checkpoints are still missing."""
        for share in self.shares():
            share.unlink(missing_ok=True)
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
        folder = self.root / "studies"
        return [name for name in names_in(folder) if (folder / name / "ledger.jsonl").exists()]

    def bench(self, hash_: str) -> Path:
        """Return the file of the bench that was announced with this hash."""
        return self.root / "benches" / f"{hash_}.json"

    def benches(self) -> list[str]:
        """Return the hashes of all benches declared here, sorted."""
        names = names_in(self.root / "benches")
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def answers(self, test_fingerprint: str) -> Path:
        """Return the file of the labels of a test half, which exists once the seal is open."""
        return self.root / "answers" / f"{_inside(test_fingerprint)}.npz"

    def contents(self, test_fingerprint: str) -> Path:
        """Return the file of the content hashes of a test half, there once the seal is open."""
        return self.root / "answers" / f"{_inside(test_fingerprint)}.sha256"

    def model(self, name: str) -> Path:
        """Return the folder of a chosen model."""
        return self.root / "models" / name

    def models(self) -> list[Path]:
        """Return the folders in `models`, sorted; what a killed process left is none."""
        folder = self.root / "models"
        return [folder / name for name in names_in(folder) if (folder / name).is_dir()]


def _inside(name: str) -> str:
    """Return the name; raise `BadInput` where a record makes it a path that leads elsewhere."""
    if "/" in name or name in ("", ".", ".."):
        raise BadInput(f"{name!r} is no key: it leads out of its folder. The ledger was altered")
    return name


def place_file(path: Path, content: bytes) -> None:
    """Add one file to a finished run folder, whole or not at all; the one already there stays."""
    if not path.exists():
        write_atomically(path, content)


def _check_writable(folder: Path, remedy: str, root: Path | None = None) -> None:
    """Raise `BadInput` where no file can be made in the folder, in which the store is to be.

    A full disk is reported on the first write.
    """
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            reason = f"cannot write to {root or folder}: {error.strerror}"
            raise BadInput(f"{reason}; {remedy}") from None


def _refuse_strangers(root: Path) -> None:
    strangers = sorted(path.name for path in root.iterdir() if not path.name.startswith(DRAFT))
    if strangers:
        raise BadInput(
            f"{root} is not a run store: it contains other files ({strangers[0]}, ...); give an"
            " empty --out"
        )


def _write_format(root: Path, salts: Sequence[str]) -> None:
    write_atomically(root / "format.json", pretty({"format": FORMAT, "salts": list(salts)}))


def _format_document(root: Path) -> dict[str, Any]:
    try:
        found = read_json(root / "format.json")
        return {"format": found["format"], "salts": found.get("salts")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
