"""Embedding by onnxruntime: without torch, and only what the export says."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.data.augment import centre as centre_of_torch
from assay.data.given import find_samples
from assay.errors import BadInput
from assay.index.export import load_onnx
from assay.index.export.record import EXPORT, GRAPH, PREPROCESSING
from assay.index.export.runtime import centre
from loops import for_each
from test_embed import PICTURES, SHAPES, picture
from test_export import embedder, exported, samples_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("exported") / "onnx"
    exported(made, "stretch")
    return made


def test_a_search_by_onnx_starts_without_torch(folder, tmp_path):
    Image.fromarray(PICTURES[0]).save(tmp_path / "query.png")
    code = f"""
import sys
from pathlib import Path
from assay.data.given import find_samples
from assay.index.export import load_onnx
model = load_onnx(Path({str(folder)!r}))
z = model.embed_given(find_samples({str(tmp_path / "query.png")!r}, model.takes, model.inputs))
assert "onnxruntime" in sys.modules and "torch" not in sys.modules, "torch was loaded"
print(z.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    z = embedder("stretch").embed(tmp_path / "query.png")
    np.testing.assert_allclose(json.loads(done.stdout), z, atol=1e-5)


@for_each("size", [8, 13, 20, 24])
def test_the_centre_is_that_of_torch(size):
    """Sides of every parity, so that halves of a pixel are rounded in the same way."""
    images = [picture(h, w, 3) for h, w in [*SHAPES, (size, size), (size + 1, size), (27, 26)]]
    images = [one for one in images if min(one.shape[:2]) >= size]
    ours = centre(images, size).transpose(0, 3, 1, 2).astype(np.float32) / 255
    np.testing.assert_array_equal(ours, centre_of_torch(images, size).numpy())
    stacked = np.stack([picture(30, 25, seed) for seed in range(3)])
    ours = centre(stacked, size).transpose(0, 3, 1, 2).astype(np.float32) / 255
    np.testing.assert_array_equal(ours, centre_of_torch(stacked, size).numpy())


def test_vectors_have_no_centre():
    rows = np.ones((2, 3), dtype=np.float32)
    assert centre(rows, 0) is rows


def test_order_and_company_of_images_do_not_matter(folder):
    model, samples = load_onnx(folder), samples_for("stretch")
    z = model.embed_given(samples)
    turned = model.embed_given(find_samples(PICTURES[::-1], "images", 3))
    np.testing.assert_allclose(turned[::-1], z, atol=1e-6)
    np.testing.assert_allclose(
        model.embed_given(find_samples(PICTURES[2], "images", 3)), z[2:3], atol=1e-6
    )


def test_many_threads_embed_at_once(folder):
    model, samples = load_onnx(folder), samples_for("stretch")
    z = model.embed_given(samples)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: model.embed_given(samples), range(40)):
            np.testing.assert_array_equal(found, z)


def test_more_images_than_a_batch_are_embedded_in_order(folder):
    images = [picture(30, 30, seed) for seed in range(70)]
    model, said = load_onnx(folder), []
    given = find_samples(images, "images", 3)
    z = model.embed_given(given, lambda *words: said.append(words))
    assert said[-1] == ("embedding", 70, 70) and len(said) == 3
    np.testing.assert_allclose(z, embedder("stretch").embed(images), atol=1e-5)


# --- Bad input ---


def test_data_of_another_kind_are_refused_as_with_torch(folder):
    model = load_onnx(folder)
    vectors = find_samples(np.ones((2, 5), dtype=np.float32), "vectors", 5)
    grey = find_samples(PICTURES, "images", 1)
    for given, said in ((vectors, "are vectors of 5 numbers"), (grey, "are images of 1 channels")):
        with pytest.raises(BadInput, match=said):
            model.embed_given(given)


def test_no_samples_are_refused(folder):
    with pytest.raises(BadInput, match="no samples were given"):
        load_onnx(folder).embed_given(find_samples([], "images", 3))


def test_a_missing_export_names_the_command_that_makes_it(tmp_path):
    index = tmp_path / "photos.index"
    with pytest.raises(BadInput, match=f"make it: assay export {index} --to onnx"):
        load_onnx(index / "models" / "0123" / "onnx")


@pytest.fixture
def own(tmp_path):
    exported(tmp_path / "out")
    return tmp_path / "out"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("name", [GRAPH, PREPROCESSING, EXPORT])
def test_a_damaged_file_is_refused_by_name(own, name, damage):
    damage(own / name)
    with pytest.raises(BadInput, match=name) as caught:
        load_onnx(own)
    assert "assay export" in str(caught.value)


def test_preprocessing_of_another_model_is_refused(own, folder):
    (own / PREPROCESSING).write_bytes((folder / PREPROCESSING).read_bytes())
    with pytest.raises(BadInput, match="one of the two was altered"):
        load_onnx(own)


def test_an_export_of_a_newer_format_is_refused(own):
    document = json.loads((own / EXPORT).read_text())
    (own / EXPORT).write_text(json.dumps(document | {"format": 99}))
    with pytest.raises(BadInput, match="has format 99"):
        load_onnx(own)


def test_a_missing_onnxruntime_is_named(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BadInput, match=r"pip install 'assay-dml\[onnx\]'"):
        load_onnx(own)
