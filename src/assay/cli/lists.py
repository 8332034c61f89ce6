"""`assay list`: what there is to choose from."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from assay.cli.show import print_json, print_table

Rows = list[dict[str, Any]]


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    losses = "losses"
    miners = "miners"
    samplers = "samplers"
    trunks = "trunks"
    datasets = "datasets"
    protocols = "protocols"
    metrics = "metrics"


def add_to(app: typer.Typer) -> None:
    """Register the command."""

    @app.command(name="list")
    def list_(
        kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.methods,
        imports: Annotated[
            list[str] | None, typer.Option("--import", metavar="FILE|MODULE", help="Import your own parts first.")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    ) -> None:
        """List methods, losses, miners, samplers, trunks, data sets, protocols or metrics.

        Example: assay list protocols
        """
        from assay.methods import import_parts

        import_parts(imports or ())
        rows = _rows(kind)
        if json:
            print_json(rows)
        else:
            print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


def _rows(kind: Kind) -> Rows:
    own = {"methods": _methods, "datasets": _datasets, "protocols": _protocols, "metrics": _metrics}
    return own.get(kind, lambda: _parts(kind))()


def _methods() -> Rows:
    from assay.methods import methods

    return [
        {
            "name": method.name,
            "year": method.paper.year if method.paper else "",
            "batch": method.batch,
            "miner": method.miner or "",
            "searched": ", ".join(method.space) or "nothing",
            "about": method.about,
        }
        for method in methods.values()
    ]


def _datasets() -> Rows:
    from assay.data import datasets

    def usage(name: str) -> str:
        return f"{name}PATH" if name.endswith(":") else name

    return [{"name": usage(name), "about": _first_line(loader)} for name, loader in datasets.items()]


def _protocols() -> Rows:
    from assay.protocols import protocols

    return [
        {
            "name": name,
            "trunk": protocol.trunk,
            "dim": protocol.dim,
            "folds": protocol.folds,
            "trials": protocol.trials,
            "reproductions": protocol.reproductions,
            "fingerprint": protocol.fingerprint[:16],
        }
        for name, protocol in protocols.items()
    ]


def _metrics() -> Rows:
    """A family's bare name stands for several numbers; any other number can be written in its place."""
    from assay.metrics import metrics
    from assay.metrics.metric import choose

    def numbers(name: str) -> str:
        stem = metrics[name].stem
        return ", ".join(member.label.removeprefix(stem) for member in choose([name])) if metrics[name].values else ""

    return [
        {"name": name, "from": metric.source, "numbers": numbers(name), "about": metric.about} for name, metric in metrics.items()
    ]


def _parts(kind: Kind) -> Rows:
    """Registries whose parts say in their docstring what they are."""
    from assay.methods import losses, miners
    from assay.samplers import samplers
    from assay.trunks import trunks

    registries: dict[str, Any] = {"losses": losses, "miners": miners, "samplers": samplers, "trunks": trunks}
    return [{"name": name, "about": _first_line(part)} for name, part in registries[kind].items()]


def _first_line(part: object) -> str:
    return (part.__doc__ or "").strip().partition("\n")[0]
