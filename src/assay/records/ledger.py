"""The append-only record of a study: each line carries the hash of the line before it.

A study replays its ledger from the first line whenever it is started. An entry that it records must
equal the line that is there already; past the last line it is appended. So a restart adds nothing,
and a study that would go another way than its record is refused. Looks at the test half (and the
peek, which scores checkpoints that were not chosen) come after everything that a study decides: the
replay ends before them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from assay.errors import BadInput, reason_of
from assay.files import append_line, cut_torn_line, parse_json, read_bytes
from assay.hashing import canonical, digest
from assay.records.codec import RESTORE, BadRecord, differing_fields
from assay.records.lines import ENTRIES, Entry, Look, Peek, Preregistration

Kind = Literal[
    "preregistration", "trial", "selection", "reproduction", "seal", "test", "peek", "look"
]
LOOKS: tuple[Kind, ...] = ("look", "peek")
"""Lines that come after all that a study decides, in any order."""
START = "0" * 64


class BrokenLedger(BadInput):
    """A ledger whose chain does not hold."""


class OtherStudy(BadInput):
    """An entry that is being recorded differs from the one in the ledger."""


class SealError(RuntimeError):
    """The test half was asked for before the study's record allows it."""


@dataclass(frozen=True)
class Line:
    """One line; `at` is the wall clock and stands outside the hash."""

    number: int
    kind: Kind
    body: Any
    previous: str
    hash: str
    at: str

    def entry(self, where: str = "ledger.jsonl") -> Entry:
        """Return the entry of the line as its type; `BadRecord` begins with `where`."""
        if "_read" not in vars(self):  # a study asks for every line again after each trial
            place = f"{where}, line {self.number + 1}"
            if self.kind not in ENTRIES:
                raise BadRecord(
                    f"{place} has the kind {self.kind!r}, which no line of a ledger has"
                )
            found = ENTRIES[self.kind].from_json(self.body, f"{place} ({self.kind})")
            object.__setattr__(self, "_read", found)
        entry: Entry = vars(self)["_read"]
        return entry


@dataclass(frozen=True)
class Receipt:
    """Proof that a study has selected and reproduced: its ledger and the line that completed it."""

    ledger: str
    hash: str

    def check(self, trainval: str) -> None:
        """Raise `SealError` unless the ledger holds and is that of a complete study on `trainval`.

        Complete means that it has selected and reproduced.
        """
        try:
            lines = read(Path(self.ledger))
            announced = announcement(lines, self.ledger)
            complete = completing_line(lines)
        except (OSError, BrokenLedger, BadRecord) as error:
            raise SealError(
                f"{self.ledger} cannot be relied on, so the test half stays sealed: {error}"
            ) from None
        if complete is None or complete.hash != self.hash:
            raise SealError(
                f"{self.ledger} does not support this receipt: the test half stays sealed"
            )
        if announced is None or announced.data.trainval != trainval:
            raise SealError(
                f"{self.ledger} is of a study on other data: the test half stays sealed"
            )


def receipt_of(path: Path) -> Receipt:
    """Return the receipt of the study with this ledger, which is only read.

    Raises `SealError` before selection and reproductions are recorded.
    """
    return _receipt(path, read(path))


def _receipt(path: Path, lines: list[Line]) -> Receipt:
    line = completing_line(lines)
    if line is None:
        raise SealError(
            f"{path}: selection and reproductions are not complete, so the test half stays sealed"
        )
    return Receipt(str(path), line.hash)


