"""Options that several commands have in common."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
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


DataOption = Annotated[
    str, typer.Option("--data", help="A name or kind:path, see `assay list datasets`.")
]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="A name of `assay list protocols`.")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the protocol, which gives it another name.",
    ),
]
ImportsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE|MODULE",
        help="Import your own methods, losses, miners, samplers, trunks or data sets first.",
    ),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Device to compute on.")]
MethodsOption = Annotated[
    str, typer.Option("--methods", help="Comma-separated names of `assay list methods`, or 'all'.")
]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The run store; an existing one is continued.")
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Where runs execute: processes here, a Ray cluster, or this process (to debug).",
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Address of a running Ray cluster, or 'auto'; else one starts on this machine.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Worker processes; by default one for each core or GPU."),
]
KeepWeightsOption = Annotated[
    KeptWeights,
    typer.Option(
        "--keep-weights",
        help="'all' keeps every checkpoint and, after the test, reports the price of peeking.",
    ),
]
NewStudyOption = Annotated[
    bool,
    typer.Option(
        "--new-study",
        help="Start new studies beside those in the store, as after a changed search space.",
    ),
]
AllowLeaksOption = Annotated[
    bool,
    typer.Option(
        "--allow-leaks",
        help="Continue with data that have copies in both halves, or conflicting labels.",
    ),
]
STORE = Path("assay-runs")
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE|none",
        help="Weights of the trunk: a file (.pth, .safetensors), or random ones.",
    ),
]
WeightsFileOption = Annotated[
    str | None,
    typer.Option(
        "--weights", metavar="FILE", help="Weights of the one trunk named, instead of its own."
    ),
]
PretrainedOnOption = Annotated[
    str | None,
    typer.Option(
        "--pretrained-on",
        metavar="TEXT",
        help="Data that the weights of the file were trained on, for the report.",
    ),
]


METHODS = "contrastive,triplet,multi_similarity,normalized_softmax"
"""Methods that are compared where none are named, as by `assay.bench`."""


def split_names(names: str) -> list[str]:
    """Return comma-separated names as a list.

    >>> split_names("triplet, margin")
    ['triplet', 'margin']
    """
    return [name.strip() for name in names.split(",") if name.strip()]


def choose_protocol(
    name: str,
    settings: Sequence[str] | None,
    imports: Sequence[str] | None,
    weights: str | None = None,
    pretrained_on: str | None = None,
) -> "Protocol":
    """Import the user's own parts; return the protocol of this name with settings and weights."""
    from assay.methods import import_parts
    from assay.protocols import customise, protocols

    import_parts(imports or ())
    chosen = customise(protocols[name], settings or ())
    if pretrained_on is not None and weights in (None, "none", "pretrained"):
        raise BadInput(
            f"--pretrained-on {pretrained_on!r} says what the weights of a file were trained on;"
            " give the file with --weights"
        )
    if weights is None:
        return chosen
    from assay.trunks import with_weights

    return with_weights(chosen, weights, pretrained_on)


@dataclass(frozen=True)
class BenchOptions:
    """The options that bench, sweep and reproduce share: the protocol's changes, where runs are
    kept, and how they are executed.
    """

    settings: SettingsOption = None
    weights: WeightsOption = None
    pretrained_on: PretrainedOnOption = None
    imports: ImportsOption = None
    out: OutOption = STORE
    engine: EngineOption = EngineName.local
    address: AddressOption = None
    workers: WorkersOption = None
    device: DeviceOption = Device.auto
    allow_leaks: AllowLeaksOption = False
    json: JsonOption = False

    def protocol(self, name: str, more: Sequence[str] = ()) -> "Protocol":
        """Return the protocol of this name with the settings and weights of the options."""
        settings = [*(self.settings or ()), *more]
        return choose_protocol(name, settings, self.imports, self.weights, self.pretrained_on)

    @contextmanager
    def executing(self, keep: KeptWeights = KeptWeights.best) -> Iterator["Execution"]:
        """Show progress on stderr; where a task fails for good, report the finished methods."""
        from assay.cli.progress import watch
        from assay.engines import choose_engine
        from assay.files import cache_folder
        from assay.report.bench import reporting_failure
        from assay.study import Execution

        shared = self.out, cache_folder()
        engine = choose_engine(self.engine.value, self.workers, self.address, self.device, shared)
        imports = tuple(self.imports or ())
        with watch() as listener, reporting_failure(self.out):
            yield Execution(engine, self.device, imports, keep.value, listener, self.allow_leaks)


def with_bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `BenchOptions` as options; it gets them as `options`."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "options"
    ]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for field in fields(BenchOptions)
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        options = BenchOptions(
            **{field.name: given.pop(field.name) for field in fields(BenchOptions)}
        )
        command(**given, options=options)

    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *shared)}
    return run
