"""torchvision's networks, and the function that imports torchvision, also for timm."""

import importlib
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from assay.protocols import Pooling
from assay.trunks.downloads import from_address, quietly
from assay.trunks.trunk import Photo, WeightsOrigin, channels_last, make_pool, trunks

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def import_torchvision() -> ModuleType:
    """Return torchvision, whichever build is installed.

    A build for another torch (CUDA beside a CPU-only torch) cannot load its compiled operators, and
    its import fails because two of them are missing. No network here uses them, so declaring them
    is enough.
    """
    with quietly():
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _OPERATORS:
            library.define(schema)
        _kept.append(library)
        return importlib.import_module("torchvision")


_kept: list[torch.library.Library] = []
"""Declarations last only as long as the object that made them."""


class Torchvision(Photo):
    """A network of torchvision without its classifier, with the weights that were published first.

    The papers used those weights.
    """

    libraries = ("torchvision",)

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        body = getattr(import_torchvision().models, self.name)(weights=None, **self.options)
        self.features = body.fc.in_features
        body.avgpool, body.fc = make_pool(pooling), nn.Identity()
        self.body = channels_last(body)

    @classmethod
    def origin(cls) -> WeightsOrigin:
        """Return the source of IMAGENET1K_V1."""
        address = str(import_torchvision().models.get_model_weights(cls.name)["IMAGENET1K_V1"].url)
        file = address.rpartition("/")[2]

        def fetch() -> Mapping[str, Tensor]:
            return from_address(address, sha256=file.removesuffix(".pth").rpartition("-")[2])

        return WeightsOrigin("ImageNet-1k", file, fetch)


@trunks("resnet18")
class ResNet18(Torchvision):
    """Residual network of 18 layers (He et al. 2016, arxiv.org/abs/1512.03385), torchvision's."""

    name = "resnet18"
    classifier = ("fc",)


@trunks("resnet50")
class ResNet50(Torchvision):
    """Residual network of 50 layers (He et al. 2016, arxiv.org/abs/1512.03385), torchvision's."""

    name = "resnet50"
    classifier = ("fc",)


@trunks("googlenet")
class GoogLeNet(Torchvision):
    """Inception, the first (Szegedy et al. 2015, arxiv.org/abs/1409.4842), torchvision's, without
    auxiliary classifiers.

    Its weights come from TensorFlow and expect 2x - 1, which torchvision computes from an input
    normalised as for ImageNet. There is no dropout before the features.
    """

    name = "googlenet"
    mean = std = (0.5, 0.5, 0.5)
    classifier = ("fc", "aux1", "aux2")
    options: ClassVar[dict[str, Any]] = {
        "aux_logits": False,
        "init_weights": False,
        "transform_input": False,
    }

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        self.body.dropout = nn.Identity()
