"""An export gives the embeddings of torch, or there is none."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from PIL import Image

from assay.data.given import GivenSamples, find_samples
from assay.embedder import Embedder, load
from assay.errors import BadInput
from assay.hashing import digest_file
from assay.index.export import int8
from assay.index.export.check import TOLERANCE, largest_difference, samples_to_check
from assay.index.export.record import EXAMPLE, EXPORT, GRAPH, PREPROCESSING, README, Export
from assay.index.export.runtime import centre, load_onnx
from assay.index.export.to_onnx import Exported, export, export_onnx, graph_of
from assay.methods import Trunk, trunks
from assay.model import CARD, WEIGHTS, Architecture, Model, write_model_folder
from assay.trunks.licences import licence_of
from loops import for_each
from test_embed import PICTURES, network

CPU = torch.device("cpu")
KINDS = {
    "cosine": Architecture("conv", 3, 20, 6),
    "grey": Architecture("conv", 1, 20, 16, "gem", True, "short", 24, "hamming"),
    "stretch": Architecture("conv", 3, 20, 0, "avg+max", False, "stretch", 26, "euclidean"),
    "parts": Architecture("conv", 3, 20, 6, parts=(2, 4), part_weights=(1.0, 3.0)),
    "vectors": Architecture("identity", 32, 0, 12, layer_norm=True),
    "features": Architecture("identity", 32, 0, 0, unit_features=True, similarity="euclidean"),
}


def embedder(kind: str = "cosine") -> Embedder:
    return Embedder(network(KINDS[kind]).eval(), {}, CPU)


@cache
def graph(kind: str = "cosine") -> bytes:
    """Return the graph of `embedder(kind)`; torch's exporter takes seconds for each."""
    return graph_of(embedder(kind).model)


def samples_for(kind: str = "cosine") -> GivenSamples:
    takes = "vectors" if kind in ("vectors", "features") else "images"
    rows = np.random.default_rng(1).standard_normal((9, 32)).astype(np.float32)
    return find_samples(PICTURES if takes == "images" else rows, takes, KINDS[kind].inputs)


def exported(folder: Path, kind: str = "cosine", **options: Any) -> Exported:
    options = {"to_graph": lambda model: graph(kind), **options}
    return export_onnx(embedder(kind), folder, samples_for(kind), **options)


# --- The same embeddings ---


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("cosine", "parts") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_an_export_embeds_as_torch_does(kind, tmp_path):
    model = embedder(kind)
    exported(tmp_path / kind, kind)
    onnx_model, samples = load_onnx(tmp_path / kind), samples_for(kind)
    z, found = model.embed_given(samples), onnx_model.embed_given(samples)
    assert found.shape == z.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, z, atol=1e-5 * max(1, float(np.abs(z).max())))
    same = "similarity", "takes", "inputs", "dim"
    assert all(getattr(onnx_model, name) == getattr(model, name) for name in same)


@for_each("kind", ["cosine", "grey", "parts", "vectors"])
def test_the_graph_means_the_same_to_the_reference_of_onnx(kind):
    checked = onnx.load_from_string(graph(kind))
    onnx.checker.check_model(checked, full_check=True)
    model, samples = embedder(kind), replace(samples_for(kind), count=3)
    step = model.model.architecture.first_step
    x = centre(samples.read(np.arange(3), step), model.model.architecture.size)
    (found,) = ReferenceEvaluator(checked).run(None, {checked.graph.input[0].name: x})
    np.testing.assert_allclose(found, model.embed_given(samples), atol=2e-5)


