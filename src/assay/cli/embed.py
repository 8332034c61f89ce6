"""`assay embed`: vectors of images by a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import Device, DeviceName, Imports, WeightsFile
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.data import Dataset
    from assay.progress import Progress


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(embed)


def embed(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model folder, or a pretrained trunk: lite0, any name of timm's.",
        ),
    ],
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="A folder of class folders, a folder or file of images, or kind:path.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="F.npz", help="Where the vectors go.")],
    weights: WeightsFile = None,
    imports: Imports = None,
    device: DeviceName = Device.auto,
) -> None:
    """Write embeddings of IMAGES by MODEL, as an .npz with z, ids, and where there are classes y
    and classes.

    Official splits and roles are kept in it, so that `assay bench --data features:F.npz` splits as
    the images would be.

    Example: assay embed lite0 birds --out birds.npz
    """
    from assay.cli.progress import follow
    from assay.data.arrays import pack_arrays
    from assay.data.sources.features import label_arrays
    from assay.embedding import check_kind, load
    from assay.files import write_atomically
    from assay.methods import import_parts
    from assay.protocols import kind_of
    from assay.trunks import find

    import_parts(imports or ())
    if out.suffix != ".npz" or not out.parent.is_dir() or out.is_dir():
        raise BadInput(f"--out {out}: give a file that ends in .npz, in a folder that is there")
    with follow() as progress:
        found, dataset = _find(images, progress)
        embedder = load(model, device, inputs=found.inputs, weights_file=weights)
        architecture, given = (
            embedder.model.architecture,
            kind_of(dataset.modality) if dataset is not None else "images",
        )
        check_kind(model, find(architecture.trunk).takes, architecture.inputs, given, found.inputs)
        read, count = (
            (found.arrays, len(found.paths)) if dataset is None else (found.some, len(dataset))
        )
        z = embedder.embed_read(read, count, progress)
    arrays = {
        "z": z,
        **(
            label_arrays(dataset)
            if dataset is not None
            else {"ids": _names(found.paths, Path(images))}
        ),
    }
    if embedder.card.get("pretrained_on"):
        arrays["pretrained_on"] = embedder.card["pretrained_on"]
    write_atomically(out, pack_arrays(arrays))
    classes = f" of {len(dataset.class_names)} classes" if dataset is not None else ""
    print(f"{len(z)} vector{'s' * (len(z) != 1)}{classes}, {z.shape[1]} dimensions: {out}")
    if embedder.similarity != "cosine":
        print(
            f"compare them by their {embedder.similarity} distance: assay evaluate {out}"
            f" --similarity {embedder.similarity}"
        )
    if dataset is not None:
        print(f"next: assay bench --data features:{out}")


def _find(images: str, progress: "Progress") -> tuple[Any, "Dataset | None"]:
    """The samples, and the data set they are of; None: images without classes."""
    from assay.data import datasets, load
    from assay.data.image_files import ImageFiles
    from assay.data.images import endings
    from assay.data.load import check_usable
    from assay.data.seal import everything

    if images in datasets or (
        images.partition(":")[1] and f"{images.partition(':')[0]}:" in datasets
    ):
        dataset = load(images, progress)
        return everything(dataset), dataset
    path = Path(images)
    if not path.exists():
        raise BadInput(
            f"there is no {images}; give a folder or file of images, or kind:path of `assay list"
            " datasets`"
        )
    if path.is_dir() and any(
        _has_images(child, endings()) for child in path.iterdir() if child.is_dir()
    ):
        dataset = load(f"folder:{images}", progress)
        return everything(dataset), dataset
    files = (
        [path]
        if path.is_file()
        else sorted(file for file in path.iterdir() if file.suffix.lower() in endings())
    )
    if not files:
        raise BadInput(
            f"{images} holds no images that can be read ({', '.join(sorted(endings())[:8])}, ...)"
        )
    items = ImageFiles(files, path if path.is_dir() else path.parent, progress=progress)
    check_usable(items, len(files))
    return items, None


def _has_images(folder: Path, endings: set[str]) -> bool:
    return any(file.suffix.lower() in endings for file in folder.iterdir())


def _names(paths: list[Path], root: Path) -> Any:
    import numpy as np

    return np.array(
        [path.name if root.is_file() else path.relative_to(root).as_posix() for path in paths]
    )
