"""Studies: search, select, reproduce, unseal, score; and benches, which are several of them side by
side.
"""

from assay.records.progress import Listener
from assay.study.bench import Bench, Execution, design_bench, plan_bench, run_bench
from assay.study.models import train_one
from assay.study.plan import Plan
from assay.study.reproduce import as_published, data_of, methods_published, run_published
from assay.study.study import Study
from assay.study.sweep import Swept, run_sweep

__all__ = [
    "Bench",
    "Execution",
    "Listener",
    "Plan",
    "Study",
    "Swept",
    "as_published",
    "data_of",
    "design_bench",
    "methods_published",
    "plan_bench",
    "run_bench",
    "run_published",
    "run_sweep",
    "train_one",
]
