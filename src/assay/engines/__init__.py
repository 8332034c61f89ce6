"""Where runs execute. An engine takes tasks, runs each in a process of its own choosing, and hands back futures."""

from assay.engines.engine import Engine, Task
from assay.engines.local import LocalEngine

__all__ = ["Engine", "LocalEngine", "Task"]
