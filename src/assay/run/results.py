"""What a run gave and what it cost, as its files hold it."""

from dataclasses import replace

from assay.data.packs import View
from assay.hashing import canonical, digest_bytes
from assay.model import architecture_at_test, has_frozen_trunk, pack_model, size_of
from assay.protocols.protocol import bits_of
from assay.records.run import Run, RunBudget, RunResult
from assay.train import Fit


def history_of(found: Fit) -> str:
    """Return a line for each validation."""
    return "".join(canonical(checkpoint.to_json()) + "\n" for checkpoint in found.history)


def result_of(run: Run, found: Fit, view: View, channels: int) -> RunResult:
    """Return the outcome of a run, as the store keeps it.

    `channels` are those of the images; a frozen trunk is counted for them.
    """
    assert view.content is not None, "runs work on whole packs"
    return RunResult(
        status=found.status,
        best_epoch=found.best.epoch,
        last_epoch=found.history[-1].epoch,
        validation=found.best.validation,
        weights=digest_bytes(pack_model(found.architecture, found.weights)),
        history=digest_bytes(history_of(found).encode()),
        view=view.content,
        training=found.training or None,
        budget=_budget(run, found, view, channels),
    )


def _budget(run: Run, found: Fit, view: View, channels: int) -> RunBudget:
    """Return what a run cost."""
    protocol, images = run.protocol, found.images
    if has_frozen_trunk(protocol):
        images = replace(images, extracted=len(view.y))
    size = size_of(architecture_at_test(found.architecture, protocol, channels))
    return RunBudget(
        trained=found.trained,
        parameters=size.parameters,
        dim=size.dim,
        bits=bits_of(size.dim, protocol.similarity),
        images=images,
        shared=size.parameters - size_of(found.architecture).parameters,
    )
