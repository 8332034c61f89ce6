"""Each method tried on a few small batches before anything is announced.

A loss that fails would else be found by every run of its study, and a wrong sampler after the
announcement. The batches have the labels that the sampler draws from the first fold, and random
vectors in place of features and embeddings. Nothing is written, and the random numbers of this
process stay as they were.
"""

import inspect
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from assay.bank import Bank
from assay.data.dataset import Labels
from assay.data.splits import folds
from assay.devices import seed_torch, torch_threads
from assay.errors import BadInput, in_one_line
from assay.losses.loss import Loss, Seen
from assay.methods import BuiltMethod, Fitter, build_method, fitter_of, samplers
from assay.protocols.protocol import LISTED
from assay.samplers.sampler import bank_of, check_pattern, has_fixed_pattern
from assay.space import Parameters
from assay.study.design import Design
from assay.train import (
    Drawn,
    check_plan,
    draw_batches,
    draw_lists,
    groups_of,
    plan_batches,
    training_labels,
)

DRAWS = 3
"""Batches that a method is tried on: a memory of past batches is used from the second one on."""

FEATURES = 128
"""Width of the random vectors that stand for features."""

FEW = 512
"""Samples that a head in closed form is tried on at most."""

NOTHING_LOST = "Fix it and run the same command again; nothing was begun"
NO_ROOM = "Set a smaller dim, batch or parameter: nothing was begun"


def try_methods(designs: Sequence[Design]) -> None:
    """Raise `BadInput` where the method of a design, with its first parameters, cannot be trained.

    Methods that share conditions and batch are tried on the same batches.
    """
    drawn: dict[tuple[int, tuple[int, int], str | None, bool], _Drawn] = {}
    for design in designs:
        if not design.method.baseline:
            by_classes = design.method.batch == "classification"
            key = id(design.conditions), design.batch, design.method.sampler, by_classes
            if key not in drawn:
                drawn[key] = _draw(design)
            _try(design, design.first, drawn[key])


def try_parameters(design: Design, parameters: Parameters) -> None:
    """Raise `BadInput` where the method of a design cannot be trained with these parameters."""
    _try(design, parameters, _draw(design))


@dataclass(frozen=True)
class _Drawn:
    """The first batches of the first fold, and the labels of all samples that it trains on."""

    batches: list[Drawn]
    y: Labels

    @property
    def classes(self) -> int:
        """Classes that the fold trains on."""
        return int(self.y.max()) + 1

    def random_bank(self, dim: int) -> Bank:
        """Return a memory bank of random vectors, of unit length."""
        z = F.normalize(torch.randn(len(self.y), dim), dim=1)
        return Bank(z, torch.from_numpy(self.y), torch.randn(len(self.y), FEATURES))


def _draw(design: Design) -> _Drawn:
    """Return the first batches of the first fold.

    Raise `BadInput` where the sampler fails, or draws other batches than it declares.
    """
    conditions, batch = design.conditions, design.batch
    protocol, trainval = conditions.resolved, conditions.trainval
    train = folds(trainval, protocol.folds)[0].train
    y = training_labels(trainval.y[train], protocol.supervision)
    name, drawn = design.method.sampler or protocol.sampler, _Drawn([], y)
    if design.method.loss is None:
        return drawn
    if protocol.supervision in LISTED:
        assert trainval.relations is not None
        lists = draw_lists(trainval.relations.within(train), batch[0], protocol.seed)
        drawn.batches.extend(islice(lists, DRAWS))
        return drawn
    try:
        found: Iterator[Drawn]
        if bank_of(samplers[name]) is None:
            found = draw_batches(y, name, batch, protocol.seed)
        else:
            with _random_numbers_kept(torch.device("cpu")):
                bank, draw = drawn.random_bank(design.dim), np.random.default_rng(protocol.seed)
            rows = plan_batches(name, bank, batch, DRAWS, draw)
            found = iter([Drawn(own, y[own]) for own in rows])
        for rows, of_rows in islice(found, DRAWS):
            drawn.batches.append(Drawn(rows, of_rows))
            if has_fixed_pattern(samplers[name]):
                check_pattern(name, of_rows, batch)
        if protocol.supervision == "images" and design.method.loss.compares != "classes":
            _check_views(name, drawn.batches)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the sampler {name} fails on a batch of {_shape(batch)} samples:"
            f" {in_one_line(error)}. {NOTHING_LOST}"
        ) from error
    return drawn


