"""The append-only record of a study: each line carries the hash of the line before it.

A study replays its ledger from the first line whenever it is started: what it records must be what stands there
already, and only past the last line does recording append. So a restart adds nothing, and a study that would go
another way than its record is refused. Looks at the test half come after all that a study records itself: it ends its
replay before them.
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from assay.canonical import canonical, digest, plain
from assay.errors import BadInput

Kind = Literal["preregistration", "trial", "selection", "reproduction", "seal", "test", "look"]
START = "0" * 64


class BrokenLedger(BadInput):
    """A ledger whose chain does not hold."""


class OtherStudy(BadInput):
    """What is being recorded is not what the ledger says."""


class SealError(RuntimeError):
    """The test half was asked for before the study's record allows it."""


@dataclass(frozen=True)
class Line:
    """One entry; `at` is the wall clock and stands outside the hash."""

    number: int
    kind: Kind
    body: Any
    previous: str
    hash: str
    at: str


@dataclass(frozen=True)
class Receipt:
    """Proof that a study has selected and reproduced: names its ledger and the line that completed it."""

    ledger: str
    hash: str

    def check(self, trainval: str) -> None:
        """Raise `SealError` unless the ledger holds, is of a study on `trainval`, and has selected and reproduced."""
        try:
            lines = read(Path(self.ledger))
        except (OSError, BrokenLedger) as error:
            raise SealError(f"{self.ledger} cannot be relied on, so the test half stays sealed: {error}") from None
        complete = completing_line(lines)
        if complete is None or complete.hash != self.hash:
            raise SealError(f"{self.ledger} does not bear out this receipt: the test half stays sealed")
        if (lines[0].body.get("data") or {}).get("trainval") != trainval:
            raise SealError(f"{self.ledger} is of a study on other data: the test half stays sealed")


class Ledger:
    """The ledger file at `path`, being replayed and extended by its one driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_torn_tail(path)
        self.lines = read(path) if path.exists() else []
        self._replayed = 0

    def record(self, kind: Kind, body: Any) -> Line:
        """Append the entry, or step over it where it is there already; raise `OtherStudy` where another one is."""
        body = plain(body)
        if self._replayed < len(self.lines):
            line = self.lines[self._replayed]
            if (line.kind, line.body) != (kind, body):
                raise OtherStudy(_difference(self.path, line, kind, body))
        else:
            line = self._append(kind, body)
        self._replayed += 1
        return line

    def look(self, body: Any) -> Line:
        """Append a look at the test half, however far the replay is; raises `SealError` where the seal is not open."""
        if not any(line.kind == "seal" for line in self.lines):
            raise SealError(f"{self.path}: the seal is not open, so nothing of the test half can have been looked at")
        return self._append("look", plain(body))

    @property
    def next(self) -> Line | None:
        """The entry that the next `record` will step over, None past the end."""
        return self.lines[self._replayed] if self._replayed < len(self.lines) else None

    def receipt(self) -> Receipt:
        """The receipt that opens the seal; raises `SealError` before selection and reproductions are recorded."""
        line = completing_line(self.lines)
        if line is None:
            raise SealError(f"{self.path}: selection and reproductions are not complete, so the test half stays sealed")
        return Receipt(str(self.path), line.hash)

    def _append(self, kind: Kind, body: Any) -> Line:
        number, previous = len(self.lines), self.lines[-1].hash if self.lines else START
        hashed = digest({"number": number, "kind": kind, "body": body, "previous": previous})
        line = Line(number, kind, body, previous, hashed, datetime.now(UTC).isoformat(timespec="seconds"))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as stream:
            stream.write(canonical(line).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.lines.append(line)
        return line


def read(path: Path) -> list[Line]:
    """The whole lines of a ledger, chain checked; a torn last line (a kill while writing) is not yet a line."""
    whole = path.read_bytes().split(b"\n")[:-1]
    lines: list[Line] = []
    for number, text in enumerate(whole):
        lines.append(_parse(path, number, text, lines[-1].hash if lines else START))
    return lines


def completing_line(lines: list[Line]) -> Line | None:
    """The line with which the reproductions promised in the preregistration became complete, None before that."""
    selected = [line.number for line in lines if line.kind == "selection"]
    if not selected or lines[0].kind != "preregistration":
        return None
    reproductions = [line for line in lines[selected[0] :] if line.kind == "reproduction"]
    promised = (lines[0].body.get("budget") or {}).get("reproduction_runs")
    return reproductions[-1] if reproductions and len(reproductions) == promised else None


def _parse(path: Path, number: int, text: bytes, previous: str) -> Line:
    try:
        line = Line(**json.loads(text))
        hashed = digest({"number": number, "kind": line.kind, "body": line.body, "previous": previous})
    except (ValueError, TypeError):
        raise BrokenLedger(f"{path}: line {number + 1} is not a ledger line") from None
    if line.number != number:
        raise BrokenLedger(f"{path}: line {number + 1} calls itself number {line.number}: lines were removed or moved")
    if line.previous != previous:
        raise BrokenLedger(f"{path}: line {number + 1} does not follow the line before it")
    if line.hash != hashed:
        raise BrokenLedger(f"{path}: line {number + 1} was altered: its hash does not fit")
    return line


def _cut_torn_tail(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _difference(path: Path, line: Line, kind: Kind, body: Any) -> str:
    what = f"a {kind} where the ledger has a {line.kind}" if kind != line.kind else f"another {kind}"
    fields = [key for key in sorted({*body, *line.body}) if line.body.get(key) != body.get(key)] if kind == line.kind else []
    named = f" (different: {', '.join(fields)})" if fields else ""
    cause = (
        "the test half is not the one that was opened" if kind == "seal" else "the study was begun with other settings or code"
    )
    return (
        f"{path}: this command leads to {what} at line {line.number + 1}{named}; {cause}. "
        "Continue it as it was begun, or give another --out to begin afresh"
    )
