"""Multi-similarity. Shapes: N batch, M references."""

from torch import Tensor

from assay.losses.loss import Loss, Method, losses, methods
from assay.pairs import Pairs, References, log1p_sum_exp, similarities
from assay.registry import Paper
from assay.space import Real, Space, above, between


@losses("multi_similarity")
class MultiSimilarity(Loss):
    """Weighs each pair by its own similarity and by those of its neighbours.

    Eq. 15:  mean_i  1/a log(1 + sum_pos e^(-a(s_ij - m))) + 1/b log(1 + sum_neg e^(b(s_ij - m)))

    Args:
        alpha: sharpness over positives (a).
        beta: sharpness over negatives (b).
        base: similarity at which a pair counts neither way (m).
    """

    compares = "pairs"
    paper = Paper(
        "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
        2019,
        "arxiv.org/abs/1904.06627",
        equation="15",
    )

    def __init__(self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> None:
        super().__init__()
        self.alpha, self.beta = above(0, "alpha", alpha), above(0, "beta", beta)
        self.base = between(-1, 1, "base", base)

    def forward(self, z: Tensor, y: Tensor, pairs: Pairs, references: References) -> Tensor:
        s_NM = similarities(z, references.z) - self.base
        pull_N = log1p_sum_exp(-self.alpha * s_NM, pairs.positive) / self.alpha
        push_N = log1p_sum_exp(self.beta * s_NM, pairs.negative) / self.beta
        return (pull_N + push_N).sum() / max(len(z), 1)


SPACE = Space(alpha=Real(0.001, 100), beta=Real(0.01, 200), base=Real(0, 1, natural="high"))

methods.add(
    Method(
        "multi_similarity",
        MultiSimilarity,
        space=SPACE,
        about="soft weights for all pairs of a batch",
    ),
    Method(
        "multi_similarity_mined",
        MultiSimilarity,
        miner="multi_similarity",
        space=SPACE | Space(epsilon=Real(0, 1, natural="low")),
        about="multi-similarity on the pairs that its miner keeps",
    ),
)
