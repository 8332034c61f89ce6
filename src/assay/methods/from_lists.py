"""Which methods can be trained from listed pairs or triplets, and why the others cannot.

Only what is listed may be compared. So the miners of listed pairs and triplets feed every loss, and
a method that compares samples in another way is refused.

Shapes: L pairs or triplets, N batch, D dims.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.losses.loss import Compares, Loss, Method
from assay.methods.parameters import assemble
from assay.miners import Miner
from assay.pairs import Mined
from assay.protocols import ResolvedProtocol, Supervision
from assay.protocols.protocol import LISTED
from assay.space import Parameters

TRIED, DRAWS = 12, 8
"""Pairs or triplets of a batch that a loss is tried on, and the number of batches."""

DIM = 16
"""Width of the vectors that a loss is tried on."""

OTHERWISE: dict[Compares, str] = {
    "classes": "compares samples with classes, which training is not told",
    "batch": "compares all samples of a batch",
    "anything": "chooses by itself what it compares",
    "seen": "looks at more than embeddings",
}
"""Why a loss cannot be given what to compare."""


def why_not_listed(
    method: Method, protocol: ResolvedProtocol, parameters: Parameters
) -> str | None:
    """Return why the method cannot be trained from listed pairs or triplets.

    None where it can be, where the protocol lists none, and where the loss fails: `try_methods`
    (study/tryout.py) then says where.
    """
    told = protocol.supervision
    if method.baseline or told not in LISTED:
        return None
    if reason := _why_not(method, told):
        return reason
    with torch.random.fork_rng(devices=[]):
        try:
            built = assemble(method, parameters, protocol)
            assert built.miner is not None
            return _why_no_use(built.loss, built.miner, told)
        except Exception:
            return None


def _why_not(method: Method, told: Supervision) -> str | None:
    loss = method.loss
    if loss is None:
        return "computes its head from the class of each sample"
    if loss.compares in OTHERWISE:
        return OTHERWISE[loss.compares]
    if method.sampler is not None:
        return f"draws batches of its own ({method.sampler})"
    if method.miner is not None:
        return f"mines by itself ({method.miner})"
    if loss.remembers:
        return "compares with samples of earlier batches"
    if loss.compares == "triplets" and told == "pairs":
        return "compares triplets"
    return None


def _why_no_use(loss: Loss, miner: Miner, told: Supervision) -> str | None:
    """Return why a loss would not learn from what is listed, or not from that alone.

    It is tried on random vectors: its value may not change with labels once pairs or triplets are
    chosen, and has to change with the distances in them.
    """
    if loss.refreshes:
        return "is refreshed from all training samples"
    dim, classes, draw = loss.head(DIM).dim, LISTED[told] * TRIED, np.random.default_rng(0)
    loss.setup(dim, classes)
    loss.prepare(classes, DIM)
    if any(held.ndim and len(held) == classes for held in (*loss.parameters(), *loss.buffers())):
        return "keeps something for each class, and training is told no classes"
    values = []
    for _ in range(DRAWS):
        z_ND, y = _batch(told, dim, draw)
        mined = miner(z_ND, y)
        value, slope_ND = _value(loss, z_ND, y, mined)
        again, slope_again_ND = _value(loss, z_ND, y % 2, mined)
        if not (torch.equal(value, again) and torch.equal(slope_ND, slope_again_ND)):
            return "compares samples that are not listed together"
        values.append(value)
    if torch.stack(values).std() <= 1e-6 * torch.stack(values).abs().max():
        return f"learns nothing from single {told}"
    return None


def _batch(told: Supervision, dim: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return unit vectors, listed ones from near to far, and labels as `lay_out` makes them up."""
    first_LD, own_L = draw.normal(size=(TRIED, dim)), np.arange(TRIED)
    others = [
        first_LD + draw.uniform(0, 2, size=(TRIED, 1)) * draw.normal(size=(TRIED, dim))
        for _ in range(LISTED[told] - 1)
    ]
    z_ND = torch.from_numpy(np.concatenate([first_LD, *others]).astype(np.float32))
    second_L = np.where(own_L % 2, own_L + TRIED, own_L)
    labels = [own_L, second_L] if told == "pairs" else [own_L, own_L, own_L + TRIED]
    return F.normalize(z_ND), torch.from_numpy(np.concatenate(labels))


def _value(loss: Loss, z_ND: Tensor, y: Tensor, mined: Mined) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient."""
    leaf_ND = z_ND.clone().requires_grad_()
    value = loss(leaf_ND * 1.0, y, mined)
    (slope_ND,) = torch.autograd.grad(value, leaf_ND, allow_unused=True, materialize_grads=True)
    return value.detach(), slope_ND
