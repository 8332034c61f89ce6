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

from assay.cli.show import note
from assay.devices import MOST_WORKERS
from assay.errors import BadInput
from assay.files import check_writable
from assay.progress import say_nothing, silent

if TYPE_CHECKING:
    from assay.cli.progress import LineListener, TableListener
    from assay.data import Dataset
    from assay.progress import Progress, Say
    from assay.protocols import Protocol
    from assay.records.progress import Listener
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


LARGEST_SEED = 2**63 - 1

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
    typer.Option(
        "--workers",
        min=1,
        max=MOST_WORKERS,
        help="Worker processes; by default one for each core or GPU.",
    ),
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
        help="Continue with data that have copies in both halves or conflicting labels, or with"
        " vectors of a model that was trained on the test half.",
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", help="Also print the keys of runs and preregistrations on stderr."),
]
SkipBrokenOption = Annotated[
    bool,
    typer.Option(
        "--skip-broken", help="Leave out images that cannot be read; they are refused otherwise."
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the output where it is there already.")
]
STORE = Path("assay-runs")
INDEX = "index.json"
"""Name of the file by which the folder of an index is told from a store."""

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


def read_data(data: str, skip_broken: bool, progress: "Progress", say: "Say" = note) -> "Dataset":
    """Return the data set, without its broken images where that is asked for; say what was left
    out.
    """
    from assay.data import load, load_without_broken

    dataset = (load_without_broken if skip_broken else load)(data, progress)
    for text in dataset.notes:
        say(text)
    return dataset


def data_or_name(
    data: str, skip_broken: bool, progress: "Progress", say: "Say" = note
) -> "str | Dataset":
    """Return the data set where broken images are to be left out; otherwise its name, to be loaded
    once all that is quicker to check is checked.
    """
    return read_data(data, skip_broken, progress, say) if skip_broken else data


def check_free(option: str, path: Path | None, force: bool, *read: Path | None) -> None:
    """Raise `BadInput` where a file would be overwritten without --force, or one that is read;
    `OSError` where no file can be written.
    """
    if path is None:
        return
    if path.is_dir():
        raise BadInput(f"{option} {path} is a folder; give the path of a file")
    check_writable(path)
    if not path.exists():
        return
    if any(one is not None and one.exists() and one.samefile(path) for one in read):
        raise BadInput(f"{option} {path} is the file that is read; give another name")
    if not force:
        raise BadInput(
            f"{option} {path} is there already; give another name, or replace it with --force"
        )


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
    from assay.protocols.settings import check_given_once

    check_given_once("--set", settings or ())
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
    skip_broken: SkipBrokenOption = False
    verbose: VerboseOption = False
    json: JsonOption = False

    def protocol(self, name: str, more: Sequence[str] = ()) -> "Protocol":
        """Return the protocol of this name with the settings and weights of the options."""
        settings = [*(self.settings or ()), *more]
        return choose_protocol(name, settings, self.imports, self.weights, self.pretrained_on)

    def data(self, name: str, progress: "Progress" = silent) -> "str | Dataset":
        """Return the data set, or its name; the bench itself says what was left out."""
        return data_or_name(name, self.skip_broken, progress, say=say_nothing)

    @contextmanager
    def executing(
        self, listener: "Listener", keep: KeptWeights = KeptWeights.best
    ) -> Iterator["Execution"]:
        """Yield how runs execute; where a task fails for good, report the finished methods."""
        from assay.engines import choose_engine
        from assay.files import cache_folder
        from assay.report.bench import reporting_failure
        from assay.study import Execution

        shared = self.out, cache_folder()
        engine = choose_engine(self.engine.value, self.workers, self.address, self.device, shared)
        imports = tuple(self.imports or ())
        with reporting_failure(self.out):
            yield Execution(engine, self.device, imports, keep.value, listener, self.allow_leaks)

    def watch(self, command: str, data: str) -> "TableListener | LineListener":
        """Return what shows progress on stderr, from before the slow imports on."""
        from assay.cli.progress import watch

        return watch(self.verbose, command, f"reading and hashing {data}")


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