def _check_views(sampler: str, batches: Sequence[Drawn]) -> None:
    """Raise `BadInput` where no batch holds an image twice, so that there are no positives."""
    if all(len(np.unique(batch.rows)) == len(batch.rows) for batch in batches):
        raise BadInput(
            f"--set supervision=images: the sampler {sampler} gives no image twice in a batch, so"
            " there are no two views to compare; use --set sampler=balanced"
        )


def _try(design: Design, parameters: Parameters, drawn: _Drawn) -> None:
    """Take a step on each batch; raise `BadInput` where one fails or none gives a number."""
    method, device = design.method, torch.device(design.conditions.device)
    if method.loss is None:
        _try_fitter(design, parameters, drawn)
        return
    values = []
    with _random_numbers_kept(device), torch_threads(design.protocol.threads):
        try:
            built, shape = build_method(method, parameters, design.protocol, drawn.classes)
            built.loss.prepare(len(drawn.y), FEATURES)
            built.loss.to(device)
            batches = _refresh(design, built.loss, shape.dim, drawn) or drawn.batches
            for number, batch in enumerate(batches):
                values.append(_step(design, built, shape.dim, batch, number))
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


def _try_fitter(design: Design, parameters: Parameters, drawn: _Drawn) -> None:
    """Fit a head to a few random vectors; raise `BadInput` where that fails."""
    method, y = design.method, torch.from_numpy(drawn.y[:FEW])
    fit = fitter_of(method, parameters)
    assert method.fitter is not None and fit is not None
    with _random_numbers_kept(torch.device("cpu")), torch_threads(design.protocol.threads):
        try:
            with torch.no_grad():
                layer = fit(torch.randn(len(y), FEATURES), y, design.dim)
            if not isinstance(layer, nn.Linear):
                raise TypeError(
                    f"its fitter returned a {type(layer).__name__}; return a torch.nn.Linear of 1"
                    f" to {design.dim} outputs"
                )
            if layer.in_features != FEATURES:
                raise ValueError(
                    f"its head takes {layer.in_features} numbers, and the features have {FEATURES}"
                )
            if not all(torch.isfinite(weight).all() for weight in layer.parameters()):
                raise ValueError("its head holds NaN or infinity")
            if not 1 <= layer.out_features <= design.dim:
                raise ValueError(
                    f"its head has {layer.out_features} outputs, not 1 to {design.dim}"
                )
        except BadInput:
            raise
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"{method.name} fails on {len(y)} random vectors of {FEATURES} numbers:"
                f" {in_one_line(error, _place_of(method.fitter))}. {NOTHING_LOST}"
            ) from error


def _refresh(design: Design, loss: Loss, dim: int, drawn: _Drawn) -> list[Drawn]:
    """Refresh the loss from random vectors, if it is refreshed; return the batches that it plans,
    if any.
    """
    if not loss.refreshes:
        return []
    bank, draw = drawn.random_bank(dim), np.random.default_rng(0)
    loss.refresh(bank, draw)
    planned = loss.batches(bank, design.batch, DRAWS, draw)
    if planned is None:
        return []
    name, size = f"{type(loss).__name__}.batches", design.batch[0] * design.batch[1]
    rows = check_plan(planned, name, DRAWS, size, len(drawn.y))
    return [Drawn(own, drawn.y[own]) for own in rows]


def _step(design: Design, built: BuiltMethod, dim: int, batch: Drawn, number: int) -> float:
    """Return the loss of random vectors of length about 1, after its backward pass."""
    device = torch.device(design.conditions.device)
    rows, y = (torch.from_numpy(one).to(device) for one in batch)
    leaf_ND = torch.randn(len(y), dim, device=device) / dim**0.5
    leaf_ND.requires_grad_()
    z_ND = leaf_ND * 1.0  # embeddings are not leaves, so a loss may change them in place
    groups_of([leaf_ND], dict(built.loss.named_parameters()), built, design.protocol)
    if built.loss.compares == "seen":
        head = nn.Linear(FEATURES, dim).to(device)
        x_NF = torch.randn(len(y), FEATURES, device=device, requires_grad=True)
        passes = number * len(y) / max(1, int(rows.max()) + 1)
        z_ND = z_ND + 0 * head(x_NF)  # so that embeddings depend on features, as in training
        value = built.loss.see(Seen(z_ND, y, x_NF * 1.0, rows, passes, head))
    else:
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


def _place_of(part: type[Loss] | Fitter) -> str:
    """Return file and line of the code of a loss or a fitter."""
    try:
        code = inspect.unwrap(getattr(part, "forward", part))
        return f"{Path(inspect.getfile(code))}, line {inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return part.__module__
