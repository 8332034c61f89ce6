"""`assay export` on the command line: models, indexes, and what the model card says of them."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.embedder import Embedder, load
from assay.index import Index
from assay.index.export.model_card import model_card, scores_of_study
from assay.index.export.record import Export, Preprocessing
from assay.model import CARD, write_model_folder
from assay.records.run import FinalTraining, ModelCard, ScoreInterval
from assay.records.store import Store
from assay.records.study import study_records
from assay.stats import t_interval
from miniature import MINI, make_folder
from options import set_options
from test_cli_models import make
from test_embed import network, picture
from test_export import CPU, KINDS

WORDS = ("--to", "onnx")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a folder with a model, `birds-model`, and images, `birds`."""
    folder = tmp_path_factory.mktemp("place")
    write_model_folder(folder / "birds-model", network(KINDS["cosine"]), {})
    write_model_folder(folder / "rows-model", network(KINDS["vectors"]), {})
    (folder / "birds").mkdir()
    for number in range(12):
        Image.fromarray(picture(30 + number, 40, number)).save(folder / "birds" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return the store of a finished bench."""
    folder = tmp_path_factory.mktemp("bench")
    data = f"folder:{make_folder(folder / 'mini')}"
    words = ["--data", data, "--methods", "triplet,untrained", "--out", folder / "store"]
    make("bench", "--engine", "inline", *words, *set_options((*MINI, "folds=4")))
    return folder / "store"


def test_a_model_is_exported_and_the_result_is_printed(assay, place):
    code, out, err = assay("export", place / "birds-model", *WORDS, "--check-on", place / "birds")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert re.fullmatch(r"birds-model-onnx/model.onnx: \d\S* kB, for onnxruntime .*", first)
    assert re.match(
        r"checked against torch on 12 samples \(birds\): numbers differ by at most \de-0[678]"
        r" \(allowed: 0.0001\); \d+\.\d times as fast",
        second,
    )
    assert {path.name for path in Path("birds-model-onnx").iterdir()} == {
        "README.md", "example.py", "export.json", "model.onnx", "preprocessing.json",
    }  # fmt: skip


def test_weights_of_8_bits_are_described(assay, place):
    words = ["--check-on", place / "birds", "--quantise", "int8", "--out", "small"]
    code, out, _ = assay("export", place / "birds-model", *WORDS, *words)
    assert code == 0
    said = r"with weights of 8 bits: \d\.\d times smaller, cosines to torch's embeddings 0\.9\d+ at"
    assert re.match(said, out.splitlines()[2])


def test_programs_get_the_record(assay, place):
    code, out, _ = assay("export", place / "rows-model", *WORDS, "--json")
    found = json.loads(out)
    assert code == 0 and found.pop("out") == "rows-model-onnx"
    assert Export.from_json(found, "stdout") == Export.read_from(Path("rows-model-onnx"))
    assert found["checked_on"] == "vectors of noise"


def test_an_index_is_searched_by_onnx_after_an_export(assay, place):
    Index.build(place / "birds-model", place / "birds", "INDEX").close()
    query = place / "birds" / "3.png"
    with (
        Index.open("INDEX", runtime="onnx") as index,
        pytest.raises(ValueError, match="make it: assay export INDEX --to onnx"),
    ):
        index.search(query)
    code, out, _ = assay("export", "INDEX", *WORDS)
    assert code == 0 and "on 12 samples (INDEX, the images of the index)" in out
    with Index.open("INDEX") as torch_index, Index.open("INDEX", runtime="onnx") as onnx_index:
        expected, found = torch_index.search(query, 5), onnx_index.search(query, 5)
        assert onnx_index.encoder.print == torch_index.manifest.model.print
    assert [one.id for one in found.matches] == [one.id for one in expected.matches]
    scores = [[one.score for one in some.matches] for some in (found, expected)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    code = (
        "import sys; from assay.cli import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    words = ["search", "INDEX", query, "--runtime", "onnx", "-k", "2"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0 and "3.png" in done.stdout, done.stderr


# --- Errors ---


def test_what_is_no_model_is_refused(assay, place):
    (place / "empty").mkdir(exist_ok=True)
    for given, said in (
        ("nothing", "nothing is neither a model folder nor a trunk"),
        (place / "empty", "is not a model folder"),
        ("conv", "the trunk 'conv' has no pretrained weights"),
    ):
        code, out, err = assay("export", given, *WORDS)
        assert code == 2 and said in err and not out


def test_an_export_that_is_there_is_replaced_with_force_only(assay, place):
    words = ["export", place / "rows-model", *WORDS]
    assert assay(*words)[0] == 0
    code, _, err = assay(*words)
    assert code == 2 and "rows-model-onnx is there already; give another --out" in err
    assert assay(*words, "--force")[0] == 0


def test_a_model_folder_is_never_replaced_by_its_export(assay, place):
    words = ["--out", place / "birds-model", "--force"]
    code, _, err = assay("export", place / "birds-model", *WORDS, *words)
    assert code == 2 and "is no export" in err and (place / "birds-model" / CARD).exists()


def test_images_that_are_not_there_are_refused(assay, place):
    code, _, err = assay("export", place / "birds-model", *WORDS, "--check-on", "bees")
    assert code == 2 and "there is no bees" in err and not list(Path().iterdir())


def test_only_known_forms_are_taken(assay, place):
    code, _, err = assay("export", place / "birds-model", "--to", "pickle")
    assert code == 2 and "'pickle' is not" in err
    assert assay("export", place / "birds-model")[0] == 2


# --- The model card ---


def card_of(embedder: Embedder, folder: Path) -> str:
    """Return the card of an export with made-up figures; nothing is computed."""
    measured = {
        "difference": 1e-7, "least_cosine": 1.0, "mean_cosine": 1.0, "same_nearest": 1.0,
        "speed": 2.0,
    }  # fmt: skip
    export = Export.from_json(
        {
            "name": str(folder), "print": "0" * 64, "trunk": embedder.model.architecture.trunk,
            "opset": 18, "samples": 9, "checked_on": "birds", "batches": [1, 2],
            "float32": measured, "float32_bytes": 100, "quantised": None, "int8": None,
            "versions": {"assay-dml": "1", "torch": "2"}, "files": {},
        },
        "test",
    )  # fmt: skip
    about = Preprocessing(
        embedder.takes, embedder.inputs, "square", 8, 8, "pixels", "uint8", "(batch, 8, 8, 3)",
        "z", "float32", embedder.dim, embedder.similarity, True, ("Do this.",),
    )  # fmt: skip
    return model_card(embedder, export, about, 50)


def test_the_card_of_a_model_of_a_store_has_its_scores_with_intervals(store):
    (folder,) = [one for one in Store(store).models() if "triplet" in one.name]
    model = load(folder, "cpu")
    card = ModelCard.from_json(model.card, "card")
    (record,) = [one for one in study_records(Store(store)) if one.key == card.study]
    text = card_of(model, folder)
    for metric, called in (("map_at_r", "MAP@R"), ("precision_at_1", "P@1 (R@1)")):
        found = t_interval(record.units("separated", metric))
        row = (
            f"| {called} | {100 * found.mean:.1f} | {100 * found.low:.1f} to {100 * found.high:.1f}"
        )
        assert f"{row} | {found.n} |" in text
    assert f"- Method: triplet; parameters: margin={card.parameters['margin']}" in text
    assert f"Fold {card.fold} of 4 was held out" in text and card.study in text
    assert "Validation scores of this model, by which its checkpoint was chosen, so" in text
    assert "The trunk began with random weights" in text
    assert f"{len(card.classes)} classes: {card.classes[0]}" in text


def test_a_model_outside_its_store_has_no_interval_that_nobody_checked(store, tmp_path):
    (folder,) = [one for one in Store(store).models() if "triplet" in one.name]
    away = replace(load(folder, "cpu"), folder=tmp_path / "models" / "copy")
    assert scores_of_study(away, ModelCard.from_json(away.card, "card")) == {}
    text = card_of(away, folder)
    assert "95% interval" not in text and "Test scores of the reproduction" in text


def test_the_card_of_a_final_model_has_the_scores_of_its_study(store):
    (folder,) = [one for one in Store(store).models() if "triplet" in one.name]
    model = load(folder, "cpu")
    card = ModelCard.from_json(model.card, "card")
    scores = {
        "map_at_r": ScoreInterval(0.5, 0.4, 0.6, 10),
        "precision_at_1": ScoreInterval(0.7, None, None, 1),
    }
    final = FinalTraining(
        test="t", samples="s", epochs=3, best_epochs=(3,), scores=scores, note="It has none."
    )
    given = replace(model, card=replace(card, final=final, fold=None).to_json())
    text = card_of(given, folder)
    assert "| MAP@R | 50.0 | 40.0 to 60.0 | 10 |" in text
    assert "| P@1 (R@1) | 70.0 | none, from one value | 1 |" in text
    assert "It has none." in text and "Validation scores" not in text
    assert "On all classes, the test half too, for 3 epochs" in text


def test_what_is_not_recorded_is_called_unknown():
    text = card_of(Embedder(network(KINDS["cosine"]), {}, CPU), Path("m"))
    assert "its licence is unknown" in text and "Its card names no training" in text
    assert "Its card has no scores" in text
    seen = {"weights": "a" * 64, "pretrained_on": "ImageNet-1k"}
    text = card_of(Embedder(network(KINDS["cosine"]), seen, CPU), Path("m"))
    assert "- Pretrained on: ImageNet-1k" in text and "- Licence: unknown" in text
    assert "Source: unknown" in text


def test_the_card_of_a_pretrained_trunk_names_its_licence():
    text = card_of(load("lite0", "cpu"), Path("lite0"))
    assert "- Licence: Apache Software License 2.0, as the package" in text
    assert "- Source: efficientnet-lite0-57934424.pth (PyPI: " in text
    assert "- Pretrained on: ImageNet-1k" in text
