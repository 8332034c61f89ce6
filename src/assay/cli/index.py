"""`assay index`: an index of images, made, brought up to date, shown, merged and checked."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import (
    Device,
    DeviceOption,
    ImportsOption,
    JsonOption,
    SkipBrokenOption,
    WeightsFileOption,
)
from assay.cli.show import note, print_json, visible
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.index import Manifest, Written
    from assay.space import Value


class PrecisionName(StrEnum):
    """Numbers of a stored vector."""

    float32 = "float32"
    float16 = "float16"


def index(
    out: Annotated[Path, typer.Option(metavar="INDEX", help="The folder of the index.")],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL",
            help="A model folder, a trunk by name (lite0), as_is for vectors; a store with --best.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGES]",
            help="A folder, with all folders in it; kind:path; an .npz of vectors.",
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="MODEL is a run store: take the model of its bench's answer."),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(help="With --best, the data of the bench, where the store has several."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="exact, hnsw, ivfpq, bits or milvus:PLACE; exact by default. See docs/search.md."
        ),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="A setting of the back end."),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(help="Numbers of a stored vector; float16 halves the file."),
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(
            metavar="M.csv", help="A row for each image: its name, then words to filter by."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column with the class of an image; class or folder by default.",
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove images that are not among IMAGES any more.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Embed all images again, for another MODEL too."),
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="ID", help="Remove this image from the index."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder that names are relative to; without IMAGES: where it is now.",
        ),
    ] = None,
    weights: WeightsFileOption = None,
    imports: ImportsOption = None,
    device: DeviceOption = Device.auto,
    skip_broken: SkipBrokenOption = False,
    json: JsonOption = False,
) -> None:
    """Index IMAGES for searching; run it again to add and update.

    Images are known by their content: only new ones are embedded, and an interrupted run continues.
    Without MODEL and IMAGES it shows what is in an index, removes images from it or moves its root.

    Example: assay index lite0 photos --out photos.index
    """
    from assay.cli.progress import follow
    from assay.index import Wanted, update

    if imports:
        from assay.methods import import_parts

        import_parts(imports)
    given = {
        "--best": best,
        "--data": data,
        "--backend": backend,
        "--param": parameters,
        "--precision": precision,
        "--metadata": metadata,
        "--label": label,
        "--prune": prune,
        "--rebuild": rebuild,
        "--weights": weights,
        "--skip-broken": skip_broken,
    }
    if model is None or images is None:
        _without_images(out, model, given, remove, root, json)
        return
    if remove:
        raise BadInput(
            "--remove goes without MODEL and IMAGES: assay index --out INDEX --remove ID"
        )
    if data is not None and not best:
        raise BadInput(f"--data {data} goes with --best; leave it out")
    chosen = _winner(Path(model), data) if best else model
    name, settings = _backend(backend, parameters or ())
    wanted = Wanted(
        backend=name,
        settings=settings,
        precision=None if precision is None else precision.value,
        metadata=metadata,
        label=label,
        root=root,
        prune=prune,
        rebuild=rebuild,
        skip_broken=skip_broken,
        weights_file=weights,
    )
    with follow() as progress:
        found = update(out, chosen, images, wanted, device=device, progress=progress)
    _print_written(out, found, json)


def _without_images(
    out: Path,
    model: str | None,
    given: Mapping[str, Any],
    remove: Sequence[str] | None,
    root: Path | None,
    json: bool,
) -> None:
    """Show an index, remove images from it, or move its root."""
    from assay.cli.progress import follow
    from assay.index import move_root
    from assay.index import remove as take_out

    if model is not None:
        raise BadInput(f"name the images too: assay index {model} IMAGES --out {out}")
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise BadInput(
            f"{', '.join(wrong)}: name the model and the images too: assay index MODEL IMAGES --out"
            f" {out}"
        )
    if remove and root is not None:
        raise BadInput("--remove and --root are two commands; give one after the other")
    with follow() as progress:
        if remove:
            _print_written(out, take_out(out, remove, progress), json)
        elif root is not None:
            _print_written(out, move_root(out, root, progress), json)
        else:
            _show(out, json)


def _winner(store: Path, data: str | None) -> Path:
    """Return the model folder of a store's answer; say which it is and why."""
    from assay.index import find_winner

    found = find_winner(store, data=data)
    note(visible(f"the model taken is that of {found.method}: {found.why}"))
    note(visible(found.note))
    if found.warning:
        note(visible(found.warning))
    return found.model


