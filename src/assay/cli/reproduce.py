"""`assay reproduce`: the reality check's own parameters, run again."""

from typing import Annotated

import typer

from assay.cli.bench import print_result
from assay.cli.options import (
    STORE,
    Address,
    AllowLeaks,
    Data,
    Device,
    DeviceName,
    EngineName,
    EngineOption,
    Json,
    KeptWeights,
    NewStudy,
    Out,
    PretrainedOn,
    Settings,
    Weights,
    Workers,
    carrying_out,
    choose_protocol,
    split_names,
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(reproduce)


def reproduce(
    data: Data,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated names of methods with published parameters, or 'all' of them."
        ),
    ] = "all",
    protocol: Annotated[
        str,
        typer.Option(
            help=(
                "reality-check/cub, /cars or /sop, version 1: whose published parameters and"
                " scores."
            )
        ),
    ] = "reality-check/cub.v1",
    out: Out = STORE,
    settings: Settings = None,
    weights: Weights = None,
    pretrained_on: PretrainedOn = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    workers: Workers = None,
    device: DeviceName = Device.auto,
    new_study: NewStudy = False,
    allow_leaks: AllowLeaks = False,
    json: Json = False,
) -> None:
    """Run the best parameters that the reality check published, and say whether its scores come
    out.

    Nothing is searched: each method is reproduced and tested with the published parameters, a
    missing one at its default. Give the public BN-Inception weights with --weights.

    Example: assay reproduce --data cub:/data/CUB_200_2011 --weights bn_inception-52deb4733.pth
    --pretrained-on ImageNet
    """
    from assay.records.store import Store
    from assay.report import write_report
    from assay.study import as_published, data_of, methods_published, run_published

    chosen = choose_protocol(as_published(protocol), settings, weights, pretrained_on, None)
    names = methods_published(data_of(chosen.name)) if methods == "all" else split_names(methods)
    with carrying_out(
        out, engine, address, workers, device, None, KeptWeights.best, allow_leaks
    ) as execution:
        done = run_published(data, names, chosen, out, execution, new_study=new_study)
    print_result(out, done.studies, write_report(Store(out)), json)
