"""Studies: search, select, reproduce, unseal, score; and benches, which are several of them side by
side.
"""

from assay.study.baselines import Baseline, baselines
from assay.study.bench import Bench, EngineKind, Means, design_bench, plan_bench, run_bench
from assay.study.learner import Learner, Part
from assay.study.look import FinishedRun, Look, run_behind
from assay.study.models import train_one
from assay.study.plan import Plan
from assay.study.progress import Listener, Silent
from assay.study.record import StudyRecord, study_records
from assay.study.reproduce import as_published, data_of, methods_published, run_published
from assay.study.study import Study
from assay.study.sweep import Swept, run_sweep

__all__ = [
    "Baseline",
    "Bench",
    "EngineKind",
    "FinishedRun",
    "Learner",
    "Listener",
    "Look",
    "Means",
    "Part",
    "Plan",
    "Silent",
    "Study",
    "StudyRecord",
    "Swept",
    "as_published",
    "baselines",
    "data_of",
    "design_bench",
    "methods_published",
    "plan_bench",
    "run_behind",
    "run_bench",
    "run_published",
    "run_sweep",
    "study_records",
    "train_one",
]
