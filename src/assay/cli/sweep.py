"""`assay sweep`: chosen parameters over the values of one field of the protocol."""

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.options import (
    STORE,
    Address,
    AllowLeaks,
    Data,
    Device,
    DeviceName,
    EngineName,
    EngineOption,
    Imports,
    Json,
    KeptWeights,
    Methods,
    Out,
    PretrainedOn,
    ProtocolName,
    Settings,
    Weights,
    Workers,
    carrying_out,
    choose_protocol,
    split_names,
)
from assay.cli.show import print_json, print_table


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(sweep)


def sweep(
    vary: Annotated[
        str,
        typer.Option(
            metavar="FIELD=VALUE,...", help="A field of the protocol and the values to give it."
        ),
    ],
    data: Data = "glyphs",
    methods: Methods = "contrastive,triplet,multi_similarity,normalized_softmax",
    protocol: ProtocolName = "quick",
    out: Out = STORE,
    imports: Imports = None,
    settings: Settings = None,
    weights: Weights = None,
    pretrained_on: PretrainedOn = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    workers: Workers = None,
    device: DeviceName = Device.auto,
    allow_leaks: AllowLeaks = False,
    json: Json = False,
) -> None:
    """How scores change with one field of the protocol: dim, batch, trunk, sampler, frozen,
    optimiser.weight_decay, augment.flip.

    Parameters are searched once, under the protocol as it is (a bench that the store has is not run
    again); then each METHOD is reproduced and tested at every value with them.

    Example: assay sweep --data glyphs --methods contrastive,triplet --vary dim=16,32,64,128
    """
    from assay.records.store import Store
    from assay.report import write_report
    from assay.study import run_sweep

    chosen = choose_protocol(protocol, settings, weights, pretrained_on, imports)
    with carrying_out(
        out, engine, address, workers, device, imports, KeptWeights.best, allow_leaks
    ) as execution:
        swept = run_sweep(data, split_names(methods), chosen, vary, out, execution)
    _print_result(out, swept.studies, write_report(Store(out)), json)


def _print_result(out: Path, studies: tuple[str, ...], page: Path, json: bool) -> None:
    from assay.records.store import Store
    from assay.tables import headings, sweep_table, sweeps

    ours = [
        one for one in sweeps(Store(out)) if any(record.key in studies for record in one.records)
    ]
    tables = [sweep_table(one) for one in ours]
    if json:
        print_json(
            {
                "out": str(out),
                "report": str(page),
                "sweeps": [{table.name: table.raw} for table in tables],
            }
        )
        return
    for table in tables:
        print_table(
            headings(table), table.rows, title=table.title, right=range(1, len(table.columns))
        )
    print(f"report: {page}")
