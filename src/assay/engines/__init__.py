"""Where runs execute. An engine takes tasks, runs each in a process of its own choosing, and hands back futures."""

from assay.engines.engine import Engine
from assay.engines.local import LocalEngine
from assay.workers import Task

__all__ = ["Engine", "LocalEngine", "Task"]
