"""Where runs execute. An engine takes tasks, runs each in a process of its own choosing, and hands
back futures.

The engine for clusters is `assay.engines.ray.RayEngine`: it stands apart because Ray is an extra.
"""

from assay.engines.engine import Demanding, Engine, WorkerDied
from assay.engines.local import LocalEngine
from assay.workers import Task

__all__ = ["Demanding", "Engine", "LocalEngine", "Task", "WorkerDied"]
