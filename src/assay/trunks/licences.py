"""Licences of the trunks' own pretrained weights, as far as their publishers state them."""

import importlib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from assay.files import read_text
from assay.trunks.lite0 import PACKAGE
from assay.trunks.timm import Timm
from assay.trunks.torchvision import import_torchvision
from assay.trunks.trunk import find
from assay.trunks.weights import LITE0


def licence_of(trunk: str) -> str:
    """Return the licence of a trunk's own weights and who says so; `unknown` and where to look.

    >>> licence_of("resnet50.a1_in1k")
    "apache-2.0, as timm's configuration of resnet50.a1_in1k says"
    """
    if trunk == LITE0:
        return _of_package()
    kind = find(trunk)
    if issubclass(kind, Timm):
        import_torchvision()
        found = importlib.import_module("timm").get_pretrained_cfg(kind.model).license
        if found and found != "unknown":
            return f"{found}, as timm's configuration of {trunk} says"
    origin = kind.origin()
    return "unknown" if origin is None else f"unknown: see the publisher of {origin.source}"


def _of_package() -> str:
    """Return the first line of the licence that the package with weights of lite0 has."""
    try:
        licences = [one for one in files(PACKAGE) or () if one.name == "LICENSE"]
    except PackageNotFoundError:
        return f"unknown: the package {PACKAGE}, which has their licence, is not installed"
    if not licences:
        return f"unknown: see the publisher of the package {PACKAGE}"
    text = read_text(Path(str(licences[0].locate())))
    return f"{text.strip().splitlines()[0]}, as the package {PACKAGE} says"
