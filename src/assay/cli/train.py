"""`assay train`: one model, left as a folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.options import (
    Data,
    Device,
    DeviceName,
    Imports,
    Json,
    PretrainedOn,
    ProtocolName,
    Settings,
    Weights,
    choose_protocol,
)
from assay.cli.show import print_json

if TYPE_CHECKING:
    from assay.records.run import Checkpoint
    from assay.train import OnEpoch


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(train)


def train(
    data: Data,
    method: Annotated[str, typer.Option(help="A name of `assay list methods`.")],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="The model folder to make.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param", metavar="NAME=VALUE", help="A parameter of the method, else its default."
        ),
    ] = None,
    protocol: ProtocolName = "quick",
    settings: Settings = None,
    weights: Weights = None,
    pretrained_on: PretrainedOn = None,
    fold: Annotated[
        int, typer.Option(help="The fold of trainval that is held out and chooses the checkpoint.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Another one gives another model.")] = 0,
    imports: Imports = None,
    device: DeviceName = Device.auto,
    json: Json = False,
) -> None:
    """Train one model by METHOD on the trainval half of DATA; the test half is not touched.

    Example: assay train --data folder:birds --method multi_similarity --set trunk=lite0 --out
    birds-model
    """
    from assay.cli.progress import follow
    from assay.study import design_bench, train_one

    chosen = choose_protocol(protocol, settings, weights, pretrained_on, imports)
    with follow() as progress:
        (design,) = design_bench(data, [method], chosen, device, imports or (), progress)
        card = train_one(
            design,
            parameters or (),
            out,
            fold=fold,
            seed=seed,
            progress=progress,
            on_epoch=_teller(design.protocol.epochs),
        )
    if json:
        print_json({"model": str(out), **card})
        return
    if card["status"] == "diverged":
        print("training diverged; the best checkpoint before that was kept", file=sys.stderr)
    scores = ", ".join(
        f"{name} {card['validation'][name]:.4f}"
        for name in ("precision_at_1", "r_precision", "map_at_r")
    )
    print(f"validation, fold {fold}, epoch {card['epoch']}: {scores}")
    print(f"model: {out}")


def _teller(epochs: int) -> "OnEpoch":
    """Tells of each validation on stderr."""

    def tell(epoch: int, loss: float, checkpoint: "Checkpoint | None") -> None:
        if checkpoint is not None:
            found = checkpoint.validation["map_at_r"]
            print(
                f"epoch {epoch} of {epochs}: loss {loss:.4f}, validation MAP@R {found:.4f}",
                file=sys.stderr,
                flush=True,
            )

    return tell
