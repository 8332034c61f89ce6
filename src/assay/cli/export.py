"""`assay export`: a model as a file that runs without Assay."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.options import ForceOption, ImportsOption, JsonOption
from assay.cli.show import note, print_json, size


class Target(StrEnum):
    """What a model is exported to."""

    onnx = "onnx"


class Quantise(StrEnum):
    """How weights are stored, where they are not float32."""

    int8 = "int8"


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|INDEX",
            help="A model folder, a pretrained trunk, or an index, whose model is meant.",
        ),
    ],
    to: Annotated[Target, typer.Option("--to", help="The form of the file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder to make; by default MODEL-onnx, or the place in INDEX where `assay"
            " search --runtime onnx` finds it.",
        ),
    ] = None,
    quantise: Annotated[
        Quantise | None,
        typer.Option("--quantise", help="Store weights with 8 bits, for a smaller file."),
    ] = None,
    check_on: Annotated[
        str | None,
        typer.Option(
            "--check-on",
            metavar="IMAGES",
            help="Images to compare with torch on; by default those of INDEX, or made-up ones.",
        ),
    ] = None,
    imports: ImportsOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Export a model to ONNX, with its preprocessing and a model card.

    Its embeddings are compared with those of torch before anything is written.

    Example: assay export birds-model --to onnx --check-on birds
    """
    from assay.cli.progress import follow
    from assay.index.export.check import TOLERANCE
    from assay.index.export.to_onnx import export as write
    from assay.methods import import_parts

    import_parts(imports or ())
    with follow() as progress:
        done = write(
            model,
            out,
            quantise=quantise.value if quantise else None,
            check_on=check_on,
            force=force,
            progress=progress,
        )
    for text in done.notes:
        note(text)
    found = done.export
    if json:
        print_json({"out": str(done.folder), **found.to_json()})
        return
    written = found.files["model.onnx"].bytes
    print(f"{done.folder / 'model.onnx'}: {size(written)}, for onnxruntime or any other of ONNX")
    print(
        f"checked against torch on {found.samples} samples ({found.checked_on}): numbers differ by"
        f" at most {found.float32.difference:.1g} (allowed: {TOLERANCE:g});"
        f" {found.float32.speed:.1f} times as fast, one at a time by one thread"
    )
    if found.int8 is not None:
        print(
            f"with weights of 8 bits: {found.float32_bytes / written:.1f} times smaller, cosines to"
            f" torch's embeddings {found.int8.least_cosine:.4f} at least and"
            f" {found.int8.mean_cosine:.4f} on average,"
            f" {100 * found.int8.same_nearest:.0f}% keep their nearest sample"
        )