class Ledger:
    """The ledger file at `path`, replayed and extended by its one driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        cut_torn_line(path)
        self.lines = read(path) if path.exists() else []
        self._replayed = 0

    def record(self, entry: Entry) -> Line:
        """Append the entry, or step over the line where it is there already.

        Raises `OtherStudy` where the line holds another entry.
        """
        body = entry.to_json()
        line = self._next
        if line is None:
            line = self._append(entry.kind, body)
        elif (line.kind, line.body) != (entry.kind, body):
            raise OtherStudy(_difference(self.path, line, entry.kind, body))
        self._replayed += 1
        return line

    def look(self, entry: Look | Peek) -> Line:
        """Append a look at the test half, however far the replay is.

        Raises `SealError` where the seal is not open.
        """
        if not self.opened:
            raise SealError(
                f"{self.path}: the seal is not open, so nothing of the test half can have been"
                " looked at"
            )
        return self._append(entry.kind, entry.to_json())

    @property
    def opened(self) -> bool:
        """Whether the seal is open."""
        return any(line.kind == "seal" for line in self.lines)

    @property
    def announced(self) -> Preregistration | None:
        """The preregistration, None before the first line."""
        return announcement(self.lines, str(self.path))

    @property
    def next(self) -> Entry | None:
        """The entry that the next `record` will step over, None past the end."""
        return None if self._next is None else self._next.entry(str(self.path))

    @property
    def _next(self) -> Line | None:
        return self.lines[self._replayed] if self._replayed < len(self.lines) else None

    def receipt(self) -> Receipt:
        """Return the receipt that opens the seal.

        Raises `SealError` before selection and reproductions are recorded.
        """
        return _receipt(self.path, self.lines)

    def _append(self, kind: Kind, body: Any) -> Line:
        number, previous = len(self.lines), self.lines[-1].hash if self.lines else START
        hashed = hash_of(number, kind, body, previous)
        line = Line(
            number, kind, body, previous, hashed, datetime.now(UTC).isoformat(timespec="seconds")
        )
        append_line(self.path, canonical(line))
        self.lines.append(line)
        return line


def hash_of(number: int, kind: str, body: Any, previous: str) -> str:
    """Return the hash of a line, which the next line carries; the clock is no part of it."""
    return digest({"number": number, "kind": kind, "body": body, "previous": previous})


def read(path: Path) -> list[Line]:
    """Return the whole lines of a ledger, their chain checked.

    A torn last line (the process was killed while writing) is not yet a line.
    """
    try:
        whole = read_bytes(path).split(b"\n")[:-1]
    except OSError as error:
        raise BrokenLedger(f"{path} cannot be read: {reason_of(error)}{RESTORE}") from None
    lines: list[Line] = []
    for number, text in enumerate(whole):
        lines.append(_parse(path, number, text, lines[-1].hash if lines else START))
    return lines


def announcement(lines: list[Line], where: str = "ledger.jsonl") -> Preregistration | None:
    """Return the preregistration with which a ledger begins, None where it has no line."""
    if not lines:
        return None
    entry = lines[0].entry(where)
    if not isinstance(entry, Preregistration):
        raise BadRecord(f"{where} does not begin with a preregistration")
    return entry


def completing_line(lines: list[Line]) -> Line | None:
    """Return the line that completed the searches and reproductions which were preregistered.

    None before they are complete.
    """
    selected = [line.number for line in lines if line.kind == "selection"]
    try:
        announced = announcement(lines) if selected else None
    except BadRecord:  # promises nothing that could be complete
        announced = None
    if announced is None:
        return None
    budget = announced.budget
    reproductions = [line for line in lines[selected[-1] :] if line.kind == "reproduction"]
    if (len(selected), len(reproductions)) != (budget.searches, budget.reproduction_runs):
        return None
    return reproductions[-1] if reproductions else None


def _parse(path: Path, number: int, text: bytes, previous: str) -> Line:
    try:
        line = Line(**parse_json(text))
        hashed = hash_of(number, line.kind, line.body, previous)
    except (ValueError, TypeError):
        raise BrokenLedger(f"{path}: line {number + 1} is not a ledger line{RESTORE}") from None
    if line.number != number:
        raise BrokenLedger(
            f"{path}: line {number + 1} calls itself number {line.number}: lines were removed or"
            f" moved{RESTORE}"
        )
    if line.previous != previous:
        raise BrokenLedger(f"{path}: line {number + 1} does not follow the line before it{RESTORE}")
    if line.hash != hashed:
        raise BrokenLedger(f"{path}: line {number + 1} was altered: its hash does not fit{RESTORE}")
    return line


def _difference(path: Path, line: Line, kind: Kind, body: Any) -> str:
    altered = _altered_runs(line.body, body) if kind == line.kind else []
    if altered:
        return (
            f"{path}: line {line.number + 1} says that run {altered[0]} had another result.json"
            " than it has now: that file was altered. Remove the folder of that run and run the"
            " same command again: it is computed again, and nothing else"
        )
    what = (
        f"a {kind} where the ledger has a {line.kind}" if kind != line.kind else f"another {kind}"
    )
    fields = differing_fields(line.body, body) if kind == line.kind else []
    named = f" (different: {', '.join(fields)})" if fields else ""
    cause = (
        "the test half is not the one that was opened"
        if kind == "seal"
        else "the study was begun with other settings or code"
    )
    return (
        f"{path}: this command leads to {what} at line {line.number + 1}{named}; {cause}. Continue"
        " it as it was begun, or start a new study with --new-study (both stay in the record) or"
        " another --out"
    )


def _altered_runs(recorded: Any, found: Any) -> list[str]:
    """Return the keys of the runs of a line whose results had other hashes when it was written."""
    runs = [body.get("runs", [body]) for body in (recorded, found)]
    hashes = [
        {run["key"]: run.get("result") for run in part if isinstance(run, dict) and "key" in run}
        for part in runs
    ]
    return [key for key, result in hashes[0].items() if hashes[1].get(key, result) != result]
