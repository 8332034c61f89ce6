"""Where runs execute. An engine takes tasks, runs each somewhere, and returns futures.

`InlineEngine` runs them in this process, `LocalEngine` in processes of this machine, and
`assay.engines.ray.RayEngine` on a cluster; the last is imported only when it is chosen.
"""

from assay.engines.engine import Engine, EngineKind, InlineEngine, WorkerDied, choose_engine
from assay.engines.local import LocalEngine
from assay.workers import Needs, Task, TaskFailed, WorkerPool

__all__ = [
    "Engine",
    "EngineKind",
    "InlineEngine",
    "LocalEngine",
    "Needs",
    "Task",
    "TaskFailed",
    "WorkerDied",
    "WorkerPool",
    "choose_engine",
]
