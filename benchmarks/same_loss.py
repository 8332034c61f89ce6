"""One loss under two names, searched in one space: what a fair verdict must not call different.

python benchmarks/same_loss.py
assay bench --data features:omniglot.npz --import benchmarks/same_loss.py \
    --methods normalized_softmax_one_space,proxy_nca_one_space

Proxy-NCA, with all proxies in the denominator, is a softmax over -k |x - w_c|^2. On unit vectors |x
- w|^2 = 2 - 2 x.w, and the 2 is the same for every class, so it is a softmax over 2 k x.w_c:
  normalised softmax with the temperature T = 1 / (2 k). The
reality check searched T in one space and k in another, and reports two methods.

Imported, the file registers both losses with the parameter `temperature`, in the space and with the
defaults of `normalized_softmax`: the same function of the same parameters, computed by two losses.
Run as a program, it prints by how much values and gradients of the two differ.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from assay.losses.normalized_softmax import NormalizedSoftmax
from assay.losses.proxy_nca import ProxyNCA
from assay.methods import Loss, Method, losses, methods

SPACE = methods["normalized_softmax"].space


@losses("proxy_nca_by_temperature")
class ProxyNCAByTemperature(ProxyNCA):
    """Proxy-NCA with its scale given as a temperature: k = 1 / (2 T).

    Args:
        temperature: sharpness of the softmax (T).
    """

    def __init__(self, *, temperature: float = 0.05) -> None:
        super().__init__(scale=1 / (2 * temperature))


methods.add(
    Method(
        "normalized_softmax_one_space",
        NormalizedSoftmax,
        batch="classification",
        space=SPACE,
        about="normalised softmax, beside proxy_nca_one_space",
    ),
    Method(
        "proxy_nca_one_space",
        ProxyNCAByTemperature,
        batch="classification",
        space=SPACE,
        about="proxy-NCA in the space of normalised softmax: the same loss",
    ),
)


def value_and_gradients(loss: Loss, z: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
    """Return the value, and its gradients by embeddings and by class weights."""
    loss.setup(weights.shape[1], len(weights))
    loss.weights = torch.nn.Parameter(weights.clone())
    leaf = z.clone().requires_grad_()
    value = loss(leaf, y)
    return [value.detach(), *torch.autograd.grad(value, [leaf, loss.weights])]


def differences(dtype: torch.dtype, count: int = 100) -> Iterator[float]:
    """Return how far the two losses are apart on random batches, relative to the largest entry, for
    temperatures 0.01 to 100.
    """
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        temperature = 10 ** (-2 + 4 * number / (count - 1))
        z, weights = (torch.randn(rows, 16, generator=draw, dtype=dtype) for rows in (32, 50))
        y = torch.randint(0, 50, (32,), generator=draw)
        both = (
            NormalizedSoftmax(temperature=temperature),
            ProxyNCAByTemperature(temperature=temperature),
        )
        found = zip(*(value_and_gradients(loss, z, y, weights) for loss in both), strict=True)
        yield from (((a - b).abs().max() / a.abs().max()).item() for a, b in found)


def main() -> None:
    for dtype in (torch.float32, torch.float64):
        print(
            f"{dtype}: values and gradients differ by at most {max(differences(dtype)):.1e} of the"
            " largest entry"
        )


if __name__ == "__main__":
    main()
