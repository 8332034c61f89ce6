"""Quadruplet. Shapes: N batch, M references, P positive pairs, Q negative pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import References, Triplets, distances, triplet_hinges
from assay.registry import Paper
from assay.space import Real, Space, at_least


@losses("quadruplet")
class Quadruplet(Loss):
    """Wants positive pairs nearer than negative pairs of the anchor or of two other classes.

    mean of [d_ap - d_an + m1]+ plus mean of [d_ap - d_nn' + m2]+
    n and n' are of two different classes, both other than a's.
    A miner chooses (a, p) and the n of the first term; the second term takes all n and n'.

    Args:
        margin: by which a negative of the anchor must be farther (m1).
        pair_margin: by which two samples of other classes must lie farther apart (m2).
    """

    compares = "triplets"
    paper = Paper(
        "Beyond triplet loss: a deep quadruplet network for person re-identification",
        2017,
        "arxiv.org/abs/1704.01719",
    )
    departures = (
        (
            "distances are not squared, all quadruplets of a batch are taken, and margins are"
            " parameters"
        ),
    )

    def __init__(self, *, margin: float = 0.2, pair_margin: float = 0.2) -> None:
        super().__init__()
        self.margin, self.pair_margin = (
            at_least(0, "margin", margin),
            at_least(0, "pair_margin", pair_margin),
        )

    def forward(self, z: Tensor, y: Tensor, triplets: Triplets, references: References) -> Tensor:
        d_NM = distances(z, references.z)
        near, _ = triplet_hinges(d_NM, triplets, self.margin)
        d_P = d_NM[triplets.anchor, triplets.positive]
        d_MM = d_NM if references.z is z else distances(references.z, references.z)
        far = pair_hinges(
            d_P, y[triplets.anchor], triplets.negative.any(1), d_MM, references.y, self.pair_margin
        )
        return near / triplets.negative.count_nonzero().clamp(min=1) + far


def pair_hinges(
    d_P: Tensor, label_P: Tensor, counted_P: Tensor, d_MM: Tensor, label_M: Tensor, margin: float
) -> Tensor:
    """Return the mean of [d_ap - d_nn' + m]+ over the pairs that count and all n, n'.

    n and n' are references of two different classes, both other than the pair's. A hinge is linear
    where it is above 0. So counting how often each distance stands in such a hinge gives the mean
    and its gradient, and counting takes a sort, not all P x Q combinations.
    """
    one_Q, other_Q = (label_M[:, None] != label_M).triu().nonzero(as_tuple=True)
    d_Q = d_MM[one_Q, other_Q]
    with torch.no_grad():
        label_2Q = torch.cat([label_M[one_Q], label_M[other_Q]])
        reach_P = torch.where(counted_P, d_P + margin, -torch.inf)
        below_P, above_Q, pairs_P = crossings(
            d_Q, torch.zeros_like(one_Q), reach_P, torch.zeros_like(label_P)
        )
        own_below_P, own_above_2Q, own_pairs_P = crossings(
            torch.cat([d_Q, d_Q]), label_2Q, reach_P, label_P
        )
        active_P, active_Q = below_P - own_below_P, above_Q - own_above_2Q.view(2, -1).sum(0)
        quadruplets = ((pairs_P - own_pairs_P) * counted_P).sum().clamp(min=1)
    total: Tensor = (active_P * (d_P + margin)).sum() - (active_Q * d_Q).sum()
    return total / quadruplets


def crossings(
    low_Q: Tensor, group_Q: Tensor, high_P: Tensor, group_P: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count low values below high values, and high values above low values, within groups.

    Returns for each high value the low values of its group below it (P,), for each low value the
    high values of its group above it (Q,), and for each high value all low values of its group
    (P,).
    """
    value, group = torch.cat([high_P, low_Q]), torch.cat([group_P, group_Q])
    order = value.argsort(stable=True)  # a high value comes before low values equal to it
    order = order[group[order].argsort(stable=True)]
    lows = F.pad((order >= len(high_P)).cumsum(0), (1, 0))
    groups, place = group[order], torch.arange(len(order), device=order.device)
    first, end = torch.searchsorted(groups, groups), torch.searchsorted(groups, groups, right=True)
    lows_before, lows_of_group = lows[place] - lows[first], lows[end] - lows[first]
    highs_after = (end - lows[end]) - (place - lows[place])
    back = torch.empty_like(order).scatter_(0, order, place)
    of_highs, of_lows = back[: len(high_P)], back[len(high_P) :]
    return lows_before[of_highs], highs_after[of_lows], lows_of_group[of_highs]


methods.add(
    Method(
        "quadruplet",
        Quadruplet,
        space=Space(margin=Real(0, 1, natural="low"), pair_margin=Real(0, 1, natural="low")),
        about="triplets, and a margin to pairs of two other classes",
    )
)
