"""`assay list`: the names that can be chosen from."""

import textwrap
from enum import StrEnum
from typing import Annotated, Any

import typer

from assay.cli.options import ImportsOption, JsonOption
from assay.cli.show import print_json, print_table
from assay.registry import first_paragraph

WIDTH, NARROW = 100, 24
"""Columns of a terminal that lists fit into, and the least that wrapped text gets, however much
stands beside it.
"""

PROTOCOL_COLUMNS = "name", "about", "trials", "reproductions", "runs"
"""Columns of `assay list protocols`: trials and reproductions of one search, and all runs of a
searched method.
"""


class Listed(StrEnum):
    """What can be listed."""

    methods = "methods"
    losses = "losses"
    miners = "miners"
    samplers = "samplers"
    trunks = "trunks"
    datasets = "datasets"
    protocols = "protocols"
    metrics = "metrics"
    backends = "backends"


def list_(
    kind: Annotated[Listed, typer.Argument(help="What to list.")] = Listed.methods,
    imports: ImportsOption = None,
    json: JsonOption = False,
) -> None:
    """List methods, losses, miners, samplers, trunks, data sets, protocols, metrics or back ends.

    Example: assay list protocols
    """
    from assay.methods import import_parts

    import_parts(imports or ())
    rows = _rows(kind)
    if json:
        print_json(rows)
    elif kind == Listed.methods:
        _print_methods([_short(row) for row in rows])
    elif kind == Listed.samplers:
        _print_wrapped([_short_sampler(row) for row in rows])
    elif kind == Listed.protocols:
        _print_wrapped([{column: row[column] for column in PROTOCOL_COLUMNS} for row in rows])
        _print_waiting(rows)
    else:
        _print_wrapped(rows)


# --- printing -------------------------------------------------------------------------------------


def _print_waiting(protocols: list[dict[str, Any]]) -> None:
    """Print the methods that settings of a protocol wait for."""
    waiting: dict[tuple[str, ...], list[str]] = {}
    for row in protocols:
        if row["waits_for"]:
            waiting.setdefault(tuple(row["waits_for"]), []).append(row["name"])
    for methods, names in waiting.items():
        text = (
            f"{', '.join(names)}: settings for {', '.join(methods)} wait for these methods, which"
            " Assay does not have yet"
        )
        print(f"\n{textwrap.fill(text, WIDTH)}")


def _print_wrapped(rows: list[dict[str, Any]]) -> None:
    """Print a table, `about` in as many lines as keep the table within the terminal."""
    texts = [{column: str(value) for column, value in row.items()} for row in rows]
    room = WIDTH - sum(3 + _width(column, texts) for column in texts[0] if column != "about")
    for text in texts:
        if "about" in text:
            text["about"] = textwrap.fill(text["about"], max(room, NARROW))
    print_table(list(texts[0]), [list(text.values()) for text in texts])


def _width(column: str, rows: list[dict[str, str]]) -> int:
    return max(len(column), *(len(row[column]) for row in rows))


def _print_methods(rows: list[dict[str, str]]) -> None:
    """Print two or three lines for each method, as no terminal is wide enough for one."""
    *columns, last = [column for column in rows[0] if column != "about"]
    widths = [_width(column, rows) for column in columns]
    indent = sum(widths) + 2 * len(widths)

    def lines(row: dict[str, str]) -> list[str]:
        first, *more = textwrap.wrap(row[last], max(WIDTH - indent, NARROW))
        cells = [row[column].ljust(width) for column, width in zip(columns, widths, strict=True)]
        return ["  ".join([*cells, first]), *(" " * indent + line for line in more)]

    print(*lines({column: column for column in rows[0]}), "-" * WIDTH, sep="\n")
    for row in rows:
        about = textwrap.wrap(row["about"], WIDTH, initial_indent="    ", subsequent_indent="    ")
        print(*lines(row), *about, sep="\n")


