"""`assay bench`, `sweep` and `reproduce`: methods compared under one protocol."""

from typing import Annotated

import typer

from assay.cli.options import (
    METHODS,
    BenchOptions,
    DataOption,
    EngineName,
    KeepWeightsOption,
    KeptWeights,
    MethodsOption,
    NewStudyOption,
    ProtocolOption,
    split_names,
    with_bench_options,
)
from assay.cli.show import print_plan, print_result, print_sweep


@with_bench_options
def bench(
    data: DataOption = "glyphs",
    methods: MethodsOption = METHODS,
    protocol: ProtocolOption = "quick",
    jpeg: Annotated[
        bool,
        typer.Option(
            "--jpeg", help="Keep prepared images as JPEG of quality 95: a fifth of the disk."
        ),
    ] = False,
    keep_weights: KeepWeightsOption = KeptWeights.best,
    new_study: NewStudyOption = False,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="METHOD",
            help="Add a twin of a method, with other seeds: an A/A control.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="METHOD",
            help=(
                "Compare every method with this method only; above ten methods the default is"
                " contrastive, or the first."
            ),
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print how many runs, how long and how much disk; run nothing."
        ),
    ] = False,
    *,
    options: BenchOptions,
) -> None:
    """Compare METHODS on DATA under one protocol, and write a report.

    After any interruption, run the same command again (without --new-study): it continues.

    Example: assay bench --data folder:birds --methods contrastive,triplet
    """
    settings = ["form=jpeg"] if jpeg else []
    if dry_run:
        with options.watch("bench", data) as listener:
            from assay.engines import choose_engine
            from assay.study import plan_bench

            chosen = options.protocol(protocol, settings)
            # the size of a Ray cluster is not known before it is there
            engine = "local" if options.engine == EngineName.ray else options.engine.value
            plan = plan_bench(
                options.data(data, listener.progress),
                split_names(methods),
                chosen,
                imports=options.imports or (),
                workers=choose_engine(engine, options.workers, device=options.device).workers,
                device=options.device,
                allow_leaks=options.allow_leaks,
                control=control,
                reference=reference,
                out=options.out,
                new_study=new_study,
                progress=listener.progress,
            )
        print_plan(plan, options.json)
        return
    with options.watch("bench", data) as listener:
        from assay.records.store import Store
        from assay.report import write_report
        from assay.study import run_bench

        chosen = options.protocol(protocol, settings)
        with options.executing(listener, keep_weights) as execution:
            done = run_bench(
                options.data(data, listener.progress),
                split_names(methods),
                chosen,
                options.out,
                execution,
                new_study=new_study,
                control=control,
                reference=reference,
            )
    print_result(options.out, done.studies, write_report(Store(options.out)), options.json)


@with_bench_options
def sweep(
    vary: Annotated[
        str,
        typer.Option(
            metavar="FIELD=VALUE,...", help="A field of the protocol and the values to give it."
        ),
    ],
    data: DataOption = "glyphs",
    methods: MethodsOption = METHODS,
    protocol: ProtocolOption = "quick",
    *,
    options: BenchOptions,
) -> None:
    """Show how scores change with one field of the protocol.

    The field may be dim, batch, trunk, sampler, frozen, optimiser.weight_decay, augment.flip or any
    other. Parameters are searched once, under the protocol as it is (a bench that the store has is
    not run again); then each METHOD is reproduced and tested with them at every value.

    Example: assay sweep --methods contrastive,triplet --vary dim=16,32,64
    """
    with options.watch("sweep", data) as listener:
        from assay.records.store import Store
        from assay.report import write_report
        from assay.study import run_sweep

        chosen = options.protocol(protocol)
        with options.executing(listener) as execution:
            found = options.data(data, listener.progress)
            done = run_sweep(found, split_names(methods), chosen, vary, options.out, execution)
    page = write_report(Store(options.out))
    print_sweep(options.out, (*done.bases, *done.studies), page, options.json)


@with_bench_options
def reproduce(
    data: DataOption,
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
                "reality-check/cub, /cars, /sop or /cub-256, version 1: whose published"
                " parameters and scores."
            )
        ),
    ] = "reality-check/cub.v1",
    new_study: NewStudyOption = False,
    *,
    options: BenchOptions,
) -> None:
    """Run the best parameters of the reality check, and compare with its published scores.

    Nothing is searched: each method is reproduced and tested with the published parameters; a
    parameter that was not published has its default. Give the public BN-Inception weights with
    --weights.

    Example: assay reproduce --data cub:CUB_200_2011 --weights bn_inception.pth
    """
    with options.watch("reproduce", data) as listener:
        from assay.records.store import Store
        from assay.report import write_report
        from assay.study import as_published, data_of, methods_published, run_published

        chosen = options.protocol(as_published(protocol))
        published = methods_published(data_of(chosen.name))
        names = published if methods == "all" else split_names(methods)
        with options.executing(listener) as execution:
            found = options.data(data, listener.progress)
            done = run_published(found, names, chosen, options.out, execution, new_study=new_study)
    print_result(options.out, done.studies, write_report(Store(options.out)), options.json)