def test_the_graph_takes_any_number_of_images(tmp_path):
    exported(tmp_path / "out")
    found, samples = load_onnx(tmp_path / "out"), samples_for()
    z = embedder().embed_given(samples)
    for many in (1, 3, 5, len(PICTURES)):
        np.testing.assert_allclose(found.embed_in_batches(samples, many), z, atol=1e-5)
    assert "batch" in str(onnx.load(tmp_path / "out" / GRAPH).graph.input[0])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Image files of all shapes: lying on their side, transparent, of 16 bits."""
    draw, turned = np.random.default_rng(4), Image.Exif()
    turned[0x0112] = 6
    images = [Image.fromarray(pixels) for pixels in PICTURES[:4]]
    images.append(Image.fromarray(draw.integers(0, 256, (40, 30, 4), dtype=np.uint8)))
    images.append(Image.fromarray(draw.integers(0, 65536, (40, 50), dtype=np.uint16)))
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    images[0].save(tmp_path / "turned.jpg", exif=turned)
    return [*paths, tmp_path / "turned.jpg"]


@for_each("kind", ["cosine", "grey", "stretch"])
def test_the_example_embeds_files_as_assay_does(kind, files, tmp_path):
    exported(tmp_path / kind, kind)
    command = [sys.executable, "-I", tmp_path / kind / EXAMPLE, *files]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    z = embedder(kind).embed(files)
    atol = 1e-5 * max(1, float(np.abs(z).max()))
    np.testing.assert_allclose(json.loads(done.stdout), z, atol=atol)


# --- What a wrong graph comes to ---


def graph_before_output() -> tuple[onnx.ModelProto, str]:
    """Return the graph with its output under the name `alone`, and the name that it had."""
    found = onnx.load_from_string(graph())
    output = str(found.graph.output[0].name)
    last = next(node for node in found.graph.node if output in node.output)
    last.output[0] = "alone"
    return found, output


def altered(model: Model) -> bytes:
    """Return the graph with one output of the head changed a little."""
    found = onnx.load_from_string(graph())
    tensor = next(one for one in found.graph.initializer if one.name.endswith("head.weight"))
    weights = onnx.numpy_helper.to_array(tensor).copy()
    weights[0] += 0.01
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
    return found.SerializeToString()


def with_baked_batch(model: Model) -> bytes:
    """Return a graph that passes the images of the example through a shape of two images."""
    found, output = graph_before_output()
    shape = onnx.numpy_helper.from_array(np.array([2, model.architecture.dim]), "shape of two")
    found.graph.initializer.append(shape)
    found.graph.node.append(onnx.helper.make_node("Reshape", ["alone", "shape of two"], [output]))
    return found.SerializeToString()


def that_mixes_the_batch(model: Model) -> bytes:
    """Return a graph whose embeddings depend on the other images of the batch."""
    found, output = graph_before_output()
    zero = onnx.numpy_helper.from_array(np.array([0]), "axis of images")
    scale = onnx.numpy_helper.from_array(np.array(0.01, dtype=np.float32), "a little")
    found.graph.initializer.extend([zero, scale])
    found.graph.node.extend(
        [
            onnx.helper.make_node("ReduceMax", ["alone", "axis of images"], ["most"]),
            onnx.helper.make_node("Mul", ["most", "a little"], ["of others"]),
            onnx.helper.make_node("Add", ["alone", "of others"], [output]),
        ]
    )
    return found.SerializeToString()


def of_other_width(model: Model) -> bytes:
    """Return the graph of a model with a wider head."""
    return graph_of(network(replace(model.architecture, dim=model.architecture.dim + 1)).eval())


def that_gives_nan(model: Model) -> bytes:
    """Return the graph of a model whose head has a weight that is no number."""
    broken = Model(model.architecture).eval()
    broken.load_state_dict(model.state())
    with torch.no_grad():
        broken.head.bias[0] = torch.nan
    return graph_of(broken)


@for_each(
    "wrong", [altered, with_baked_batch, that_mixes_the_batch, of_other_width, that_gives_nan]
)
def test_a_wrong_graph_is_refused_and_nothing_is_written(wrong, tmp_path):
    folder = tmp_path / wrong.__name__
    with pytest.raises(RuntimeError, match="so nothing was written") as caught:
        exported(folder, to_graph=wrong)
    assert "'conv'" in str(caught.value) and not list(tmp_path.glob("*"))
    if wrong is altered:
        assert f"more than {TOLERANCE:g}" in str(caught.value)


def test_a_baked_batch_is_found_whatever_its_size(tmp_path):
    """The sizes of the check are not those of the example alone."""
    for size in (1, 2, 7, 9):

        def baked(model: Model, size: int = size) -> bytes:
            found = onnx.load_from_string(with_baked_batch(model))
            tensor = next(one for one in found.graph.initializer if one.name == "shape of two")
            new = np.array([size, model.architecture.dim])
            tensor.CopyFrom(onnx.numpy_helper.from_array(new, tensor.name))
            return found.SerializeToString()

        with pytest.raises(RuntimeError, match="at a time"):
            exported(tmp_path / "out", to_graph=baked)


def test_a_trunk_that_cannot_be_exported_is_named(tmp_path, as_before):
    @trunks("asks")
    class Asks(Trunk):
        """Does another thing for bright images than for dark ones."""

        features = 4

        def forward(self, x):
            if x.mean() > 0.5:
                x = 1 - x
            return x.mean((2, 3)).repeat(1, 2)[:, :4]

    model = Embedder(Model(Architecture("asks", 3, 8, 4)).eval(), {}, CPU)
    with pytest.raises(
        RuntimeError, match="the trunk 'asks' cannot be exported to ONNX: "
    ) as caught:
        export_onnx(model, tmp_path / "out", samples_for())
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*"))


def test_differences_are_measured_in_lengths_of_a_vector():
    z = np.array([[3.0, 4.0], [0.0, 15.0]], dtype=np.float32)
    off = z + np.array([[0.0, 0.5], [0.0, 0.0]], dtype=np.float32)
    assert largest_difference(z, off, "euclidean") == pytest.approx(0.05)
    assert largest_difference(z, off, "cosine") == pytest.approx(0.5)
    assert largest_difference(z, z[:1], "cosine") == np.inf
    assert np.isnan(largest_difference(z, z * np.nan, "hamming"))


# --- What is written ---


def test_a_record_has_the_hashes_and_what_was_measured(tmp_path):
    done = exported(tmp_path / "out", name="birds")
    found = Export.read_from(tmp_path / "out")
    assert found == done.export
    names = {GRAPH, PREPROCESSING, EXAMPLE, README}
    assert (
        set(found.files) == names == {one.name for one in (tmp_path / "out").iterdir()} - {EXPORT}
    )
    for name, known in found.files.items():
        assert digest_file(tmp_path / "out" / name) == known.sha256
    assert found.float32.difference < 1e-5 and found.float32.least_cosine > 0.99999
    assert found.samples == len(PICTURES) and found.batches[:3] == (1, 2, 7)
    assert found.float32.same_nearest == 1 and found.float32.speed > 0 and found.int8 is None


def test_two_exports_of_one_model_are_the_same():
    assert graph_of(embedder("vectors").model) == graph("vectors")


def test_an_export_that_is_there_stays_without_force(tmp_path):
    exported(tmp_path / "out")
    before = digest_file(tmp_path / "out" / GRAPH)
    with pytest.raises(BadInput, match="is there already"):
        exported(tmp_path / "out", "stretch")
    assert digest_file(tmp_path / "out" / GRAPH) == before
    exported(tmp_path / "out", "stretch", force=True)
    assert digest_file(tmp_path / "out" / GRAPH) != before


def test_force_replaces_an_export_only(tmp_path):
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").touch()
    with pytest.raises(BadInput, match="is no export"):
        exported(tmp_path / "holiday", force=True)
    assert (tmp_path / "holiday" / "photo.jpg").exists()


def test_samples_of_another_kind_are_refused(tmp_path):
    rows = find_samples(np.ones((3, 5), dtype=np.float32), "vectors", 5)
    with pytest.raises(BadInput, match="takes images of 3 channels"):
        export_onnx(embedder(), tmp_path / "out", rows)


@for_each("kind", ["cosine", "grey", "vectors"])
def test_without_images_made_up_samples_are_checked(kind):
    model = embedder(kind)
    samples = samples_to_check(model, None)
    assert samples.count == 64 and samples.inputs == model.inputs
    z = model.embed_given(samples)
    assert len(np.unique(z.round(4), axis=0)) > 60


def test_the_model_of_a_folder_is_not_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model_folder(tmp_path / "birds", network(KINDS["cosine"]), {})
    done = export("birds")
    assert done.folder == Path("birds-onnx") and (tmp_path / "birds-onnx" / GRAPH).exists()
    assert {one.name for one in (tmp_path / "birds").iterdir()} == {CARD, WEIGHTS}
    assert done.export.print == load("birds").card["sha256"]
    assert load_onnx(done.folder).print == done.export.print


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(BadInput, match=r"needs onnxscript: pip install 'assay-dml\[onnx\]'"):
        export("lite0", tmp_path / "out")


# --- 8 bits ---


def test_rounded_weights_are_off_by_half_a_step_at_most():
    draw = np.random.default_rng(0)
    for shape, axis in (((5, 7), 0), ((7, 5), 1), ((4, 3, 3, 3), 0)):
        weights = draw.standard_normal(shape).astype(np.float32)
        weights[tuple(0 if one == axis else slice(None) for one in range(len(shape)))] = 0
        small, scale = int8.quantise(weights, axis)
        assert small.dtype == np.int8 and scale.shape == (shape[axis],)
        for index in np.ndindex(shape):  # one weight at a time
            step = scale[index[axis]]
            assert abs(int(small[index]) * step - weights[index]) <= step / 2 * 1.0001


def test_weights_of_8_bits_make_a_smaller_file_near_the_first(tmp_path):
    model = embedder()
    found = exported(tmp_path / "out", quantise="int8").export
    assert found.quantised == "int8" and found.int8 is not None
    assert found.files[GRAPH].bytes < found.float32_bytes / 2
    assert found.float32.difference < 1e-5 < found.int8.difference
    z = load_onnx(tmp_path / "out").embed_given(samples_for())
    cosines = (z * model.embed_given(samples_for())).sum(1)
    assert cosines.min() == pytest.approx(found.int8.least_cosine, abs=1e-5)
    assert found.int8.least_cosine > 0.99
    card = (tmp_path / "out" / README).read_text()
    assert f"{found.int8.least_cosine:.4f} at least" in card and "8 bits" in card


def test_small_layers_keep_their_precision():
    small = onnx.load_from_string(int8.store_as_int8(graph()))
    types = {one.name: one.data_type for one in small.graph.initializer}
    eight = [name for name, kind in types.items() if kind == onnx.TensorProto.INT8]
    assert len(eight) == 4  # three blocks and the head; 27 weights a channel in the first block
    onnx.checker.check_model(small, full_check=True)


def test_8_bits_that_lose_too_much_are_refused(tmp_path):
    """One large weight in each channel leaves no bits for the others."""
    model = embedder()
    with torch.no_grad():
        for block in model.model.trunk.blocks[1:]:
            block[0].weight[:, 0, 0, 0] = 50
    with pytest.raises(RuntimeError, match=r"with weights of 8 bits .* leave out --quantise"):
        export_onnx(model, tmp_path / "out", samples_for(), quantise="int8")
    assert not list(tmp_path.glob("*"))


# --- Licences ---


def test_a_licence_is_what_its_publisher_says_or_unknown():
    assert licence_of("vit_tiny_patch16_224").startswith("apache-2.0, as timm's configuration")
    assert licence_of("lite0").startswith("Apache Software License 2.0, as the package")
    assert licence_of("resnet50").startswith("unknown: see the publisher of resnet50-")
    assert licence_of("bn_inception").startswith("unknown: see the publisher of bn_inception-")
    assert licence_of("conv") == "unknown"


# --- Every trunk ---


@pytest.mark.slow
@for_each(
    "trunk",
    [
        "lite0",
        "resnet18",
        "resnet50",
        "bn_inception",
        "googlenet",
        "vit_tiny_patch16_224",
        "convnext_atto",
        "mobilenetv3_small_050",
    ],
)
def test_trunks_for_photos_are_exported(trunk, tmp_path):
    torch.manual_seed(0)
    model = Embedder(Model(Architecture(trunk, 3, 224, 16)).eval(), {}, CPU)
    done = export_onnx(model, tmp_path / trunk, samples_for(), quantise="int8")
    assert done.export.float32.difference < 1e-5
