"""The run store: content-addressed runs that workers place whole, studies that only the driver writes."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from assay.canonical import pretty
from assay.errors import BadInput
from assay.files import new_folder, only_one, read_json, remove_drafts, write_atomically

FORMAT = 1


class Store:
    """A folder of runs and studies; see DESIGN's "run store" for the layout.

    Opening one for reading checks its format; `create` makes it first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "format.json").exists():
            raise BadInput(f"{root} is not a run store (no format.json in it); `assay bench --out {root}` makes one")
        found = read_json(root / "format.json").get("format")
        if found != FORMAT:
            raise BadInput(f"{root} has store format {found}, this version of Assay reads {FORMAT}; give another --out")

    @classmethod
    def create(cls, root: Path) -> "Store":
        """The store at `root`, made where there is none; an existing folder that holds other things is refused."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not (root / "format.json").exists():
                _refuse_strangers(root)
                write_atomically(root / "format.json", pretty({"format": FORMAT}))
        except OSError as error:
            raise BadInput(f"cannot write to {root}: {error.strerror}; give another --out") from None
        if not os.access(root, os.W_OK):
            raise BadInput(f"cannot write to {root}: no permission; give another --out")
        return cls(root)

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Be the one driver of this store; a second one is told who the first is. Clears what the dead left behind."""
        holder = self.root / "driver.json"
        lock = self.root / "driver.lock"
        with only_one(lock, BadInput(_busy(self.root, holder))):
            remove_drafts(self.root)
            write_atomically(holder, pretty({"pid": os.getpid(), "host": socket.gethostname()}))
            try:
                yield
            finally:
                holder.unlink(missing_ok=True)

    def driver(self) -> str | None:
        """Who is driving this store now, None where nobody is."""
        try:
            with only_one(self.root / "driver.lock", BadInput("driven")):
                return None
        except BadInput:
            return _holder(self.root / "driver.json")
        except OSError:
            return None

    def run(self, key: str) -> Path:
        """The folder of the run with this key."""
        return self.root / "runs" / key[:2] / key

    def has_run(self, key: str) -> bool:
        """Whether the run is finished: folders appear whole."""
        return (self.run(key) / "result.json").exists()

    def new_run(self, key: str) -> AbstractContextManager[Path]:
        """A folder to fill that becomes the run's on leaving."""
        return new_folder(self.run(key))

    def result(self, key: str) -> Any:
        """The scores of a finished run."""
        return read_json(self.run(key) / "result.json")

    def test_vectors(self, key: str, test_fingerprint: str) -> Path:
        """Where a run's vectors of the test half lie once the seal is open."""
        return self.run(key) / "test" / f"{test_fingerprint}.npy"

    def study(self, key: str) -> Path:
        """The folder of the study with this key."""
        return self.root / "studies" / key

    def studies(self) -> list[str]:
        """The keys of all studies begun here, sorted."""
        return sorted(path.name for path in (self.root / "studies").glob("*") if (path / "ledger.jsonl").exists())

    def view(self, fingerprint: str) -> Path:
        """The folder of the unpacked half of a data set with this fingerprint."""
        return self.root / "views" / fingerprint


def place_file(path: Path, content: bytes) -> None:
    """Add one file to a finished run folder, whole or not at all; the one already there stays."""
    if not path.exists():
        write_atomically(path, content)


def _refuse_strangers(root: Path) -> None:
    strangers = sorted(path.name for path in root.iterdir())
    if strangers:
        raise BadInput(f"{root} holds other things ({strangers[0]}, ...) and is no run store; give an empty --out")


def _busy(root: Path, holder: Path) -> str:
    return f"{root} is being driven by {_holder(holder)}; wait for it to end, or give another --out"


def _holder(holder: Path) -> str:
    try:
        who = read_json(holder)
        return f"process {who['pid']} on {who['host']}"
    except (OSError, ValueError):
        return "another process"
