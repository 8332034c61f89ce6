"""From images to unit vectors: the same in any form, order and batch."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import assay
import assay.embedding
from assay.data import load as load_data
from assay.data.images import read_images
from assay.embedder import Embedder, load
from assay.embedding import batch_of, embed_samples, outputs, read_and_embed
from assay.errors import BadInput
from assay.model import CARD, WEIGHTS, Architecture, Model, write_model_folder
from loops import for_each

CPU = torch.device("cpu")
SHAPES = [(40, 30), (30, 40), (24, 24), (60, 25), (25, 61), (31, 33), (90, 44)]
FORMS = {
    "square": Architecture("conv", 3, 24, 6),
    "short": Architecture("conv", 3, 20, 6, "gem", True, "short", 24),
    "stretch": Architecture("conv", 3, 20, 0, "avg", False, "stretch", 26),
    "grey": Architecture("conv", 1, 20, 6, "avg", False, "short", 24),
}
every_form = for_each("form", list(FORMS))


def picture(height: int, width: int, seed: int) -> np.ndarray:
    """Return an image of coloured blots, no two alike."""
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 256, (5, 4, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


PICTURES = [picture(*shape, seed) for seed, shape in enumerate(SHAPES)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(len(PICTURES))]
    for path, pixels in zip(paths, PICTURES, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assay.embedding, "BATCH", 3)


def network(architecture: Architecture, seed: int = 0) -> Model:
    """Return an untrained model whose running statistics separate images."""
    torch.manual_seed(seed)
    model = Model(architecture)
    if architecture.size:
        seen = np.stack(
            [picture(architecture.size, architecture.size, number) for number in range(50, 66)]
        )
        x = torch.from_numpy(seen[..., : architecture.inputs]).permute(0, 3, 1, 2) / 255
        with torch.no_grad():
            for _ in range(40):
                model.train()(x)
    return model


def embedder(form: str) -> Embedder:
    return Embedder(network(FORMS[form]), {}, CPU)


# --- The same vectors, however they are asked for ---


@every_form
def test_vectors_have_unit_length_and_differ(form: str) -> None:
    z = embedder(form).embed(PICTURES)
    assert z.shape == (len(PICTURES), 6 if FORMS[form].dim else 64)
    assert z.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-6)
    assert (z @ z.T - 2 * np.eye(len(z))).max() < 1 - 1e-6


@every_form
def test_files_and_pixels_are_the_same(form: str, files: list[Path]) -> None:
    model = embedder(form)
    expected = model.embed(PICTURES)
    np.testing.assert_allclose(model.embed(files), expected, atol=1e-5)
    np.testing.assert_allclose(model.embed([str(path) for path in files]), expected, atol=1e-5)
    mixed = [
        path if number % 2 else pixels
        for number, (path, pixels) in enumerate(zip(files, PICTURES, strict=True))
    ]
    np.testing.assert_allclose(model.embed(mixed), expected, atol=1e-5)


WAYS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "a path": lambda file, pixels: file,
    "a path as text": lambda file, pixels: str(file),
    "a list of a path": lambda file, pixels: [file],
    "a folder": lambda file, pixels: file.parent,
    "Pillow's image": lambda file, pixels: Image.fromarray(pixels),
    "a list of Pillow's image": lambda file, pixels: (Image.fromarray(pixels),),
    "Pillow's image of the file": lambda file, pixels: Image.open(file),
    "pixels": lambda file, pixels: pixels,
    "a list of pixels": lambda file, pixels: [pixels],
    "pixels (1, H, W, 3)": lambda file, pixels: pixels[None],
    "a generator": lambda file, pixels: iter([pixels]),
}


@every_form
def test_an_image_has_one_vector_whichever_way_it_comes_in(form: str, tmp_path: Path) -> None:
    model, pixels, file = embedder(form), PICTURES[0], tmp_path / form / "image.png"
    file.parent.mkdir()
    Image.fromarray(pixels).save(file)
    expected = model.embed([pixels])
    for name, way in WAYS.items():
        found = model.embed(way(file, pixels))
        assert found.tobytes() == expected.tobytes(), name
        again = assay.embed(model, way(file, pixels)).z
        assert again.tobytes() == expected.tobytes(), f"assay.embed, {name}"
    assert not np.allclose(model.embed(PICTURES[1]), expected), "any image would have passed"


def test_class_folders_and_data_sets_give_the_vectors_of_their_files(tmp_path: Path) -> None:
    model, folder = embedder("square"), tmp_path / "birds"
    for number, pixels in enumerate(PICTURES[:4]):
        (folder / f"class {number // 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"class {number // 2}" / f"{number}.png")
    expected = model.embed(PICTURES[:4])
    for given in (folder, f"folder:{folder}", load_data(f"folder:{folder}")):
        np.testing.assert_allclose(model.embed(given), expected, atol=1e-6)


def test_pillows_images_are_turned_upright_and_made_rgb_as_files_are(tmp_path: Path) -> None:
    model = embedder("short")
    grey16 = np.arange(40 * 30, dtype=np.uint16).reshape(40, 30) * 50
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = {
        "turned.jpg": (Image.fromarray(PICTURES[0]), {"exif": exif, "quality": 95}),
        "palette.png": (Image.fromarray(PICTURES[0]).convert("P"), {}),
        "alpha.png": (Image.fromarray(np.dstack([PICTURES[0], PICTURES[0][..., 0]])), {}),
        "grey16.png": (Image.fromarray(grey16), {}),
        "bits.png": (Image.fromarray(PICTURES[0]).convert("1"), {}),
        "cmyk.tif": (Image.fromarray(PICTURES[0]).convert("CMYK"), {}),
    }
    for name, (image, options) in kinds.items():
        image.save(tmp_path / name, **options)
        expected = model.embed(tmp_path / name)
        with Image.open(tmp_path / name) as opened:
            assert model.embed(opened).tobytes() == expected.tobytes(), name
        if "exif" not in options:
            assert model.embed(image).tobytes() == expected.tobytes(), f"{name} from memory"
    with Image.open(tmp_path / "turned.jpg") as opened:
        as_stored = model.embed(np.asarray(opened))
    assert not np.allclose(as_stored, model.embed(tmp_path / "turned.jpg")), "EXIF did nothing"


@for_each(
    ("given", "said"),
    [
        (7, "images are given as int; give a path, a list of paths, a folder"),
        ({"a": 1}, "images are given as dict"),
        (b"bytes", "images are given as bytes"),
        (None, "images are given as NoneType"),
        ("missing.png", "there is no missing.png; give a folder or file of images"),
        (
            [PICTURES[0], 3.5],
            "image 1 of the list is of type float; give the path of a file",
        ),
        ([torch.zeros(8, 8, 3)], "the image is of type Tensor"),
        (np.zeros((0, 9, 3), dtype=np.uint8), r"the image is uint8 of shape \(0, 9, 3\)"),
        (
            np.zeros((2, 8, 8, 4), dtype=np.uint8),
            r"image 0 of the list is uint8 of .*, 8, 4\)",
        ),
        (np.zeros((0, 8, 8, 3), dtype=np.uint8), "nothing to embed"),
        ("glyphs", "takes images of 3 channels, the data are images of 1 channels"),
        (Image.new("F", (9, 9)), "an image holds floating-point pixels"),
    ],
)
def test_what_cannot_be_embedded_is_refused_with_what_can(given: Any, said: str) -> None:
    for embed in (embedder("square").embed, partial(assay.embed, embedder("square"))):
        with pytest.raises(BadInput, match=said):
            embed(given)


def test_rows_without_a_number_are_refused_with_the_first_of_them() -> None:
    model = Embedder(network(Architecture("identity", 12, 0, 6)), {}, CPU)
    for bad, kind in ((np.nan, np.float32), (np.inf, np.float64), (1e300, np.float64)):
        rows = np.ones((5, model.model.architecture.inputs), dtype=kind)
        rows[3:, 1] = bad
        for embed in (model.embed, partial(assay.embed, model)):
            for given in (rows, rows.tolist()):
                with pytest.raises(BadInput, match="in memory: row 3 of z has a value"):
                    embed(given)


def test_folders_and_tables_among_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("path,label\n")
    (tmp_path / "none").mkdir()
    model = embedder("square")
    for given, said in (
        ([tmp_path / "none"], "none is a folder, not an image; give it by itself, not in a list"),
        (tmp_path / "table.csv", "table.csv is a file: write its kind before it, table:"),
        (tmp_path / "none", "none holds no images that can be read"),
    ):
        with pytest.raises(BadInput, match=said):
            model.embed(given)


def test_broken_files_are_left_out_where_that_is_asked_for(files: list[Path]) -> None:
    model = embedder("square")
    whole = model.embed(files)
    files[2].write_bytes(b"no image")
    for given in (files, files[0].parent):
        with pytest.raises(BadInput, match=r"2.png cannot be read.*, or pass --skip-broken"):
            assay.embed(model, given)
        found = assay.embed(model, given, skip_broken=True)
        np.testing.assert_allclose(found.z, np.delete(whole, 2, axis=0), atol=1e-6)
        assert [Path(name).name for name in found.ids] == [
            path.name for path in files if path != files[2]
        ]
        assert len(found.notes) == 1
        assert "2.png cannot be read as an image" in found.notes[0]


def test_hidden_files_and_folders_are_no_samples_with_or_without_classes(files: list[Path]) -> None:
    folder = files[0].parent
    (folder / "._0.png").write_bytes(b"what macOS leaves on other file systems")
    (folder / ".thumbnails").mkdir()
    (folder / ".thumbnails" / "0.png").write_bytes(files[0].read_bytes())
    model = embedder("square")
    found = assay.embed(model, folder)
    assert list(found.ids) == [path.name for path in files], "nor does .thumbnails make it classes"
    (folder / "class").mkdir()
    files[0].rename(folder / "class" / "0.png")
    assert list(assay.embed(model, folder).ids) == ["class/0.png"]


@every_form
def test_order_and_company_do_not_matter(form: str, small_batches: None) -> None:
    model = embedder(form)
    expected = model.embed(PICTURES)
    order = np.random.default_rng(0).permutation(len(PICTURES))
    np.testing.assert_allclose(
        model.embed([PICTURES[number] for number in order]), expected[order], atol=1e-5
    )
    for number, pixels in enumerate(PICTURES):
        np.testing.assert_allclose(model.embed([pixels])[0], expected[number], atol=1e-5)


@every_form
def test_the_size_of_a_batch_does_not_matter(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = embedder(form)
    expected = model.embed(PICTURES)
    for many in (1, 2, 5):
        monkeypatch.setattr(assay.embedding, "BATCH", many)
        np.testing.assert_allclose(model.embed(PICTURES), expected, atol=1e-5)


@every_form
def test_the_vectors_are_those_of_the_centres_after_the_first_step(form: str) -> None:
    """By hand: scaled by Pillow, cut out, divided by 255, through the network, divided by their
    length.
    """
    model, architecture = embedder(form), FORMS[form]
    expected = []
    for pixels in PICTURES:
        image = Image.fromarray(pixels)
        side = architecture.stored or architecture.size
        if architecture.resize == "square":
            least = min(image.size)
            left, top = (image.width - least) / 2, (image.height - least) / 2
            image = image.resize(
                (side, side), Image.Resampling.BILINEAR, box=(left, top, left + least, top + least)
            )
        elif architecture.resize == "stretch":
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        else:
            width, height = (int(side * length / min(image.size)) for length in image.size)
            image = (image.convert("L") if form == "grey" else image).resize(
                (width, height), Image.Resampling.BILINEAR
            )
        left, top = (round((length - architecture.size) / 2) for length in image.size)
        cut = (
            np.asarray(
                image.crop((left, top, left + architecture.size, top + architecture.size)),
                dtype=np.float32,
            )
            / 255
        )
        x = torch.from_numpy(cut.reshape(architecture.size, architecture.size, -1)).permute(
            2, 0, 1
        )[None]
        with torch.no_grad():
            z = model.model.eval()(x)[0]
        expected.append((z / z.norm()).numpy())
    np.testing.assert_allclose(model.embed(PICTURES), np.stack(expected), atol=1e-5)


def test_grey_pixels_of_two_dimensions_are_images_too() -> None:
    grey = [pixels[..., 0] for pixels in PICTURES]
    in_colour = [np.repeat(pixels[..., None], 3, axis=2) for pixels in grey]
    for form in ("square", "grey"):
        model = embedder(form)
        np.testing.assert_allclose(model.embed(grey), model.embed(in_colour), atol=1e-5)


def test_embedding_twice_gives_the_same_bytes_and_leaves_the_model_as_it_was() -> None:
    model = embedder("square")
    before = model.model.state()
    model.model.train()
    first = model.embed(PICTURES)
    assert (model.embed(PICTURES) == first).all()
    assert all(torch.equal(before[name], after) for name, after in model.model.state().items())
    assert not model.model.training


def test_the_number_of_cores_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch, small_batches: None
) -> None:
    model = embedder("square")
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found.append(model.embed(PICTURES))
    assert (found[0] == found[1]).all()


# --- Vectors ---


def test_vectors_go_through_a_head_of_vectors() -> None:
    model = Embedder(network(Architecture("identity", 7, 0, 4, layer_norm=True)), {}, CPU)
    x = np.random.default_rng(0).normal(size=(9, 7))
    z = model.embed(x.astype(np.float32))
    assert z.shape == (9, 4)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(model.embed(x.tolist()), z, atol=1e-6)
    np.testing.assert_allclose(model.embed(x[::-1].astype(np.float32))[::-1], z, atol=1e-5)


@for_each("bad", [np.zeros((0, 7)), [], np.zeros((3, 5)), np.zeros(7), ["a.png"]])
def test_vectors_that_a_head_cannot_take_are_refused(bad: Any) -> None:
    model = Embedder(network(Architecture("identity", 7, 0, 4)), {}, CPU)
    with pytest.raises(BadInput):
        model.embed(bad)


# --- What is refused ---


def test_nothing_cannot_be_embedded() -> None:
    with pytest.raises(BadInput, match="nothing to embed"):
        embedder("square").embed([])


@for_each(
    ("bad", "said"),
    [
        (np.zeros((8, 8, 3), dtype=np.float32), "float32"),
        (np.zeros((8, 8, 4), dtype=np.uint8), r"\(8, 8, 4\)"),
        (np.zeros((8,), dtype=np.uint8), r"\(8,\)"),
        (np.zeros((2, 900, 3), dtype=np.uint8), "900 x 2"),
    ],
)
def test_pixels_of_another_kind_are_refused(bad: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        embedder("short").embed([PICTURES[0], bad])


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    for name, said in (("text.png", "cannot be read as an image"), ("missing.png", "No such file")):
        with pytest.raises(BadInput, match=said) as raised:
            embedder("square").embed([tmp_path / name])
        assert name in str(raised.value)


def test_threads_are_given_back_whatever_happens(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        embedder("square").embed(PICTURES)
        assert torch.get_num_threads() == 2
        with pytest.raises(BadInput):
            embedder("square").embed([tmp_path / "missing.png"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- Batches ---


def test_large_images_go_through_in_smaller_batches() -> None:
    assert batch_of(0) == batch_of(64) > batch_of(65) == batch_of(224) > 0


def test_progress_is_reported_to_the_end(small_batches: None) -> None:
    reported: list[tuple[str, int, int]] = []
    architecture = FORMS["square"]
    read_and_embed(
        network(architecture),
        lambda rows, step: read_images([PICTURES[row] for row in rows], step, 3),
        len(PICTURES),
        architecture,
        CPU,
        lambda *progress: reported.append(progress),
    )
    assert reported == [("embedding", 3, 7), ("embedding", 6, 7), ("embedding", 7, 7)]


@for_each("count", [1, 3, 4, 7])
def test_outputs_are_the_same_in_any_number_of_batches(count: int, small_batches: None) -> None:
    model = network(Architecture("conv", 3, 20, 6))
    x = np.random.default_rng(0).integers(0, 256, (count, 23, 23, 3), dtype=np.uint8)
    found = outputs(model, x, 20, CPU)
    assert not model.training
    assert not found.requires_grad
    centred = torch.from_numpy(x[:, 2:22, 2:22].copy()).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        torch.testing.assert_close(found, model(centred), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        embed_samples(model, x, 20, CPU), torch.nn.functional.normalize(found, dim=1)
    )


# --- By name or from a folder ---


def test_a_pretrained_trunk_by_its_name_embeds_by_its_features() -> None:
    model = load("lite0")
    assert model.card["pretrained_on"] == "ImageNet-1k"
    assert model.model.architecture.size == 224
    z = model.embed(PICTURES[:3])
    assert z.shape == (3, 1280)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(load("lite0", "cpu").embed(PICTURES[2::-1])[::-1], z, atol=1e-5)


def test_a_trunk_by_name_may_take_grey_images() -> None:
    grey = [pixels[..., 0] for pixels in PICTURES[:2]]
    np.testing.assert_allclose(
        load("lite0", inputs=1).embed(grey), load("lite0").embed(grey), atol=1e-4
    )


@pytest.mark.parametrize("name", ["conv", "identity"])
def test_a_trunk_without_weights_of_its_own_cannot_embed(name: str) -> None:
    with pytest.raises(
        BadInput, match=f"the trunk '{name}' has no pretrained weights to embed with; .*lite0"
    ):
        load(name)


@pytest.mark.parametrize(
    ("name", "near"), [("lite_0", "'lite0'"), ("resnet5", "'resnet50'"), ("convv", "'conv'")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        BadInput, match=f"{name} is neither a model folder nor a trunk: .*did you mean .*{near}"
    ):
        load(name)


@every_form
def test_a_model_from_a_folder_embeds_as_the_one_that_was_put_there(
    form: str, tmp_path: Path, files: list[Path]
) -> None:
    model = embedder(form)
    write_model_folder(tmp_path / form, model.model, {"name": form})
    for name in (tmp_path / form, str(tmp_path / form)):
        found = load(name)
        assert found.card["name"] == form
        np.testing.assert_allclose(found.embed(files), model.embed(PICTURES), atol=1e-6)


def test_a_folder_of_other_things_is_refused_with_the_command_that_makes_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        BadInput, match=rf"is not a model folder \(no {CARD} in it\); `assay train --out"
    ):
        load(tmp_path)
    write_model_folder(tmp_path / "model", network(FORMS["square"]), {})
    (tmp_path / "model" / WEIGHTS).write_bytes(b"spoilt")
    with pytest.raises(BadInput, match="cannot be read as the weights of a model"):
        load(tmp_path / "model")
    with pytest.raises(BadInput, match=r"not a model folder, but holds 1: .* such as .*/model$"):
        load(tmp_path)


def test_a_store_is_refused_with_its_models(tmp_path: Path) -> None:
    (tmp_path / "format.json").write_text("{}")
    with pytest.raises(BadInput, match="is a run store without a model so far"):
        load(tmp_path)
    write_model_folder(tmp_path / "models" / "a", network(FORMS["square"]), {})
    with pytest.raises(BadInput, match=r"holds 1: give one of them, such as .*/models/a$"):
        load(tmp_path)


@for_each("name", [None, 3, ""])
def test_what_names_no_model_is_refused(name: Any) -> None:
    with pytest.raises(BadInput, match=f"the model is given as {name!r}; give a model folder"):
        load(name)


def test_images_for_a_model_of_vectors_are_refused_without_a_number_of_channels(
    files: list[Path],
) -> None:
    model = Embedder(network(Architecture("identity", 12, 0, 6)), {}, CPU)
    with pytest.raises(BadInput, match="takes vectors of 12 numbers, the data are images; give"):
        model.embed(files[0])
    np.savez(files[0].parent / "f.npz", z=np.ones((2, 12)))
    with pytest.raises(BadInput, match=r"is a file: write its kind before it, features:.*f\.npz"):
        model.embed(files[0].parent / "f.npz")


def test_class_folders_that_need_another_reader_say_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.heic").write_bytes(b"HEIC")
    monkeypatch.setattr("assay.data.given.missing_reader", lambda end: end and f"{end} needs x")
    monkeypatch.setattr("assay.data.given.images_in", lambda folder: [])
    with pytest.raises(BadInput, match=r"holds no images that can be read \(.heic needs x\)"):
        embedder("square").embed(tmp_path)


def test_a_broken_file_is_only_left_out_where_that_can_be_asked_for(files: list[Path]) -> None:
    model = embedder("square")
    files[2].write_bytes(b"no image")
    for embed, given in (
        (model.embed, files[2]),
        (model.embed, files),
        (model.embed, files[2].parent),
        (partial(assay.embed, model), files[2]),
    ):
        with pytest.raises(BadInput, match=r"2.png cannot be read as an image.*remove it$"):
            embed(given)
