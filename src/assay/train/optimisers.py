"""From a protocol to optimisers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.methods import Parts
from assay.model import Model
from assay.protocols import ResolvedOptimiser, ResolvedProtocol, Schedule

Make = Callable[..., torch.optim.Optimizer]


def optimisers_of(
    model: Model, parts: Parts, protocol: ResolvedProtocol
) -> list[torch.optim.Optimizer]:
    """Those of one model and its method."""
    return make_optimisers(
        list(model.parameters()), dict(parts.loss.named_parameters()), parts, protocol
    )


def make_optimisers(
    weights: Sequence[Tensor], own: Mapping[str, Tensor], parts: Parts, protocol: ResolvedProtocol
) -> list[torch.optim.Optimizer]:
    """One for the weights of trunk and head, one for the method's own where it has some."""
    head, *others = groups_of(weights, own, parts, protocol)
    return [make_optimiser(groups, protocol.optimiser) for groups in ([head], others) if groups]


def groups_of(
    weights: Sequence[Tensor], own: Mapping[str, Tensor], parts: Parts, protocol: ResolvedProtocol
) -> list[dict[str, Any]]:
    """What torch's optimisers are made of: the weights of trunk and head, then the method's own,
    with their learning rates.

    Of the method's own, those that it names are not decayed, and none are where the protocol says
    so.
    """
    undecayed = parts.loss.undecayed
    unknown = sorted(set(undecayed) - set(own))
    if unknown:
        raise ValueError(
            f"{type(parts.loss).__name__}.undecayed names {unknown[0]!r}, but its weights are"
            f" {', '.join(own) or 'none'}"
        )
    kept = undecayed if protocol.optimiser.decay_own else tuple(own)
    others = [
        {
            "params": [weight for name, weight in own.items() if name not in kept],
            "lr": parts.weights_lr,
        },
        {"params": [own[name] for name in kept], "lr": parts.weights_lr, "weight_decay": 0.0},
    ]
    return [
        {"params": list(weights), "lr": parts.lr},
        *(group for group in others if group["params"]),
    ]


def share_of_rate(schedule: Schedule | None, done: int, steps: int) -> float:
    """Share of the learning rate that holds for the next step, after `done` of `steps`.

    >>> [round(share_of_rate("cosine", done, 4), 3) for done in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return 1.0 if schedule == "constant" else (1 + math.cos(math.pi * done / steps)) / 2


class Rates:
    """The learning rates of optimisers, which follow the protocol's schedule.

    They depend on the number of the step alone, so that a training that goes on after a kill needs
    no more than that.
    """

    def __init__(
        self, optimisers: Sequence[torch.optim.Optimizer], protocol: ResolvedProtocol, steps: int
    ) -> None:
        self._schedule, self._steps = protocol.optimiser.schedule, steps
        self._groups = [
            (group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups
        ]

    def set(self, done: int) -> None:
        """Set them for the step that follows `done` others."""
        if self._schedule == "constant":
            return
        share = share_of_rate(self._schedule, done, self._steps)
        for group, rate in self._groups:
            group["lr"] = rate * share


def make_optimiser(
    groups: list[dict[str, Any]], settings: ResolvedOptimiser
) -> torch.optim.Optimizer:
    """All weights of a group in one operation, or one pass over memory; what a protocol does not
    say is as torch has it.
    """
    kinds: dict[str, Make] = {
        "rmsprop": torch.optim.RMSprop,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    momentum = {"momentum": settings.momentum} if settings.kind in ("rmsprop", "sgd") else {}
    # torch's fused SGD wants the momentum of all weights of a group or of none; in a stack some
    # rows have just begun
    way = {"fused": True} if settings.kind in ("adam", "adamw") else {"foreach": True}
    return kinds[settings.kind](groups, weight_decay=settings.weight_decay, **way, **momentum)
