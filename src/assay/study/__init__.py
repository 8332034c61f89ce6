"""Studies: search, select, reproduce, unseal, score; and benches, which are several of them side by side."""

from assay.study.bench import Bench, plan_bench, run_bench
from assay.study.look import FinishedRun, Look, Part
from assay.study.plan import Plan
from assay.study.progress import Listener, Silent
from assay.study.record import StudyRecord, study_records
from assay.study.study import Study

__all__ = [
    "Bench",
    "FinishedRun",
    "Listener",
    "Look",
    "Part",
    "Plan",
    "Silent",
    "Study",
    "StudyRecord",
    "plan_bench",
    "run_bench",
    "study_records",
]
