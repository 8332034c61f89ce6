"""Looks at the test half: recorded in the ledger of a study, or beside a model of no study."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from assay.data.dataset import Half
from assay.data.seal import SealedTest
from assay.hashing import canonical, without_infinities
from assay.metrics import Scores
from assay.records import lines
from assay.records.ledger import Ledger, SealError
from assay.records.study import StudyRecord, study_records, write_record
from assay.run.finished import FinishedRun


@dataclass(frozen=True)
class OpenLook:
    """A look at the test half by way of a run, recorded before any score is reported.

    Only the process that drives the store may open a look.

    Args:
        run: the run whose model looks.
        half: the test half, unsealed.
        ledgers: ledgers of the studies that the look is recorded in.
    """

    run: FinishedRun
    half: Half
    ledgers: list[Ledger]

    @classmethod
    def open(cls, run: FinishedRun, sealed: SealedTest) -> "OpenLook":
        """Open the seal against the receipts of the studies that the run belongs to.

        Studies that differ only in their budgets share runs: the look belongs to each of them that
        has ended. Raise `SealError` where none has.
        """
        records = [record for record in study_records(run.store) if run.key in record.runs]
        if not records:
            raise SealError(
                f"no study of {run.store.root} has recorded the run {run.key[:12]}, so the test"
                " half stays sealed"
            )
        ledgers = [Ledger(run.store.study(record.key) / "ledger.jsonl") for record in records]
        complete = [
            ledger for ledger, record in zip(ledgers, records, strict=True) if record.complete
        ]
        if not complete:
            ledgers[0].receipt()
            raise SealError(
                f"{ledgers[0].path}: the study is still being scored, so the test half stays sealed"
            )
        halves = [sealed.open(ledger.receipt()) for ledger in complete]
        return cls(run, halves[0], complete)

    def record(self, scores: Scores) -> list[StudyRecord]:
        """Append the look to each ledger, write each `study.json` again, and return the studies."""
        entry = lines.Look(
            run=self.run.key,
            test=self.half.fingerprint,
            similarity=scores.similarity,
            metrics=dict(scores),
            queries=scores.queries,
            skipped=scores.skipped,
        )
        for ledger in self.ledgers:
            ledger.look(entry)
        return [write_record(ledger.path.parent, ledger.lines) for ledger in self.ledgers]


LOOKS_FILE = "looks.jsonl"
"""File in the folder of a model of no study that records looks at the test half."""


def record_beside_model(folder: Path, test: str, scores: Scores) -> int:
    """Append a look to `looks.jsonl` in a model folder, and return how many looks that file has."""
    look = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "test": test,
        "metrics": dict(scores),
    }
    with (folder / LOOKS_FILE).open("a", encoding="utf-8") as stream:
        stream.write(canonical(without_infinities(look)) + "\n")
    return len((folder / LOOKS_FILE).read_text(encoding="utf-8").splitlines())
