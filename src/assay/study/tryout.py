"""Each method tried on a few small batches before anything is announced.

A loss that fails would else be found by every run of its study, and a wrong sampler after the
announcement. The batches have the labels that the protocol's sampler draws from the first fold, and
random vectors in place of embeddings. Nothing is written, and the random numbers of this process
stay as they were.
"""

import inspect
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.data.packs import renumber
from assay.data.splits import folds
from assay.devices import seed_torch, torch_threads
from assay.errors import BadInput, in_one_line
from assay.losses.loss import Loss
from assay.methods import BuiltMethod, assemble, samplers
from assay.samplers.sampler import check_pattern, has_fixed_pattern
from assay.space import Parameters
from assay.study.conditions import Conditions
from assay.study.design import Design
from assay.train import draw_batches, groups_of

DRAWS = 3
"""Batches that a method is tried on: a memory of past batches is used from the second one on."""

NOTHING_LOST = "Fix it and run the same command again; nothing was begun"
NO_ROOM = "Set a smaller dim, batch or parameter: nothing was begun"


def try_methods(designs: Sequence[Design]) -> None:
    """Raise `BadInput` where the method of a design, with its first parameters, cannot be trained.

    Methods that share conditions and batch are tried on the same batches.
    """
    drawn: dict[tuple[int, tuple[int, int]], _Drawn] = {}
    for design in designs:
        if design.method.loss is not None:
            key = id(design.conditions), design.batch
            if key not in drawn:
                drawn[key] = _draw(design.conditions, design.batch)
            _try(design, design.first, drawn[key])


def try_parameters(design: Design, parameters: Parameters) -> None:
    """Raise `BadInput` where the method of a design cannot be trained with these parameters."""
    _try(design, parameters, _draw(design.conditions, design.batch))


@dataclass(frozen=True)
class _Drawn:
    """Labels of the first batches of the first fold, and the classes that the fold trains on."""

    batches: list[Tensor]
    classes: int


def _draw(conditions: Conditions, batch: tuple[int, int]) -> _Drawn:
    """Return the labels of the first batches of the first fold.

    Raise `BadInput` where the sampler fails, or draws other batches than it declares.
    """
    protocol, trainval = conditions.resolved, conditions.trainval
    y = renumber(trainval.y[folds(trainval, protocol.folds)[0].train])
    name, found = protocol.sampler, []
    try:
        batches = draw_batches(y, protocol, batch, protocol.seed)
        for _ in range(DRAWS):
            _, labels = next(batches)
            if has_fixed_pattern(samplers[name]):
                check_pattern(name, labels, batch)
            found.append(torch.from_numpy(labels))
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the sampler {name} fails on a batch of {_shape(batch)} samples:"
            f" {in_one_line(error)}. {NOTHING_LOST}"
        ) from error
    return _Drawn(found, int(y.max()) + 1)


def _try(design: Design, parameters: Parameters, drawn: _Drawn) -> None:
    """Take a step on each batch; raise `BadInput` where one fails or none gives a number."""
    method, device = design.method, torch.device(design.conditions.device)
    assert method.loss is not None
    values = []
    with _random_numbers_kept(device), torch_threads(design.protocol.threads):
        try:
            built = assemble(method, parameters, design.protocol)
            built.loss.setup(design.dim, drawn.classes)
            built.loss.to(device)
            for y in drawn.batches:
                values.append(_step(design, built, y.to(device)))
        except BadInput:
            raise
        except (Exception, SystemExit) as error:
            full = isinstance(error, MemoryError) or "allocate memory" in str(error)
            raise BadInput(
                f"{method.name} fails on a batch of {_shape(design.batch)} samples and {design.dim}"
                f" dimensions: {in_one_line(error, _place_of(method.loss))}."
                f" {NO_ROOM if full else NOTHING_LOST}"
            ) from error
    if not any(np.isfinite(value) for value in values):
        raise BadInput(
            f"{method.name}: its loss is {values[0]} on every batch of random vectors with"
            f" {_with(parameters)} ({_place_of(method.loss)}), so that every run would diverge."
            f" {NOTHING_LOST}"
        )


def _step(design: Design, built: BuiltMethod, y: Tensor) -> float:
    """Return the loss of random vectors of length about 1, after its backward pass."""
    leaf_ND = torch.randn(len(y), design.dim, device=y.device) / design.dim**0.5
    leaf_ND.requires_grad_()
    z_ND = leaf_ND * 1.0  # embeddings are not leaves, so a loss may change them in place
    groups_of([leaf_ND], dict(built.loss.named_parameters()), built, design.protocol)
    mined = built.miner(z_ND.detach(), y) if built.miner else None
    value = built.loss(z_ND, y, mined)
    if not value.requires_grad:
        raise ValueError(
            "the loss has no gradient; use no .item(), .detach() or numpy on the way, and return"
            " 0 * z.sum() where there is nothing to compare"
        )
    value.backward()  # type: ignore[no-untyped-call]
    return value.item()


@contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Draw the same numbers inside, and put the generators back to where they were."""
    pythons, numpys = random.getstate(), np.random.get_state()
    gpus = list(range(torch.cuda.device_count())) if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        try:
            seed_torch(0)
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)


def _shape(batch: tuple[int, int]) -> str:
    return "{} x {}".format(*batch)


def _with(parameters: Parameters) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items()) or "its defaults"


def _place_of(loss: type[Loss]) -> str:
    """Return file and line of the code of a loss."""
    try:
        code = inspect.unwrap(loss.forward)
        return f"{Path(inspect.getfile(code))}, line {inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return loss.__module__
