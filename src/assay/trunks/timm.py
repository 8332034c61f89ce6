"""Every model of timm as a trunk, by its name in timm.

Wightman 2019, github.com/huggingface/pytorch-image-models.
"""

import importlib
import itertools
import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from assay.errors import BadInput
from assay.protocols import Pooling
from assay.trunks.downloads import quietly, reachable
from assay.trunks.torchvision import import_torchvision
from assay.trunks.trunk import Photo, WeightsOrigin, channels_last, make_pool

PRETRAINING_DATA = {
    "in1k": "ImageNet-1k", "in12k": "ImageNet-12k", "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k", "mae": "ImageNet-1k", "fcmae": "ImageNet-1k", "dino": "ImageNet-1k",
    "ig1b": "Instagram-1B", "jft": "JFT-300M (Google's, private)", "yfcc15m": "YFCC-15M",
    "yfcc100m": "YFCC-100M", "cc12m": "CC-12M", "sa1b": "SA-1B", "lvd142m": "LVD-142M",
    "lvd1689m": "LVD-1689M", "sat493m": "SAT-493M", "laion400m": "LAION-400M",
    "laion2b": "LAION-2B", "laiona": "LAION-Aesthetic", "openai": "WIT (OpenAI's, private)",
    "webli": "WebLI (Google's, private)", "datacomp1b": "DataComp-1B", "datacompxl": "DataComp-XL",
    "dfn2b": "DFN-2B", "dfn5b": "DFN-5B", "m30m": "Merged-30M", "m38m": "Merged-38M",
    "merged2b": "Merged-2B",
}  # fmt: skip
"""Words of a pretrained tag that name the data."""


class Timm(Photo):
    """A model of timm without its classifier, normalised as its own configuration says.

    The protocol's pooling replaces the mean over a convolutional network's positions. A transformer
    pools in its own way, and takes other sides of images if timm can stretch its positions.
    """

    libraries = ("timm",)

    model: ClassVar[str]
    fixed: ClassVar[bool] = False

    def __init__(self, inputs: int, pooling: Pooling = "avg") -> None:
        super().__init__(inputs, pooling)
        body = _create(self.model)
        self.features = getattr(body, "head_hidden_size", None) or body.num_features
        if getattr(body, "dynamic_img_size", False):
            self.multiple = max(body.patch_embed.patch_size)
        elif self.fixed:
            self.only = self.side
        pool = _global_pool(body)
        if pool is None and pooling != "avg":
            raise BadInput(
                f"--set pooling={pooling}: the trunk {self.name!r} pools in its own way; leave it"
                " at avg"
            )
        if pool is None:
            self.layout, self.body = torch.contiguous_format, body
        else:
            flat = isinstance(pool.flatten, nn.Flatten) or getattr(pool.pool, "flatten", False)
            pool.pool = nn.Sequential(make_pool(pooling), nn.Unflatten(1, (-1, 1, 1)))
            pool.flatten = nn.Flatten(1) if flat else nn.Identity()
            self.body = channels_last(body)

    @classmethod
    def origin(cls) -> WeightsOrigin | None:
        """Return the source of the weights of the name's tag, or of the model's first tag."""
        config = _config(cls.model)
        if not config.has_weights:
            return None
        full = f"{config.architecture}.{config.tag}" if config.tag else str(config.architecture)
        source = f"timm {full}"
        return WeightsOrigin(pretrained_on(config.tag or ""), source, partial(_fetch, full))


def has(name: str) -> bool:
    """Return whether timm has a model, and a pretrained tag, of this name."""
    if not _timm().is_model(name):
        return False
    try:
        return _config(name) is not None
    except RuntimeError:
        return False


def names() -> list[str]:
    """Return every name in timm, with and without tags."""
    return [*_timm().list_models(), *_timm().list_pretrained()]


@cache
def trunk_of(name: str) -> type[Timm]:
    """Return the trunk around timm's model `name`."""
    config = _config(name)
    _, height, side = config.input_size
    if height != side:
        raise BadInput(f"the trunk {name!r} takes images of {height} x {side}; Assay's are square")
    parts = config.classifier or ()
    attributes = {
        "__doc__": f"timm's {name}.",
        "__module__": __name__,
        "name": name,
        "model": name,
        "side": side,
        "smallest": _smallest(name, config),
        "fixed": bool(config.fixed_input_size),
        "mean": tuple(config.mean),
        "std": tuple(config.std),
        "classifier": (parts,) if isinstance(parts, str) else tuple(parts),
    }
    return type("Timm", (Timm,), attributes)


def pretrained_on(tag: str) -> str:
    """Return the data that a pretrained tag names, in order; an unknown tag unchanged.

    >>> pretrained_on("augreg_in21k_ft_in1k")
    'ImageNet-21k, then ImageNet-1k'
    >>> pretrained_on("fb_r896")
    'fb_r896'
    """
    known = [PRETRAINING_DATA[word] for word in tag.split("_") if word in PRETRAINING_DATA]
    return ", then ".join(name for name, _ in itertools.groupby(known)) or tag or "unknown"


def _smallest(name: str, config: Any) -> int:
    side = int(config.input_size[-1])
    if not config.fixed_input_size:
        return min(side, max(config.min_input_size[1:]) if config.min_input_size else 32)
    patch = re.search(r"patch(\d+)", name)
    return int(patch[1]) if patch else side


@cache
def _timm() -> Any:
    import_torchvision()
    with quietly():
        return importlib.import_module("timm")


def _config(name: str) -> Any:
    return _timm().get_pretrained_cfg(name)


def _create(name: str) -> Any:
    """Return the model, with positions that stretch if it can."""
    with quietly():
        try:
            if _config(name).fixed_input_size:
                return _timm().create_model(name, num_classes=0, dynamic_img_size=True)
        except TypeError as error:
            if "dynamic_img_size" not in str(error):
                raise
        return _timm().create_model(name, num_classes=0)


def _global_pool(body: nn.Module) -> Any:
    """Return the module that averages a convolutional network's positions, if there is one."""
    select = importlib.import_module("timm.layers").SelectAdaptivePool2d
    found = [
        module
        for module in body.modules()
        if isinstance(module, select) and module.pool_type in ("avg", "fast", "fastavg")
    ]
    maps = all(getattr(module.pool, "dim", (2, 3)) == (2, 3) for module in found)
    return found[0] if len(found) == 1 and maps else None


def _fetch(name: str) -> Mapping[str, Tensor]:
    """Return weights from the hub or from its cache.

    The hub's client retries for most of a minute. Set to offline, it looks into its cache at once.
    """
    constants = importlib.import_module("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE
    offline = constants.HF_HUB_OFFLINE = before or not reachable(constants.ENDPOINT)
    try:
        with quietly():
            model = _timm().create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub's client has other errors in every major version
        reason = (
            f"{constants.ENDPOINT} cannot be reached" if offline else " ".join(str(error).split())
        )
        raise OSError(reason) from error
    finally:
        constants.HF_HUB_OFFLINE = before
    state: Mapping[str, Tensor] = model.state_dict()
    return state
