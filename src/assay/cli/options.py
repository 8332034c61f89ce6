"""Options that several commands have in common."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.protocols import Protocol
    from assay.study import Execution


class EngineName(StrEnum):
    """Where runs execute."""

    local = "local"
    ray = "ray"
    inline = "inline"


class KeptWeights(StrEnum):
    """Which weights stay in the store."""

    best = "best"
    all = "all"


class Device(StrEnum):
    """What runs compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Data = Annotated[
    str, typer.Option("--data", help="A name or kind:path, see `assay list datasets`.")
]
ProtocolName = Annotated[str, typer.Option("--protocol", help="A name of `assay list protocols`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the protocol, which gives it another name.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE|MODULE",
        help="Import your own methods, data sets and trunks first.",
    ),
]
DeviceName = Annotated[Device, typer.Option("--device", help="What to compute on.")]
Methods = Annotated[
    str, typer.Option("--methods", help="Comma-separated names of `assay list methods`, or 'all'.")
]
Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The run store; an existing one is continued.")
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Where runs execute: processes here, a Ray cluster, or this process (to debug).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of a running Ray cluster, or 'auto'; else one begins on this machine.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Processes at work; one for each core or GPU by default."
    ),
]
KeepWeights = Annotated[
    KeptWeights,
    typer.Option(
        "--keep-weights",
        help="'all' keeps every checkpoint and, after the test, tells the price of peeking.",
    ),
]
NewStudy = Annotated[
    bool,
    typer.Option(
        "--new-study",
        help="Begin afresh beside what the store has, after a search space has changed, say.",
    ),
]
AllowLeaks = Annotated[
    bool,
    typer.Option(
        "--allow-leaks",
        help="Go on with data that have copies in both halves, or conflicting labels.",
    ),
]
STORE = Path("assay-runs")
Json = Annotated[bool, typer.Option("--json", help="The result for programs.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE|none",
        help="Weights of the trunk: a file (.pth, .safetensors), or random ones.",
    ),
]
WeightsFile = Annotated[
    str | None,
    typer.Option(
        "--weights", metavar="FILE", help="Weights of the one trunk named, where not its own."
    ),
]
PretrainedOn = Annotated[
    str | None,
    typer.Option(
        "--pretrained-on",
        metavar="TEXT",
        help="What the file's weights were trained on, for the report.",
    ),
]


def choose_weights(protocol: Any, weights: str | None, pretrained_on: str | None) -> Any:
    """The protocol with the weights that were named, if any."""
    if pretrained_on is not None and weights in (None, "none", "pretrained"):
        raise BadInput(
            f"--pretrained-on {pretrained_on!r} says what a file was trained on; give the file with"
            " --weights"
        )
    if weights is None:
        return protocol
    from assay.trunks import with_weights

    return with_weights(protocol, weights, pretrained_on)


def choose_protocol(
    name: str,
    settings: Sequence[str] | None,
    weights: str | None,
    pretrained_on: str | None,
    imports: Sequence[str] | None,
) -> "Protocol":
    """The protocol of this name with settings and weights, after the user's own parts have been
    imported.
    """
    from assay.methods import import_parts
    from assay.protocols import customise, protocols

    import_parts(imports or ())
    chosen: Protocol = choose_weights(
        customise(protocols[name], settings or ()), weights, pretrained_on
    )
    return chosen


@contextmanager
def carrying_out(
    out: Path,
    engine: EngineName,
    address: str | None,
    workers: int | None,
    device: str,
    imports: Sequence[str] | None,
    keep: KeptWeights,
    allow_leaks: bool,
) -> Iterator["Execution"]:
    """How to carry a bench out, its progress on stderr; where a task fails for good, what came
    through is reported.
    """
    from assay.cli.progress import watch
    from assay.engines import choose_engine
    from assay.files import cache_folder
    from assay.report.bench import reporting_failure
    from assay.study import Execution

    chosen = choose_engine(engine.value, workers, address, device, (out, cache_folder()))
    with watch() as listener, reporting_failure(out):
        yield Execution(
            chosen,
            device,
            tuple(imports or ()),
            keep.value,
            listener,
            allow_leaks,
        )


def split_names(methods: str) -> list[str]:
    """Comma-separated names.

    >>> split_names("triplet, margin")
    ['triplet', 'margin']
    """
    return [name.strip() for name in methods.split(",") if name.strip()]
