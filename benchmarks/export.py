"""An exported model against torch: time, size, the cost of 8 bits, and the time to start.

python benchmarks/export.py [TRUNK ...]

One thread, one image at a time; works that are compared take turns in one run, and the best of
several rounds counts, so ratios are worth more than times. Images are crops of scikit-learn's two
photos. `lite0` has its pretrained weights; the others have random ones, whose running statistics
are those of such crops. `dynamic` is onnxruntime's own dynamic quantisation, for comparison: it
computes with 8 bits, where `--quantise int8` only stores them. A start is a new process that loads
the model and embeds one image file.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when numpy and torch are imported

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime.quantization
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images
from turns import best_of

from assay.data.dataset import Pixels, Vectors
from assay.data.given import find_samples
from assay.embedder import Embedder, load
from assay.index.export.check import Comparable
from assay.index.export.record import GRAPH
from assay.index.export.runtime import OnnxEmbedder, load_onnx, open_session
from assay.index.export.to_onnx import export_onnx
from assay.model import Architecture, Model, write_model_folder
from assay.trunks import find

TRUNKS = ("conv", "lite0", "resnet50")
IMAGES, ROUNDS, STARTS = 64, 15, 5
CPU = torch.device("cpu")

TORCH_START = "import assay, sys; print(assay.load(sys.argv[1], 'cpu').embed(sys.argv[2]).shape)"
ONNX_START = """
import sys
from pathlib import Path
from assay.data.given import find_samples
from assay.index.export import load_onnx
model = load_onnx(Path(sys.argv[1]))
print(model.embed_given(find_samples(sys.argv[2], model.takes, model.inputs)).shape)
"""


def crops(count: int, side: int) -> list[Pixels]:
    """Draw squares of the two photos, scaled to one side."""
    draw, found = np.random.default_rng(0), []
    photos = load_sample_images().images
    for number in range(count):
        photo = photos[number % len(photos)]
        length = int(draw.integers(100, 400))
        top, left = (int(draw.integers(0, end - length)) for end in photo.shape[:2])
        cut = Image.fromarray(photo[top : top + length, left : left + length])
        found.append(np.asarray(cut.resize((side, side), Image.Resampling.BILINEAR)))
    return found


def model_of(trunk: str) -> Embedder:
    """Return the model of a trunk without a head."""
    if trunk == "lite0":
        return load(trunk, "cpu")
    torch.manual_seed(0)
    side = find(trunk).side or 48
    model = Model(Architecture(trunk, 3, side, 0))
    x = torch.from_numpy(np.stack(crops(16, side))).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        for _ in range(12):
            model.train()(x)
    return Embedder(model.eval(), {"trunk": trunk, "weights": "none"}, CPU)


def dynamically_quantised(float32: Path, out: Path, like: OnnxEmbedder) -> OnnxEmbedder:
    """Return the model with onnxruntime's dynamic quantisation, written to `out`."""
    logging.disable(logging.WARNING)
    onnxruntime.quantization.quantize_dynamic(
        float32, out, per_channel=True, weight_type=onnxruntime.quantization.QuantType.QUInt8
    )
    return OnnxEmbedder(open_session(out.read_bytes(), out), like.about, str(out), like.print)


def start(code: str, *words: Path) -> None:
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)


def cosines(z: Vectors, other: Vectors) -> NDArray[np.float64]:
    """Cosine of the two embeddings of each image; both are of unit length."""
    found: NDArray[np.float64] = (z.astype(np.float64) * other).sum(1)
    return found


def measure(trunk: str, folder: Path) -> None:
    """Print the rows of a trunk."""
    embedder = model_of(trunk)
    side = embedder.model.architecture.size
    images = crops(IMAGES, side)
    samples = find_samples(images, "images", 3)
    samples_of_check = find_samples(images[:16], "images", 3)
    for name, quantise in (("float32", None), ("int8", "int8")):
        export_onnx(embedder, folder / name, samples_of_check, quantise=quantise)  # type: ignore[arg-type]
    found = {name: load_onnx(folder / name) for name in ("float32", "int8")}
    files = {name: folder / name / GRAPH for name in found}
    files["dynamic"] = folder / "dynamic.onnx"
    found["dynamic"] = dynamically_quantised(files["float32"], files["dynamic"], found["int8"])

    write_model_folder(folder / "model", embedder.model, {"trunk": trunk})
    Image.fromarray(images[0]).save(folder / "query.png")
    starts = best_of(
        {
            "torch": partial(start, TORCH_START, folder / "model", folder / "query.png"),
            **{
                name: partial(start, ONNX_START, folder / name, folder / "query.png")
                for name in ("float32", "int8")
            },
        },
        STARTS,
    )
    x = images[0][None]
    network, tensor = Comparable(embedder.model).eval(), torch.from_numpy(x.copy())
    torch.set_num_threads(1)
    works: dict[str, Callable[[], object]] = {
        "torch": lambda: network(tensor),
        **{name: partial(one.compute, x) for name, one in found.items()},
    }
    with torch.no_grad():
        times = best_of(works, ROUNDS)
    z = embedder.embed_given(samples)
    own = (z @ z.T - 2 * np.eye(IMAGES)).argmax(1)
    weights = (folder / "model" / "model.safetensors").stat().st_size
    print(
        f"| {trunk} | torch | {1e3 * times['torch']:.2f} | 1 | {weights / 1e6:.2f} | 1 | 1 | 1"
        f" | {starts['torch']:.2f} | 1 |"
    )
    for name, one in found.items():
        other = one.embed_given(samples)
        close = cosines(z, other)
        same = np.mean((other @ z.T - 2 * np.eye(IMAGES)).argmax(1) == own)
        size = files[name].stat().st_size
        begun = (
            f"{starts[name]:.2f} | {starts[name] / starts['torch']:.2f}"
            if name in starts
            else "- | -"
        )
        print(
            f"| {trunk} | {name} | {1e3 * times[name]:.2f} | {times[name] / times['torch']:.2f} |"
            f" {size / 1e6:.2f} | {close.min():.4f} | {close.mean():.4f} | {same:.2f} | {begun} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trunks", nargs="*", default=TRUNKS)
    print(
        "| trunk | runtime | ms an image | over torch | MB | least cosine | mean | same nearest |"
        " start, s | over torch |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for trunk in parser.parse_args().trunks:
        with tempfile.TemporaryDirectory() as folder:
            measure(trunk, Path(folder))


if __name__ == "__main__":
    main()