def _short(method: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a method that are printed."""
    return {
        "name": method["name"],
        "year": str(method["paper"]["year"]) if method["paper"] else "",
        "batch": method["batch"] or "",
        "miner": method["miner"]["name"] if method["miner"] else "",
        "searched": ", ".join(method["space"]) or "nothing",
        "about": method["about"],
    }


def _short_sampler(sampler: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a sampler that are printed."""
    paper = sampler["paper"] or {"year": "", "url": ""}
    return {
        "name": sampler["name"],
        "year": str(paper["year"]),
        "paper": paper["url"],
        "bank": sampler["bank"] or "",
        "about": sampler["about"],
    }


# --- rows -----------------------------------------------------------------------------------------


def _rows(kind: Listed) -> list[dict[str, Any]]:
    """Return a row for each name of this kind."""
    own = {
        "methods": _methods,
        "samplers": _samplers,
        "datasets": _datasets,
        "protocols": _protocols,
        "metrics": _metrics,
        "backends": _backends,
    }
    return own.get(kind, lambda: _parts(kind))()


def _methods() -> list[dict[str, Any]]:
    from assay.methods import describe, methods_by_year

    return [describe(method) for method in methods_by_year()]


def _samplers() -> list[dict[str, Any]]:
    from assay.methods.describe import describe_sampler
    from assay.samplers import samplers

    return [describe_sampler(name) for name in sorted(samplers)]


def _datasets() -> list[dict[str, Any]]:
    from assay.data import datasets

    return [
        {"name": name + "PATH" * name.endswith(":"), "about": first_paragraph(loader.__doc__)}
        for name, loader in datasets.items()
    ]


def _protocols() -> list[dict[str, Any]]:
    """Return a row per protocol; `runs` are those of a method that has something to search."""
    from assay.methods import methods
    from assay.protocols import protocols

    return [
        {
            "name": name,
            "about": protocol.about,
            "searches": protocol.searches,
            "trials": protocol.trials,
            "reproductions": protocol.reproductions,
            "runs": protocol.searches
            * (
                protocol.trials * protocol.folds_of_a_trial
                + protocol.reproductions * protocol.folds
            ),
            "trunk": protocol.trunk,
            "dim": protocol.dim,
            "folds": protocol.folds,
            "fingerprint": protocol.fingerprint,
            "departures": list(protocol.departures),
            "waits_for": [method for method in protocol.exceptions if method not in methods],
        }
        for name, protocol in protocols.items()
    ]


def _metrics() -> list[dict[str, Any]]:
    """Return a row per metric; `numbers` are those that the bare name of a family stands for."""
    from assay.metric_names import NAMES
    from assay.metrics import metrics

    ordered = {name: metrics[name] for name in (*NAMES, *metrics)}
    return [
        {
            "name": name,
            "from": metric.source,
            "numbers": ", ".join(
                metric.label(value).removeprefix(metric.stem) for value in metric.values
            ),
            "about": metric.about,
        }
        for name, metric in ordered.items()
    ]


def _backends() -> list[dict[str, Any]]:
    """Return a row for each back end of an index, with its settings and their defaults."""
    from dataclasses import fields

    from assay.index import backends

    return [
        {
            "name": name,
            "similarity": ", ".join(backend.similarities),
            "settings": ", ".join(
                f"{one.name}={one.default}"
                for one in fields(backend)  # type: ignore[arg-type]
                if one.init
            ),
            "about": first_paragraph(backend.__doc__),
        }
        for name, backend in sorted(backends.items())
    ]


def _parts(kind: Listed) -> list[dict[str, Any]]:
    """Return a row for each part of a registry, described by the part's docstring."""
    from assay.methods import losses, miners
    from assay.trunks import trunks

    registries: dict[str, Any] = {
        "losses": losses,
        "miners": miners,
        "trunks": trunks,
    }
    return [
        {"name": name, "about": first_paragraph(part.__doc__)}
        for name, part in sorted(registries[kind].items())
    ]
