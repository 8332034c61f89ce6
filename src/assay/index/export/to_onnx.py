"""From a model to an ONNX file that was checked against torch. Shapes: N samples, D dims."""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from assay.data.given import GivenSamples, find_samples
from assay.embedder import Embedder, load
from assay.errors import BadInput
from assay.files import new_folder, read_text
from assay.index.encoder import print_of
from assay.index.export.check import (
    BATCHES,
    MOST_SAMPLES,
    Comparable,
    check,
    check_int8,
    reason_in,
    samples_to_check,
)
from assay.index.export.int8 import store_as_int8
from assay.index.export.model_card import model_card
from assay.index.export.record import (
    EXAMPLE,
    EXPORT,
    FOLDER,
    GRAPH,
    PREPROCESSING,
    README,
    Export,
    Preprocessing,
    Quantisation,
)
from assay.index.export.runtime import LARGEST_GRAPH
from assay.index.manifest import MODELS, is_index, sums_of
from assay.model import Model
from assay.progress import Progress, silent
from assay.protocols import FirstStep

if TYPE_CHECKING:
    from assay.index.index import Index

OPSET = 18
"""Version of ONNX's operators; the exporter writes it without converting."""

GOOD_COSINE = 0.99
"""Cosine to torch's embedding below which weights of 8 bits are announced as a loss."""

MOST_KEEP = 0.9
"""Share of samples that keep their nearest sample below which the same is announced."""

ToGraph = Callable[[Model], bytes]
"""Returns the ONNX file of a model."""


@dataclass(frozen=True)
class Exported:
    """An export as it was written.

    Args:
        folder: the folder.
        export: its record.
        notes: what a user should know, in words.
    """

    folder: Path
    export: Export
    notes: tuple[str, ...]


