"""Heads in closed form are searched, validated, reproduced and checked like other methods."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.data.packs import View
from assay.data.splits import folds_of_labels
from assay.errors import BadInput
from assay.fitters import Fitter, linear, parameters_of, pca
from assay.losses.loss import Method, methods
from assay.methods import defaults, describe, fitter_of, read_parameters, space_of
from assay.metrics import evaluate
from assay.model import Model
from assay.run import compute, train_on_all
from assay.space import Real, Space
from heads import PROTOCOL, VIEW, runs_of
from miniature import MINI
from options import set_options

MINE = '''
import torch

from assay.fitters import linear
from assay.methods import Method, Paper, Real, Space, methods


def class_means(features_NF, y_N, width, *, shrink: float = 0.5):
    """Project onto the directions of the class means.

    W = U^T of the shrunk means, by their singular values.

    Args:
        shrink: how far the means move towards their mean.
    """
    exact_NF = features_NF.double()
    centre_F = exact_NF.mean(0)
    means_CF = torch.stack([exact_NF[y_N == label].mean(0) for label in y_N.unique()]) - centre_F
    directions = torch.linalg.svd((1 - shrink) * means_CF + shrink * means_CF.mean(0)).Vh
    return linear(directions[: min(width, len(means_CF) - 1)], centre_F)


methods.add(
    Method(
        "class_means",
        None,
        fitter=class_means,
        space=Space(shrink=Real(0, 0.9)),
        cited=Paper("The use of multiple measurements", 1936, "example.org/fisher"),
        about="a linear map to the span of the class means",
    )
)
'''


def by_labels(features_NF: Tensor, y_N: Tensor, width: int, *, scale: float = 1.0) -> nn.Linear:
    """Look at features and labels, so that a change of either changes the head."""
    seen.append((len(features_NF), tuple(y_N.tolist())))
    weight = torch.zeros(width, features_NF.shape[1], dtype=torch.float64)
    weight[:, :width] = torch.eye(width) * scale
    weight[0] += (features_NF.double() * y_N[:, None]).mean(0)
    return linear(weight, features_NF.double().mean(0))


seen: list[tuple[int, tuple[int, ...]]] = []


@pytest.fixture(autouse=True)
def method() -> Iterator[Method]:
    seen.clear()
    made = Method("by_labels", None, fitter=by_labels, space=Space(scale=Real(0.5, 2)))
    methods.add(made)
    yield made
    methods.forget(__name__)


def head_of(view: View, fold: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    [found] = compute([runs_of("by_labels")[fold]], view)
    assert (len(found.history), found.best.epoch, found.status) == (1, 0, "finished")
    return found.weights, dict(found.best.validation)


def test_a_head_is_fitted_to_the_rows_that_its_fold_trains_on_and_validated_on_the_others() -> None:
    for number, fold in enumerate(folds_of_labels(VIEW.y, 4)):
        weights, scores = head_of(VIEW, number)
        assert seen[-1] == (len(fold.train), tuple(VIEW.y[fold.train].tolist()))
        x = torch.from_numpy(VIEW.x[fold.validation])
        z = x @ weights["head.weight"].T + weights["head.bias"]
        expected = evaluate(z / z.norm(dim=1, keepdim=True), VIEW.y[fold.validation])
        assert scores["map_at_r"] == pytest.approx(expected["map_at_r"], abs=1e-6)


def test_nothing_of_the_validation_fold_reaches_its_head() -> None:
    held = folds_of_labels(VIEW.y, 4)[1].validation
    x = VIEW.x.copy()
    x[held] = np.random.default_rng(0).normal(size=x[held].shape)
    for name, weight in head_of(VIEW, 1)[0].items():
        assert torch.equal(weight, head_of(View(x, VIEW.y), 1)[0][name])
        assert not torch.equal(weight, head_of(View(x, VIEW.y), 0)[0][name])


def test_a_head_that_is_not_finite_is_a_divergence() -> None:
    x = VIEW.x.copy()
    x[0] = np.inf
    [found] = compute([runs_of("by_labels")[1]], View(x, VIEW.y))
    assert found.status == "diverged" and found.best.validation["map_at_r"] == 0


def test_a_head_may_have_no_bias() -> None:
    def plain(features_NF: Tensor, y_N: Tensor, width: int) -> nn.Linear:
        return nn.Linear(features_NF.shape[1], width, bias=False)

    methods.add(Method("plain", None, fitter=plain, space=Space()))
    [found] = compute([runs_of("plain")[0]], VIEW)
    model = Model(found.architecture)
    model.load_state_dict(found.weights)
    assert set(found.weights) == {"head.weight"}


@pytest.mark.parametrize("name", ["linear", "none", None])
def test_a_fitter_has_a_name_that_says_what_it_is(name: str | None) -> None:
    """`linear` is the word for a head that is trained by steps."""

    def other(features_NF: Tensor, y_N: Tensor, width: int) -> nn.Linear:
        return pca(features_NF, y_N, width)

    other.__name__ = name or "other"
    fitter = partial(other) if name is None else other
    with pytest.raises(ValueError, match=r"^m: the head of its models is called .*; rename it$"):
        Method("m", None, Space(), fitter=fitter)


def test_a_head_for_all_classes_is_fitted_on_all_of_them() -> None:
    run = replace(runs_of("by_labels")[0], fold=None)
    model, found = train_on_all(run, VIEW, 0, 10)
    assert seen == [(len(VIEW.y), tuple(VIEW.y.tolist()))]
    assert model.architecture.dim == PROTOCOL.dim and found.status == "finished"


def test_parameters_go_to_the_fitter_and_nothing_of_training_is_searched() -> None:
    with_rates = replace(PROTOCOL, space=Space(lr=Real(1e-6, 1, log=True)))
    method = methods["by_labels"]
    assert space_of(method, with_rates) == method.space
    assert defaults(method, with_rates) == {"scale": 1.0} == parameters_of(by_labels)
    assert read_parameters(method, PROTOCOL, ["scale=2"]) == {"scale": 2.0}
    with pytest.raises(BadInput, match="by_labels has no parameter 'lr'"):
        read_parameters(method, PROTOCOL, ["lr=0.1"])
    fit = fitter_of(method, {"scale": 2.0})
    assert fit is not None and fitter_of(methods["as_is"], {}) is None
    assert fit(torch.zeros(4, 3), torch.arange(4), 2).weight[1].tolist() == [0.0, 2.0, 0.0]


def test_pca_at_its_width_is_the_baseline_pretrained_in_fewer_rows() -> None:
    assert methods["pretrained"].fitter is pca and describe(methods["pretrained"])["baseline"]
    few = pca(torch.randn(3, 10), torch.zeros(3), 8)
    assert few.out_features == 2


def test_a_fitter_of_ones_own_is_benched_and_every_number_of_it_is_checked(
    tmp_path: Path, assay: Callable[..., Any], mini_features: Path, as_before: None
) -> None:
    mine, store = tmp_path / "mine.py", tmp_path / "store"
    mine.write_text(MINE)
    data = f"features:{mini_features}"
    words = ["--import", mine, "--methods", "class_means,triplet", "--engine", "inline"]
    code, out, err = assay(
        "bench", "--data", data, "--out", store, *words, *set_options((*MINI, "prune=0.5"))
    )
    assert code == 0, err
    assert "class_means" in out
    code, out, err = assay("verify", store, "--data", data, "--import", mine, "--rerun", "2")
    assert code == 0, out
    out_model = tmp_path / "model"
    train = ["train", "--data", data, "--import", mine, "--method", "class_means"]
    code, _, err = assay(*train, "--param", "shrink=0.2", "--out", out_model, *set_options(MINI))
    assert code == 0, err
    code, out, err = assay("list", "methods", "--import", mine)
    assert code == 0 and "1936" in out


@pytest.mark.parametrize(
    ("fitter", "problem"),
    [
        (lambda x, y, width: nn.Linear(x.shape[1], width + 1), r"its head has 9 outputs"),
        (lambda x, y, width: 1 / 0, "ZeroDivisionError"),
        (lambda x, y, width: None, "its fitter returned a NoneType; return a torch.nn.Linear"),
        (lambda x, y, width: nn.Linear(x.shape[1] + 1, width), "its head takes 129 numbers"),
        (lambda x, y, width: linear(torch.full((2, x.shape[1]), torch.nan), x.mean(0)), "NaN"),
    ],
)
def test_a_fitter_that_fails_is_refused_before_anything_is_announced(
    fitter: Fitter,
    problem: str,
    tmp_path: Path,
    mini_features: Path,
    assay: Callable[..., Any],
) -> None:
    methods.add(Method("failing", None, fitter=fitter, space=Space()))
    store = tmp_path / "store"
    words = ["--methods", "failing", "--engine", "inline", *set_options(MINI)]
    code, _, err = assay("bench", "--data", f"features:{mini_features}", "--out", store, *words)
    assert code == 2 and problem in err and not (store / "studies").exists()