def _backend(
    backend: str | None, parameters: Sequence[str]
) -> "tuple[str | None, dict[str, Value]]":
    """Return name and settings of a back end; `milvus:PLACE` sets its place."""
    from assay.index import parse_settings

    if backend is None:
        if parameters:
            raise BadInput("--param sets a back end: name it with --backend")
        return None, {}
    name, colon, place = backend.partition(":")
    return name, parse_settings(name, [*parameters, *([f"place={place}"] if colon else [])])


def _print_written(out: Path, found: "Written", json: bool) -> None:
    """Print what was done to an index, and what it is like now."""
    for text in found.notes:
        note(visible(text))
    counts = {
        name: getattr(found, name)
        for name in ("added", "changed", "removed", "described", "unchanged", "gone")
    }
    if json:
        print_json(
            {
                "index": str(out),
                **counts,
                "embedded": found.embedded,
                "resumed": found.resumed,
                "is_new": found.is_new,
                **_facts(found.manifest),
            }
        )
        return
    said = {
        "added": "added",
        "changed": "changed",
        "removed": "removed",
        "described": "with other metadata",
        "unchanged": "unchanged",
    }
    parts = [f"{counts[name]:,} {words}" for name, words in said.items() if counts[name]]
    resumed = f" ({found.resumed:,} of them by an interrupted run)" if found.resumed else ""
    print(f"{', '.join(parts) or 'nothing to do'}{resumed}")
    if found.gone:
        several = "images of the index were" if found.gone > 1 else "image of the index was"
        print(f"{found.gone:,} {several} not among those given; --prune removes what is gone")
    for line in _lines(out, found.manifest):
        print(visible(line))
    if found.manifest.model.takes == "images":
        print(f"next: assay search {out} QUERY.jpg")


def _show(out: Path, json: bool) -> None:
    from assay.index import read_manifest

    manifest = read_manifest(out)
    if json:
        print_json({"index": str(out), **_facts(manifest)})
        return
    for line in _lines(out, manifest):
        print(visible(line))


def _facts(manifest: "Manifest") -> dict[str, Any]:
    quality = manifest.quality
    return {
        "version": manifest.version,
        "images": manifest.count,
        "rows": manifest.rows,
        "root": manifest.root,
        "model": manifest.model.name,
        "print": manifest.model.print,
        "similarity": manifest.similarity,
        "dim": manifest.model.dim,
        "precision": manifest.precision,
        "backend": manifest.backend,
        "settings": manifest.settings,
        "recall_at_10": 1.0 if quality is None else quality.recall_at_10,
        "finds_itself": 1.0 if quality is None else quality.finds_itself,
        "columns": manifest.columns,
        "label": manifest.label,
        "bytes": sum(one.bytes for one in manifest.files.values()),
    }


def _lines(out: Path, manifest: "Manifest") -> list[str]:
    """Return what an index is like, in lines."""
    from assay.cli.show import size

    model, quality = manifest.model, manifest.quality
    settings = ", ".join(f"{name}={value}" for name, value in manifest.settings.items() if value)
    recall = (
        ""
        if manifest.backend == "exact"
        else ", exact"
        if quality is None
        else f", recall@10 {quality.recall_at_10:.3f} of exact search, finds itself"
        f" {quality.finds_itself:.3f} (measured with {quality.queries:,} of its images)"
    )
    bytes_ = size(sum(one.bytes for one in manifest.files.values()))
    return [
        f"{out}: {manifest.count:,} image{'s' * (manifest.count != 1)}, version"
        f" {manifest.version}, {bytes_}",
        f"model: {model.name} ({model.about}), {model.dim} dimensions, {manifest.similarity},"
        f" {manifest.precision}",
        f"back end: {manifest.backend}{f' ({settings})' if settings else ''}{recall}",
        *([f"columns: {', '.join(manifest.columns)}"] if manifest.columns else []),
    ]


def merge_indexes(indexes: Sequence[Path], out: Path, json: bool) -> None:
    """Join indexes of one model into a new one, and print what it holds."""
    from assay.cli.progress import follow
    from assay.index import merge

    with follow() as progress:
        found = merge(indexes, out, progress)
    _print_written(out, found, json)


def check_index(index: Path, json: bool) -> None:
    """Check every byte of an index, and print what is wrong; exit code 1 where anything is."""
    from assay.index import problems_of, read_manifest

    problems, manifest = problems_of(index), read_manifest(index)
    if json:
        print_json({"index": str(index), "images": manifest.count, "problems": problems})
    else:
        for problem in problems:
            print(f"WRONG {visible(problem)}")
        checked = f"{len(manifest.files)} files, {manifest.count:,} images"
        print(f"{visible(str(index))}: {checked}, {len(problems)} wrong")
    if problems:
        raise typer.Exit(1)