def export(
    name: str | Path,
    out: Path | None = None,
    *,
    quantise: Quantisation | None = None,
    check_on: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Export a model, or the model of an index, to a folder.

    Args:
        name: a model folder, the name of a pretrained trunk, or an index.
        out: the folder to make; None: `NAME-onnx` here, and for an index the place where
            `assay search --runtime onnx` looks for it.
        quantise: `int8` stores weights with 8 bits.
        check_on: images to check it on; None: those of the index, or made-up ones.
        force: replace an export that is there.
        progress: called with the stage, the steps done and their total.
    """
    require_exporter()
    path = Path(name)
    inside, files = None, list[Path]()
    if is_index(path):
        from assay.index.index import Index  # it loads this package

        with Index.open(path) as index:
            inside = path / MODELS / index.manifest.model.print
            files = _files_of(index)
    folder = out or (inside / FOLDER if inside else Path(f"{path.resolve().name}-onnx"))
    check_free(folder, force)
    embedder = load(inside or name, "cpu")
    if files and check_on is None:
        samples = find_samples(files, "images", embedder.inputs, progress)
        samples = replace(samples, called=f"{path.name}, the images of the index")
    else:
        samples = samples_to_check(embedder, check_on, progress)
    return export_onnx(
        embedder,
        folder,
        samples,
        quantise=quantise,
        name=str(name),
        force=force,
        progress=progress,
    )


def export_onnx(
    embedder: Embedder,
    out: Path,
    samples: GivenSamples,
    *,
    quantise: Quantisation | None = None,
    name: str = "",
    force: bool = False,
    progress: Progress = silent,
    to_graph: ToGraph | None = None,
) -> Exported:
    """Write a model, on the CPU, as ONNX to the folder `out`, once it agrees with torch on samples.

    Raise `RuntimeError`, and write nothing, where it does not.
    """
    check_free(out, force)
    embedder.check(samples)
    architecture = embedder.model.architecture
    progress("exporting", 0, 3)
    graph = (to_graph or graph_of)(embedder.model)
    about = preprocessing_of(embedder)
    progress("exporting", 1, 3)
    z = embedder.embed_given(samples)
    float32 = check(embedder, about, graph, samples, z)
    progress("exporting", 2, 3)
    float32_bytes, int8, notes = len(graph), None, []
    if quantise == "int8":
        graph = store_as_int8(graph)
        int8 = check_int8(embedder, about, graph, samples, z)
        if int8.least_cosine < GOOD_COSINE or int8.same_nearest < MOST_KEEP:
            notes.append(
                f"with weights of 8 bits, embeddings have a cosine down to {int8.least_cosine:.3f}"
                f" to those of torch, and {1 - int8.same_nearest:.0%} of the samples have another"
                " nearest sample: evaluate before you use it, or leave out --quantise"
            )
    record = Export(
        name=name or embedder.called,
        print=print_of(embedder),
        trunk=architecture.trunk,
        opset=OPSET,
        samples=samples.count,
        checked_on=samples.called,
        batches=BATCHES,
        float32=float32,
        float32_bytes=float32_bytes,
        quantised=quantise,
        int8=int8,
        versions={one: version(one) for one in ("assay-dml", "torch", *PACKAGES)},
        files={},
    )
    with new_folder(out, force) as draft:
        (draft / GRAPH).write_bytes(graph)
        (draft / PREPROCESSING).write_text(about.content(), encoding="utf-8")
        if about.takes == "images":
            example = read_text(Path(__file__).with_name("example.py.txt"))
            (draft / EXAMPLE).write_text(example, encoding="utf-8")
        text = model_card(embedder, record, about, len(graph))
        (draft / README).write_text(text, encoding="utf-8")
        record = replace(record, files=sums_of(draft))
        (draft / EXPORT).write_text(record.content(), encoding="utf-8")
    progress("exporting", 3, 3)
    return Exported(out, record, tuple(notes))


PACKAGES = ("onnx", "onnxruntime", "onnxscript")
"""Packages that an export needs in addition to torch."""


def require_exporter() -> None:
    """Raise `BadInput` where a package is missing."""
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError:
            raise BadInput(
                f"an export to ONNX needs {package}: pip install 'assay-dml[onnx]'"
            ) from None


def check_free(out: Path, force: bool) -> None:
    """Raise `BadInput` where the folder is there; with `force`, where it is no export."""
    if not out.exists():
        return
    if not force:
        raise BadInput(f"{out} is there already; give another --out, or replace it with --force")
    if not (out / EXPORT).is_file():
        raise BadInput(
            f"{out} is no export (no {EXPORT} in it), so it is not replaced; give another --out"
        )


# --- The graph ---


def graph_of(model: Model) -> bytes:
    """Return a model as an ONNX file, by torch's exporter.

    It is the one on top of `torch.export`: the older tracer is to be removed from torch.
    """
    architecture = model.architecture
    shape = (2, architecture.size, architecture.size, architecture.inputs)
    example = (
        torch.zeros(shape, dtype=torch.uint8)
        if architecture.size
        else torch.zeros(2, architecture.inputs)
    )
    try:
        with warnings.catch_warnings():
            # torch.export calls a function of torch that torch has deprecated
            warnings.filterwarnings("ignore", r".*treespec, LeafSpec", FutureWarning)
            program = torch.onnx.export(
                Comparable(model).eval(),
                (example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["pixels" if architecture.size else "x"],
                output_names=["z"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        assert program is not None, "no file was named, so the graph is returned"
        proto = program.model_proto
        if proto.ByteSize() >= LARGEST_GRAPH:
            raise BadInput(
                f"the trunk {architecture.trunk!r} has {proto.ByteSize():,} bytes as ONNX, and one"
                f" file holds {LARGEST_GRAPH:,}; choose a smaller trunk"
            )
        content: bytes = proto.SerializeToString()
    except BadInput:
        raise
    except Exception as error:  # the exporter raises errors of any type
        raise RuntimeError(
            f"the trunk {architecture.trunk!r} cannot be exported to ONNX: {reason_in(error)}; use"
            " its model folder with torch, or another trunk"
        ) from error
    return content


def preprocessing_of(embedder: Embedder) -> Preprocessing:
    """Return what the graph of a model takes and gives."""
    architecture, takes = embedder.model.architecture, embedder.takes
    dim = architecture.dim or embedder.model.trunk.features
    step, images = architecture.first_step, takes == "images"
    size, inputs = architecture.size, architecture.inputs
    shape = f"(batch, {size}, {size}, {inputs})" if images else f"(batch, {inputs})"
    unit = architecture.similarity == "cosine"
    return Preprocessing(
        takes=takes,
        inputs=inputs,
        resize=step.kind,
        side=step.side,
        crop=size,
        input_name="pixels" if images else "x",
        input_type="uint8" if images else "float32",
        input_shape=shape,
        output_name="z",
        output_type="float32",
        dim=dim,
        similarity=architecture.similarity,
        unit_length=unit or bool(architecture.parts),
        steps=(*(_image_steps(step, size, inputs) if images else ()), *_output_steps(embedder)),
    )


def _image_steps(step: FirstStep, size: int, inputs: int) -> tuple[str, ...]:
    side = step.side
    scaled = {
        "square": f"Cut out the central square, and scale it to {side} x {side} pixels",
        "short": f"Scale the image so that its short side has {side} pixels (the long side is"
        " rounded down)",
        "stretch": f"Scale the image to {side} x {side} pixels, whatever its shape",
    }[step.kind]
    colours = "RGB" if inputs == 3 else "grey (L = 0.299 R + 0.587 G + 0.114 B, Pillow's)"
    return (
        "Decode the image; of several pictures in a file take the first.",
        "Turn it upright by its EXIF orientation.",
        "Divide samples of 16 bits by 257, to 8 bits. Lay transparency on white.",
        f"Make it {colours}.",
        f"{scaled}: bilinear with antialiasing (Pillow's BILINEAR).",
        f"Cut out the central {size} x {size} pixels, without scaling.",
        "Give the pixels as they are: uint8, 0 to 255, in the order (batch, height, width,"
        f" {inputs}). The graph divides by 255, turns the axes, and normalises as the trunk does.",
    )


def _output_steps(embedder: Embedder) -> tuple[str, ...]:
    compared = {
        "cosine": "The output z is of unit length: compare by the inner product, which is the"
        " cosine.",
        "euclidean": "Compare outputs z by their Euclidean distance.",
        "hamming": "Compare the bits z > 0 of outputs by how many differ (numpy.packbits(z > 0,"
        " axis=1) packs them).",
    }
    return (compared[embedder.similarity],)


def _files_of(index: "Index") -> list[Path]:
    """Return up to `MOST_SAMPLES` image files of an index, spread over all."""
    ids = [id_ for _, id_, _ in index.catalog.images()]
    step = max(1, len(ids) // MOST_SAMPLES)
    files = [index.file_of(id_) for id_ in ids[::step][:MOST_SAMPLES]]
    return [file for file in files if file is not None and file.is_file()]
