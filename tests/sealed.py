"""A way past the seal for tests: the receipt of a study that has done all it promised."""

from pathlib import Path

from assay.ledger import Ledger, Receipt


def receipt(folder: Path, trainval: str) -> Receipt:
    """The receipt of a study on `trainval` that has done all it promised."""
    ledger = Ledger(folder / trainval / "ledger.jsonl")
    ledger.record("preregistration", {"data": {"trainval": trainval}, "budget": {"reproduction_runs": 1}})
    ledger.record("selection", {})
    ledger.record("reproduction", {})
    return ledger.receipt()
