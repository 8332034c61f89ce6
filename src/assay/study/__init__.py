"""Studies: search, select, reproduce, unseal, score; and benches, which are several of them side by side."""

from assay.study.baselines import Baseline, baselines
from assay.study.bench import Bench, design_bench, plan_bench, run_bench
from assay.study.learner import Learner, Part
from assay.study.look import FinishedRun, Look, run_behind
from assay.study.models import train_one
from assay.study.plan import Plan
from assay.study.progress import Listener, Silent
from assay.study.record import StudyRecord, study_records
from assay.study.study import Study

__all__ = [
    "Baseline",
    "Bench",
    "FinishedRun",
    "Learner",
    "Listener",
    "Look",
    "Part",
    "Plan",
    "Silent",
    "Study",
    "StudyRecord",
    "baselines",
    "design_bench",
    "plan_bench",
    "run_behind",
    "run_bench",
    "study_records",
    "train_one",
]
