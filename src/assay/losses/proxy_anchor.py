"""Proxy-Anchor. Shapes: N batch, C classes."""

from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, is_own_class
from assay.pairs import log1p_sum_exp
from assay.registry import Paper
from assay.space import Real, Space, above, at_least


@losses("proxy_anchor")
class ProxyAnchor(Loss):
    """Each class's proxy is an anchor that weighs the samples of a batch by how hard they are.

    Eq. 4:  1/|C+| sum over classes in the batch of log(1 + sum over x of c of e^(-a(s - m)))
            + 1/|C| sum over all classes of log(1 + sum over x not of c of e^(a(s + m)))

    Args:
        alpha: sharpness (a).
        margin: beyond which a similarity counts (m).
    """

    compares = "classes"
    paper = Paper(
        "Proxy Anchor Loss for Deep Metric Learning", 2020, "arxiv.org/abs/2003.13911", equation="4"
    )
    departures = (PROXY_START,)

    def __init__(self, *, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__()
        self.alpha, self.margin = above(0, "alpha", alpha), at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = self.alpha * cosines(z, y, self.weights)
        own_NC, shift = is_own_class(y, s_NC.shape[1]), self.alpha * self.margin
        pull_C = log1p_sum_exp(shift - s_NC, own_NC, dim=0)
        push_C = log1p_sum_exp(s_NC + shift, ~own_NC, dim=0)
        return pull_C.sum() / own_NC.any(0).sum().clamp(min=1) + push_C.mean()


methods.add(
    Method(
        "proxy_anchor",
        ProxyAnchor,
        batch="classification",
        space=Space(alpha=Real(1, 100), margin=Real(0, 1, natural="low"), weights_lr=WEIGHTS_LR),
        own_departures=(
            (
                "batches of many classes, as for all methods with class weights: often one sample"
                " of each"
            ),
        ),
        about="proxies as anchors that weigh the samples of a batch",
    )
)
