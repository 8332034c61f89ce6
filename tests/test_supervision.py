"""Training that knows no classes: two augmented views of an image are the only positives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data.packs import View
from assay.errors import BadInput
from assay.methods import methods
from assay.protocols import Augment, Protocol, protocols, resolve
from assay.records.run import Run
from assay.run import train_on_all
from assay.train import training_labels
from assay.trunks import trunk_facts
from heads import HERE
from loops import for_each
from miniature import MINI, make_features, make_folder
from options import set_options

ON_IMAGES = resolve(
    replace(
        protocols["quick"],
        supervision="images",
        size=16,
        dim=8,
        iterations=2,
        epochs=2,
    ),
    "photo",
    trunk_facts,
)


def pictures(y: np.ndarray) -> View:
    draw = np.random.default_rng(0)
    return View(draw.integers(0, 256, size=(len(y), 16, 16, 3), dtype=np.uint8), y)


def test_each_image_is_a_class_of_its_own() -> None:
    y = np.array([5, 5, 2, 2, 2])
    assert training_labels(y, "images").tolist() == [0, 1, 2, 3, 4]
    assert training_labels(y, "classes").tolist() == [1, 1, 0, 0, 0]


@for_each("name", ["nt_xent", "triplet_semihard", "normalized_softmax"])
def test_labels_of_training_samples_change_no_weight(name: str) -> None:
    """A forger who relabels them gains nothing; where classes are known, they decide."""
    y = np.repeat(np.arange(8), 5)
    orders = [y, np.random.default_rng(1).permutation(y), np.zeros(40, dtype=np.int64)]
    found = {}
    for supervision in ("images", "classes"):
        protocol = replace(ON_IMAGES, supervision=supervision)
        batch = protocol.batch_for(methods[name].batch, 40 if supervision == "images" else 8)
        run = Run(protocol, "view", name, "source", {}, batch, None, 3, HERE)
        weights = [
            train_on_all(run, pictures(one), 1, 3)[0].state()["head.weight"].numpy().tobytes()
            for one in (orders if supervision == "images" else orders[:1])
        ]
        found[supervision] = set(weights)
    assert len(found["images"]) == 1
    assert found["images"] != found["classes"]


@pytest.mark.parametrize(
    ("protocol", "modality", "remedy"),
    [
        (Protocol("p.v1"), "features", "the data are vectors.*; give images"),
        (
            Protocol("p.v1", trunk="lite0"),
            "photo",
            "the trunk is frozen.*; add --set frozen=nothing",
        ),
        (
            Protocol("p.v1", augment=Augment((1, 1), (0.8, 1.2), 0, 0, 0)),
            "photo",
            "changes nothing.*; set augment.area",
        ),
    ],
)
def test_two_views_that_would_be_the_same_are_refused(
    protocol: Protocol, modality: str, remedy: str
) -> None:
    with pytest.raises(BadInput, match=f"^--set supervision=images: .*{remedy}"):
        resolve(replace(protocol, supervision="images"), modality, trunk_facts)  # type: ignore[arg-type]


def test_no_method_may_know_more_than_the_others() -> None:
    with pytest.raises(BadInput, match=r"supervision=images.* changes the budget"):
        Protocol("p.v1", exceptions={"triplet": {"supervision": "images"}})


def test_a_bench_without_classes_is_scored_on_them_and_says_so(
    tmp_path: Path, assay: Callable[..., Any]
) -> None:
    data, store = f"folder:{make_folder(tmp_path / 'mini')}", tmp_path / "store"
    settings = set_options((*MINI, "supervision=images"))
    words = ["--methods", "nt_xent,normalized_softmax,proxy_nca", "--engine", "inline", *settings]
    code, *_ = assay("bench", "--data", data, "--out", str(store), *words)
    assert code == 0
    assert "training knew no classes" in (store / "report" / "index.html").read_text()
    code, *_ = assay("verify", str(store), "--data", data, "--rerun", "1")
    assert code == 0
    features = f"features:{make_features(tmp_path / 'features.npz')}"
    code, *said = assay("bench", "--data", features, "--out", str(tmp_path / "other"), *words)
    assert code == 2 and "give images" in "".join(said)
