"""Optimisers and learning rates, from a protocol and a method."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from assay.methods import BuiltMethod
from assay.protocols import ResolvedOptimiser, ResolvedProtocol, Schedule

Group = dict[str, Any]
"""Weights that share a learning rate, as torch's optimisers take them.

Beside torch's own entries: `rate`, which the schedule starts from, and `done`, steps taken.
"""


def optimiser_of(
    model: nn.Module, method: BuiltMethod, protocol: ResolvedProtocol, done: int = 0
) -> torch.optim.Optimizer:
    """Return the optimiser of a model and its method, which have taken `done` steps."""
    own = dict(method.loss.named_parameters())
    groups = groups_of(list(model.parameters()), own, method, protocol, done)
    return make_optimiser(groups, protocol.optimiser)


def groups_of(
    weights: Sequence[Tensor],
    own: Mapping[str, Tensor],
    method: BuiltMethod,
    protocol: ResolvedProtocol,
    done: int = 0,
) -> list[Group]:
    """Return a group of the weights of trunk and head, then one or two of the method's own.

    The method names which of its own weights do not decay; if the protocol says so, none do.
    """
    undecayed = method.loss.undecayed
    unknown = sorted(set(undecayed) - set(own))
    if unknown:
        raise ValueError(
            f"{type(method.loss).__name__}.undecayed names {unknown[0]!r}, but its weights are"
            f" {', '.join(own) or 'none'}"
        )
    constant = undecayed if protocol.optimiser.decay_own else tuple(own)
    decaying = [weight for name, weight in own.items() if name not in constant]
    groups: list[Group] = [
        {"params": list(weights), "lr": method.lr},
        {"params": decaying, "lr": method.weights_lr},
        {"params": [own[name] for name in constant], "lr": method.weights_lr, "weight_decay": 0.0},
    ]
    head, *others = ({**group, "rate": group["lr"], "done": done} for group in groups)
    return [head, *(group for group in others if group["params"])]


def make_optimiser(groups: list[Group], settings: ResolvedOptimiser) -> torch.optim.Optimizer:
    """Return torch's optimiser of the protocol's kind, with torch's defaults for the rest.

    All weights of a group are updated in one operation or one pass over memory.
    """
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "rmsprop": torch.optim.RMSprop,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    momentum = {"momentum": settings.momentum} if settings.kind in ("rmsprop", "sgd") else {}
    # Fused SGD needs the momentum of all weights of a group or of none; in a stack some have just
    # begun.
    way = {"fused": True} if settings.kind in ("adam", "adamw") else {"foreach": True}
    return kinds[settings.kind](groups, weight_decay=settings.weight_decay, **way, **momentum)


def share_of_rate(schedule: Schedule | None, done: int, steps: int) -> float:
    """Return the share of the learning rate for the step after `done` of `steps`.

    >>> [round(share_of_rate("cosine", done, 4), 3) for done in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return 1.0 if schedule == "constant" else (1 + math.cos(math.pi * done / steps)) / 2


def set_rates(optimiser: torch.optim.Optimizer, schedule: Schedule | None, steps: int) -> None:
    """Set the learning rates for the next step, and count that step.

    A rate depends only on the number of steps taken, so a resumed training needs nothing else.
    """
    for group in optimiser.param_groups if schedule != "constant" else ():
        group["lr"] = group["rate"] * share_of_rate(schedule, group["done"], steps)
        group["done"] += 1
