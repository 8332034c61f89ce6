"""Options that several commands have in common."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from assay.errors import BadInput


class Device(StrEnum):
    """What runs compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Data = Annotated[str, typer.Option("--data", help="A name or kind:path, see `assay list datasets`.")]
ProtocolName = Annotated[str, typer.Option("--protocol", help="A name of `assay list protocols`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the protocol, which gives it another name."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE|MODULE", help="Import your own methods, data sets and trunks first."),
]
DeviceName = Annotated[Device, typer.Option("--device", help="What to compute on.")]
Json = Annotated[bool, typer.Option("--json", help="The result for programs.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="FILE|none", help="Weights of the trunk: a file (.pth, .safetensors), or random ones."),
]
WeightsFile = Annotated[
    str | None, typer.Option("--weights", metavar="FILE", help="Weights of the one trunk named, where not its own.")
]
PretrainedOn = Annotated[
    str | None, typer.Option("--pretrained-on", metavar="TEXT", help="What the file's weights were trained on, for the report.")
]


def choose_weights(protocol: Any, weights: str | None, pretrained_on: str | None) -> Any:
    """The protocol with the weights that were named, if any."""
    if pretrained_on is not None and weights in (None, "none", "pretrained"):
        raise BadInput(f"--pretrained-on {pretrained_on!r} says what a file was trained on; give the file with --weights")
    if weights is None:
        return protocol
    from assay.model import with_weights

    return with_weights(protocol, weights, pretrained_on)
