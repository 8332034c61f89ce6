"""Ranked list. Shapes: N batch, M references."""

import torch
from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, distances, log_sum_exp
from assay.registry import Paper
from assay.space import Real, Space, above, at_least


@losses("ranked_list")
class RankedList(Loss):
    """Keeps positives inside a sphere, negatives outside a wider one; the nearest weigh most.

    mean over anchors of:
        mean over P with d > alpha - m of d - (alpha - m),
        plus l times the weighted mean over Q with d < alpha of alpha - d
    The weights e^(T (alpha - d)) carry no gradient.

    Args:
        alpha: radius outside of which a negative costs nothing.
        margin: how much smaller the radius of positives is (m).
        temperature: how much the nearest negatives weigh (T).
        balance: weight of the negatives (l).
    """

    compares = "pairs"
    paper = Paper("Ranked List Loss for Deep Metric Learning", 2019, "arxiv.org/abs/1903.03238")
    departures = ("weights are constant in the gradient; two public codes differentiate them",)

    def __init__(
        self,
        *,
        alpha: float = 1.2,
        margin: float = 0.4,
        temperature: float = 10.0,
        balance: float = 1.0,
    ) -> None:
        super().__init__()
        self.alpha, self.margin = above(0, "alpha", alpha), at_least(0, "margin", margin)
        self.temperature, self.balance = (
            at_least(0, "temperature", temperature),
            at_least(0, "balance", balance),
        )

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        # an anchor without pairs of a kind adds nothing to that term
        d_NM = distances(z, references.z)
        with torch.no_grad():
            outside_NM = pairs.positive & (d_NM > self.alpha - self.margin)
            inside_NM = pairs.negative & (d_NM < self.alpha)
            pull_NM = outside_NM / outside_NM.sum(1, keepdim=True, dtype=d_NM.dtype).clamp(min=1)
            score_NM = self.temperature * (self.alpha - d_NM)
            share_NM = torch.where(
                inside_NM, (score_NM - log_sum_exp(score_NM, inside_NM)[:, None]).exp(), 0
            )
        cost_NM = pull_NM * (d_NM - self.alpha + self.margin) + self.balance * share_NM * (
            self.alpha - d_NM
        )
        return cost_NM.sum() / max(len(z), 1)


methods.add(
    Method(
        "ranked_list",
        RankedList,
        space=Space(
            alpha=Real(0.5, 2, natural="high"),
            margin=Real(0, 1, natural="low"),
            temperature=Real(0, 20, natural="low"),
        ),
        about="positives inside a sphere, negatives outside a wider one",
    )
)
