"""Studies: search, select, reproduce, unseal, score; and benches, which are several of them side by
side.
"""

from assay.records.progress import Listener
from assay.study.bench import Bench, Execution, design_bench, plan_bench, run_bench
from assay.study.failures import MethodFailed, MethodRefused
from assay.study.final import Finished, finished_studies, newest_of, train_final
from assay.study.models import check_out, train_one
from assay.study.plan import Plan
from assay.study.reproduce import as_published, data_of, methods_published, run_published
from assay.study.study import Study
from assay.study.sweep import Swept, run_sweep

__all__ = [
    "Bench",
    "Execution",
    "Finished",
    "Listener",
    "MethodFailed",
    "MethodRefused",
    "Plan",
    "Study",
    "Swept",
    "as_published",
    "check_out",
    "data_of",
    "design_bench",
    "finished_studies",
    "methods_published",
    "newest_of",
    "plan_bench",
    "run_bench",
    "run_published",
    "run_sweep",
    "train_final",
    "train_one",
]
