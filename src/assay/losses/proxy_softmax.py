"""Softmax over proxies as a strong baseline. Shapes: N batch, C classes."""

from torch import Tensor

from assay.heads import HeadShape
from assay.losses.loss import WEIGHTS_LR, Loss, Method, losses, methods
from assay.losses.proxies import PROXY_START, cosines, of_own_class
from assay.registry import Paper
from assay.space import Real, Space, above, between


@losses("proxy_softmax")
class ProxySoftmax(Loss):
    """Classifies by the cosine to one unit proxy per class, with labels that are smoothed.

    mean_i  -(1 - e) log p_iy - e / (C - 1) sum over c != y of log p_ic,
        p_ic = e^(s_ic / T) / sum_k e^(s_ik / T),  s_ic = z_i . w_c / |w_c|
    The head standardises the features, has no bias, and sets half of its outputs to 0 in training.
    In the first epoch only the head and the proxies are trained; then the optimiser begins anew,
    also where the trunk is frozen.

    Args:
        temperature: sharpness of the softmax (T).
        smoothing: probability that the other classes share (e).
    """

    compares = "classes"
    head_first = 1
    paper = Paper(
        "Classification is a Strong Baseline for Deep Metric Learning",
        2019,
        "arxiv.org/abs/1811.12649",
    )
    departures = (
        PROXY_START,
        "labels are smoothed and outputs of the head dropped; the published code does neither",
        "batches of the protocol for classification, instead of several images of each class",
        "the embedding is as wide as the protocol says; 2048 in the paper",
        (
            "the first epoch, of head and proxies only, is one of the protocol's, and leaves the"
            " statistics of batch normalisation as they are; the published code updates them"
        ),
    )

    def __init__(self, *, temperature: float = 0.05, smoothing: float = 0.1) -> None:
        super().__init__()
        self.temperature = above(0, "temperature", temperature)
        self.smoothing = between(0, 1, "smoothing", smoothing)

    def head(self, dim: int) -> HeadShape:
        """Return a head on standardised features, without a bias and with dropout."""
        return HeadShape((dim,), layer_norm=True, bias=False, dropout=0.5)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        log_p_NC = (cosines(z, y, self.weights) / self.temperature).log_softmax(1)
        own_N = of_own_class(log_p_NC, y)[:, 0]
        share = self.smoothing / max(log_p_NC.shape[1] - 1, 1)
        smoothed_N = (1 - self.smoothing) * own_N + share * (log_p_NC.sum(1) - own_N)
        return -smoothed_N.sum() / max(len(z), 1)


methods.add(
    Method(
        "proxy_softmax",
        ProxySoftmax,
        batch="classification",
        space=Space(temperature=Real(0.01, 1, log=True), weights_lr=WEIGHTS_LR),
        about="cross-entropy with smoothed labels over cosines to one proxy per class",
    )
)
