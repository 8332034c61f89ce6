"""Proxy-NCA as it was benchmarked, as it was published, and the triplet form of the same paper.
Shapes: N batch, C classes.

On unit vectors |x - w|^2 = 2 - 2s: differences of squared distances are differences of
similarities, and no distance is taken.
"""

import torch
from torch import Tensor

from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, cross_entropy, is_own_class, of_own_class
from assay.pairs import log_sum_exp, masked_mean
from assay.registry import Paper
from assay.space import Real, Space, above, at_least

PAPER = Paper("No Fuss Distance Metric Learning using Proxies", 2017, "arxiv.org/abs/1703.07464")


@losses("proxy_nca")
class ProxyNCA(Loss):
    """Classifies by the squared distance to one unit proxy per class.

    mean_i  -log( e^(-k |x_i - w_y|^2) / sum_c e^(-k |x_i - w_c|^2) )
    All proxies are in the denominator, which makes it a softmax over 2k s_ic:
    `normalized_softmax` with the temperature 1 / 2k.

    Args:
        scale: sharpness of the softmax (k).
    """

    compares = "classes"
    paper = PAPER
    departures = (
        (
            "the sample's own proxy is in the denominator too, as in the form that the reality"
            " check benchmarked"
        ),
        "the scale k is a parameter",
        PROXY_START,
    )

    def __init__(self, *, scale: float = 9.0) -> None:
        super().__init__()
        self.scale = above(0, "scale", scale)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(2 * self.scale * cosines(z, y, self.weights), y)


@losses("proxy_nca_strict")
class ProxyNCAStrict(Loss):
    """Proxy-NCA as published: a sample's own proxy is not in the denominator.

    mean_i  k |x_i - w_y|^2 + lse over c != y of -k |x_i - w_c|^2

    Args:
        scale: sharpness of the softmax (k).
    """

    compares = "classes"
    paper = PAPER
    departures = ("the scale k is a parameter", PROXY_START)

    def __init__(self, *, scale: float = 9.0) -> None:
        super().__init__()
        self.scale = above(0, "scale", scale)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        # with a single class there is no other proxy, and the loss is 0
        s_NC = 2 * self.scale * cosines(z, y, self.weights)
        other_NC = ~is_own_class(y, s_NC.shape[1])
        return masked_mean(
            log_sum_exp(s_NC, other_NC) - of_own_class(s_NC, y)[:, 0], other_NC.any(1)
        )


@losses("proxy_triplet")
class ProxyTriplet(Loss):
    """Wants every other proxy farther from the sample than its own, by a margin.

    mean_i  sum over c != y of [|x_i - w_y|^2 - |x_i - w_c|^2 + m]+

    Args:
        margin: by how much another proxy's squared distance must be larger (m).
    """

    compares = "classes"
    paper = PAPER
    departures = ("all other proxies instead of one", PROXY_START)

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = at_least(0, "margin", margin)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        s_NC = cosines(z, y, self.weights)
        hinge_NC = torch.relu(2 * (s_NC - of_own_class(s_NC, y)) + self.margin)
        return (hinge_NC * ~is_own_class(y, s_NC.shape[1])).sum() / max(len(z), 1)


SCALE_SPACE = Space(scale=Real(0.01, 100), weights_lr=WEIGHTS_LR)

methods.add(
    Method(
        "proxy_nca",
        ProxyNCA,
        batch="classification",
        space=SCALE_SPACE,
        about="cross-entropy over squared distances to one proxy per class",
    ),
    Method(
        "proxy_nca_strict",
        ProxyNCAStrict,
        batch="classification",
        space=SCALE_SPACE,
        about="proxy-NCA with the own proxy left out of the denominator",
    ),
    Method(
        "proxy_triplet",
        ProxyTriplet,
        batch="classification",
        space=Space(margin=Real(0, 4, natural="both"), weights_lr=WEIGHTS_LR),
        about="a margin between the distances to the own and to each other proxy",
    ),
)
