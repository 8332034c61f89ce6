"""The report: one self-contained page, tables and figures, from the store alone."""

from assay.report.bench import Benched, bench
from assay.report.write import write_report

__all__ = ["Benched", "bench", "write_report"]
