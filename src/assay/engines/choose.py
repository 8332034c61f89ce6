"""An engine by its name, for the command line and `assay.bench`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from assay.devices import choose_device
from assay.engines.engine import Engine
from assay.engines.inline import InlineEngine
from assay.engines.local import LocalEngine
from assay.errors import BadInput

EngineKind = Literal["local", "ray", "inline"]


def choose_engine(
    kind: str,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    shared: Sequence[Path] = (),
) -> Engine:
    """Return the engine of this name; nothing starts before it is opened.

    Args:
        kind: local, ray or inline.
        workers: tasks at a time; None: one for each GPU that runs are for, else one for each core.
        address: of a running Ray cluster; None: Ray starts one on this machine.
        device: what runs compute on: auto, cpu or cuda.
        shared: folders that every node of a cluster must see.
    """
    if address is not None and kind != "ray":
        raise BadInput(f"--address {address} is that of a Ray cluster; add --engine ray")
    if kind == "local":
        return LocalEngine.for_device(choose_device(device), workers)
    if kind == "inline":
        if workers not in (None, 1):
            raise BadInput(
                f"--engine inline runs every task in this process, not in {workers} workers; leave"
                " --workers out"
            )
        return InlineEngine()
    if kind == "ray":
        from assay.engines.ray import RayEngine

        return RayEngine(address, workers, shared=shared)
    raise BadInput(f"--engine {kind}: choose local, ray or inline")
