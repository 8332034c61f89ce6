"""Heads of several parts, and the two methods whose heads have a form of their own: their shape
stays with a model from its training to the vectors of `assay embed`.
"""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import assay as package
from assay.data import load
from assay.data.origin import FeaturesOrigin
from assay.data.packs import View
from assay.hashing import canonical
from assay.heads import HeadShape, joined
from assay.losses import losses
from assay.losses.dreml import DREML
from assay.losses.loss import Loss
from assay.methods import BuiltMethod
from assay.model import (
    Architecture,
    Model,
    head_of,
    join_trunk,
    read_model_folder,
    untrained_model,
    with_trunk,
    write_model_folder,
)
from assay.protocols import Optimiser, Protocol, ResolvedProtocol, customise, protocols, resolve
from assay.records.store import Store
from assay.records.study import study_records
from assay.run.training import make_trainee
from assay.study import finished_studies, newest_of, plan_bench, train_final
from assay.train import Drawn, Fit, OneNetwork, Trainee, fit
from assay.trunks import trunk_facts
from assay.trunks.weights import resolve_weights
from equations import REFERENCE, Case, Row, dot, unit
from heads import CPU, PROTOCOL, VIEW, runs_of, vectors
from loops import for_each
from miniature import MINI

PARTS = HeadShape((3, 2, 1), weights=(1.0, 2.0, 0.5))
DROPPING = HeadShape((5,), layer_norm=True, bias=False, dropout=0.5)
SHAPES = {"parts": PARTS, "equal parts": HeadShape((3, 3)), "dropout": DROPPING}
ON_VECTORS = Architecture("identity", 7, 0, 0)


def model_of(shape: HeadShape, bare: Architecture = ON_VECTORS) -> Model:
    torch.manual_seed(0)
    return Model(bare.with_head(shape)).eval()


def samples(count: int = 6) -> Tensor:
    return torch.randn(count, 7, generator=torch.Generator().manual_seed(1))


# --- Parts joined ---


def cosine(a: Row, b: Row) -> float:
    """Return 0 where one of both has no direction."""
    return dot(unit(a), unit(b)) if any(a) and any(b) else 0.0


@given(
    parts=st.lists(st.tuples(st.integers(1, 4), st.floats(0.01, 100)), min_size=1, max_size=4),
    weighted=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_similarity_of_joined_vectors_is_the_weighted_mean_of_the_cosines_of_their_parts(
    parts: list[tuple[int, float]], weighted: bool, seed: int
) -> None:
    widths = [width for width, _ in parts]
    weights = [weight for _, weight in parts] if weighted else []
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(2, sum(widths), generator=draw, dtype=torch.float64)
    split = torch.split(z, widths, dim=1)
    split[int(torch.randint(len(widths), (), generator=draw))][0] = 0  # a part without a direction
    found = joined(z, tuple(widths), tuple(weights))
    shares = weights or [1.0] * len(widths)
    cosines = [cosine(part[0].tolist(), part[1].tolist()) for part in split]
    expected = dot(shares, cosines) / math.fsum(shares)
    assert (found[0] @ found[1]).item() == pytest.approx(expected, abs=1e-12)
    assert found[1].norm().item() == pytest.approx(1)


def test_parts_come_raw_in_training_and_joined_in_evaluation() -> None:
    model, x = model_of(PARTS), samples()
    raw = F.linear(x, model.head.weight, model.head.bias)
    assert torch.equal(model.train()(x), raw)
    found = model.eval()(x)
    assert torch.equal(found, joined(raw, PARTS.parts, PARTS.weights))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(6))


def test_a_head_of_one_part_is_a_usual_head_to_the_bit() -> None:
    for shape in (HeadShape((5,)), HeadShape((5,), weights=(3.0,))):
        model, x = model_of(shape), samples()
        assert model.architecture == replace(ON_VECTORS, dim=5)
        raw = F.linear(x, model.head.weight, model.head.bias)
        assert torch.equal(model.train()(x), raw)
        assert torch.equal(model.eval()(x), raw)


def test_the_header_of_a_usual_model_is_what_it_was_before_there_were_parts() -> None:
    """Hashes of stored weights depend on it."""
    assert canonical(Architecture("conv", 3, 20, 5).described) == (
        '{"dim":5,"inputs":3,"layer_norm":false,"pooling":"avg","resize":"square","size":20,'
        '"stored":0,"trunk":"conv"}'
    )


def test_the_header_names_what_is_unusual_about_a_head() -> None:
    usual = replace(ON_VECTORS, dim=6).described
    assert {
        name: value
        for name, value in ON_VECTORS.with_head(PARTS).described.items()
        if usual.get(name) != value
    } == {"parts": [3, 2, 1], "part_weights": [1.0, 2.0, 0.5]}
    assert {
        name: value
        for name, value in ON_VECTORS.with_head(replace(DROPPING, parts=(6,))).described.items()
        if usual.get(name) != value
    } == {"layer_norm": True, "bias": False, "dropout": 0.5}


@for_each(
    ("wrong", "said"),
    [
        ({"parts": ()}, "at least one number each"),
        ({"parts": (3, 0)}, r"at least one number each, got \(3, 0\)"),
        ({"parts": (3, 2), "weights": (1.0,)}, "2 parts has as many weights above 0"),
        ({"parts": (3, 2), "weights": (1.0, 0.0)}, "weights above 0"),
        ({"parts": (3, 2), "weights": (1.0, math.nan)}, "weights above 0"),
        ({"parts": (3, 2), "weights": (1.0, math.inf)}, "weights above 0"),
        ({"parts": (3,), "dropout": 1.0}, "dropout is at least 0 and below 1"),
        ({"parts": (3,), "dropout": -0.1}, "dropout is at least 0 and below 1"),
    ],
    ids=str,
)
def test_a_head_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HeadShape(**wrong)


# --- The shape of a head stays with the model ---


@for_each("name", list(SHAPES))
def test_a_folder_gives_back_a_model_with_its_head(name: str, tmp_path: Path) -> None:
    model, x = model_of(SHAPES[name]), samples()
    folder = tmp_path / name
    write_model_folder(folder, model, {})
    found = read_model_folder(folder)[0].eval()
    assert found.architecture == model.architecture
    assert torch.equal(found(x), model(x))


@for_each("name", list(SHAPES))
def test_a_head_keeps_its_shape_with_its_trunk_and_without_it(name: str) -> None:
    protocol = resolve(
        Protocol("p.v1", trunk="lite0", size=64, stored=70, dim=6), "photo", trunk_facts
    )
    head = model_of(SHAPES[name], Architecture.under(protocol, 1280))
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    kept = resolve_weights("lite0", "pretrained")
    assert kept is not None
    origin = FeaturesOrigin("lite0", kept.digest, 3, 64, "avg", "square", 70, False, "", "", "")
    for whole in (with_trunk(head, protocol, 3), join_trunk(head, origin)):
        assert whole.architecture.with_head_of(Architecture("identity", 1, 0, 0)) != (
            whole.architecture
        )
        alone = head_of(whole)
        assert alone.architecture == head.architecture
        with torch.no_grad():
            features = whole.eval().features(images)
            assert torch.equal(whole(images), head(features))
            assert torch.equal(alone.eval()(features), head(features))


# --- Dropout and standardised features ---


def test_dropout_sets_half_of_the_outputs_to_zero_in_training_only() -> None:
    model, x = model_of(replace(DROPPING, parts=(64,))), samples(100)
    whole, dropped = model(x), model.train()(x)
    zero = dropped == 0
    assert zero.float().mean().item() == pytest.approx(0.5, abs=0.03)
    torch.testing.assert_close(dropped[~zero], 2 * whole[~zero])
    assert not torch.equal(model(x), dropped)
    assert torch.equal(model.eval()(x), whole)
    assert whole.ne(0).all()


def test_a_loss_has_features_standardised_where_the_protocol_does_not() -> None:
    assert not PROTOCOL.layer_norm
    model = make_trainee(runs_of("proxy_softmax")[0], VIEW).model.eval()
    x = torch.from_numpy(VIEW.x)
    torch.testing.assert_close(model(3 * x + 2), model(x), rtol=1e-4, atol=1e-5)
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]


# --- DREML ---


def dreml(dim: int, classes: int, **own: int) -> DREML:
    loss = DREML(**own)
    loss.setup(dim, classes)
    return loss


@for_each("classes", [1, 3, 12, 13, 75, 100])
@for_each("meta_classes", [2, 5, 12])
def test_meta_classes_are_even_and_differ_from_member_to_member(
    classes: int, meta_classes: int
) -> None:
    groups_LC = dreml(10 * meta_classes, classes, meta_classes=meta_classes).groups.T
    assert groups_LC.shape == (10, classes)
    for groups in groups_LC.tolist():
        sizes = Counter(groups)
        counts = [sizes[group] for group in range(meta_classes)]
        assert sum(counts) == classes
        assert max(counts) - min(counts) <= 1
    if classes > 12:
        assert len({tuple(groups) for groups in groups_LC.tolist()}) == 10


def test_each_pair_of_classes_is_in_one_meta_class_about_as_often_as_any_other() -> None:
    """Of 12 classes in 4 groups of 3, a class shares its group with 2 of 11 others."""
    groups_CL = dreml(4 * 2000, 12, meta_classes=4).groups
    together_CC = (groups_CL[:, None] == groups_CL).double().mean(2)
    apart = together_CC[~torch.eye(12, dtype=torch.bool)]
    assert (apart - 2 / 11).abs().max() < 0.05


def test_the_seed_decides_on_the_meta_classes() -> None:
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(dreml(144, 75).groups)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_member_is_a_part_of_the_head_and_as_many_fit_as_the_dims_have_room_for() -> None:
    assert DREML().head(144).parts == (12,) * 12
    assert DREML(meta_classes=48).head(144).parts == (48,) * 3
    assert DREML(meta_classes=5).head(18).parts == (5,) * 3
    assert DREML(meta_classes=12).head(7).parts == (7,)
    assert DREML(members=1).head(144).parts == (12,)
    assert DREML(members=20).head(144).parts == (12,) * 12


def test_one_member_with_a_meta_class_for_each_class_is_a_softmax_over_renamed_classes() -> None:
    z, y = torch.randn(20, 9, dtype=torch.float64), torch.arange(20) % 9
    loss = dreml(9, 9, meta_classes=9)
    renamed = loss.groups[:, 0]
    assert sorted(renamed.tolist()) == list(range(9))
    torch.testing.assert_close(loss(z, y), F.cross_entropy(z, renamed[y]))


@given(seed=st.integers(0, 2**31), meta_classes=st.integers(2, 6), dim=st.integers(2, 20))
@settings(max_examples=30, deadline=None)
def test_several_members_match_their_equation(seed: int, meta_classes: int, dim: int) -> None:
    torch.manual_seed(seed)
    loss = dreml(dim, 7, meta_classes=meta_classes)
    z, y = torch.randn(8, dim, dtype=torch.float64), torch.randint(7, (8,))
    case = Case(z.tolist(), y.tolist(), [], [], [], [], [])
    expected = REFERENCE["dreml"](case, {"groups": loss.groups.tolist()}, meta_classes)
    assert loss(z, y).item() == pytest.approx(expected, rel=1e-9)


def test_a_member_learns_with_others_what_it_learns_alone() -> None:
    loss, z, y = dreml(12, 9, meta_classes=4), torch.randn(8, 12), torch.arange(8)
    z.requires_grad_()
    (slope,) = torch.autograd.grad(loss(z, y), z)
    for member in range(3):
        alone, own = dreml(4, 9, meta_classes=4), slice(4 * member, 4 * member + 4)
        alone.groups.copy_(loss.groups[:, member : member + 1])
        (expected,) = torch.autograd.grad(alone(z[:, own], y), z)
        torch.testing.assert_close(slope[:, own], expected[:, own])


def test_similarity_of_an_ensemble_is_the_mean_of_the_cosines_of_its_members() -> None:
    protocol = replace(PROTOCOL, dim=14)
    run = replace(runs_of("dreml", protocol)[0], parameters={"meta_classes": 4})
    one = make_trainee(run, VIEW)
    [found] = fit([one], OneNetwork(protocol, run.batch, CPU))
    assert found.architecture.parts == (4, 4, 4)
    assert found.history[-1].loss is not None
    model = Model(found.architecture)
    model.load_state_dict(found.weights)
    x = torch.from_numpy(VIEW.x)
    with torch.no_grad():
        z, raw = model.eval()(x), model.head(x)
    cosines = [F.normalize(part) @ F.normalize(part).T for part in raw.split(4, dim=1)]
    torch.testing.assert_close(z @ z.T, torch.stack(cosines).mean(0))


# --- Smoothed labels ---


def proxy_softmax(proxies: Tensor, **own: float) -> Loss:
    loss = losses["proxy_softmax"](**own)
    loss.setup(proxies.shape[1], len(proxies))
    loss.weights.data = proxies
    return loss


def test_the_other_classes_share_the_smoothing() -> None:
    """A sample on its proxy, with one proxy at right angles and one opposite."""
    proxies = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    loss = proxy_softmax(proxies, temperature=1.0, smoothing=0.2)
    log_sum = math.log(math.e + 1 + 1 / math.e)
    expected = -0.8 * (1 - log_sum) - 0.1 * (0 - log_sum) - 0.1 * (-1 - log_sum)
    assert loss(torch.tensor([[5.0, 0.0]]), torch.tensor([0])).item() == pytest.approx(expected)


def test_smoothing_is_torchs_with_another_share() -> None:
    """Torch gives its share to all classes, the own one too."""
    proxies, z, y = torch.randn(5, 4), torch.randn(9, 4), torch.arange(9) % 5
    value = proxy_softmax(proxies)(z, y)
    logits = F.normalize(z) @ F.normalize(proxies).T / 0.05
    torch.testing.assert_close(value, F.cross_entropy(logits, y, label_smoothing=0.1 * 5 / 4))
    assert value.item() != pytest.approx(F.cross_entropy(logits, y, label_smoothing=0.1).item())


def test_without_smoothing_it_is_a_normalised_softmax() -> None:
    proxies, z, y = torch.randn(5, 4), torch.randn(9, 4), torch.arange(9) % 5
    other = losses["normalized_softmax"]()
    other.setup(4, 5)
    other.weights.data = proxies
    torch.testing.assert_close(proxy_softmax(proxies, smoothing=0.0)(z, y), other(z, y))


# --- The head first ---


class HeadFirst(losses["normalized_softmax"]):
    """A softmax whose head is trained before the trunk."""

    head_first = 1


def pictures(count: int = 24) -> View:
    x = np.random.default_rng(0).integers(0, 256, size=(count, 16, 16, 3), dtype=np.uint8)
    return View(x, np.arange(count) % 6)


ON_IMAGES = replace(
    PROTOCOL, trunk="conv", size=16, frozen="nothing", epochs=3, iterations=3, weights="none"
)


def trainee(
    loss: type[Loss], protocol: ResolvedProtocol, seen: list[dict[str, Tensor]] | None = None
) -> Trainee:
    """A model to train, whose weights at each validation are put into `seen`."""
    on_images = protocol.trunk != "identity"
    view = pictures() if on_images else VIEW
    torch.manual_seed(0)
    own = loss()
    shape = own.head(4)
    own.setup(4, len(np.unique(view.y)))
    bare = Architecture("conv", 3, 16, 0) if on_images else Architecture("identity", 10, 0, 0)
    keep = None if seen is None else lambda epoch, weights: seen.append(weights)
    return Trainee(
        untrained_model(bare.with_head(shape), "none"),
        BuiltMethod(own, None, 0.01, 0.01),
        view,
        np.arange(len(view.y)),
        view,
        seed=3,
        on_validation=keep,
    )


def train(loss: type[Loss], protocol: ResolvedProtocol) -> tuple[Fit, list[dict[str, Tensor]]]:
    seen: list[dict[str, Tensor]] = []
    torch.manual_seed(0)
    [found] = fit([trainee(loss, protocol, seen)], OneNetwork(protocol, (4, 4), CPU))
    return found, seen


@pytest.mark.parametrize("loss", [HeadFirst, losses["proxy_softmax"]])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_trunk_is_the_same_to_the_bit_after_the_first_epoch_and_trained_later(
    loss: type[Loss], kind: Any
) -> None:
    """With a weight decay, which moves weights without a gradient too."""
    protocol = replace(ON_IMAGES, optimiser=Optimiser(lr=0.01, kind=kind, weight_decay=0.1))
    start, first, second, _ = train(loss, protocol)[1]
    of_trunk = [name for name in start if name.startswith("trunk.")]
    assert any("running_mean" in name for name in of_trunk)
    assert all(torch.equal(first[name], start[name]) for name in of_trunk)
    assert not torch.equal(first["head.weight"], start["head.weight"])
    assert not any(torch.equal(second[name], first[name]) for name in of_trunk)


def test_a_trunk_is_trained_from_the_first_epoch_on_where_the_loss_does_not_say_otherwise() -> None:
    start, first, *_ = train(losses["normalized_softmax"], ON_IMAGES)[1]
    assert not any(torch.equal(first[name], start[name]) for name in start)


def test_the_trunk_begins_after_its_epoch_also_without_a_validation_there() -> None:
    each, rarely = (
        train(HeadFirst, replace(ON_IMAGES, validate_every=every, epochs=4))[1] for every in (1, 4)
    )
    assert len(each) == 5 and len(rarely) == 2
    assert all(torch.equal(each[-1][name], rarely[-1][name]) for name in each[-1])


@pytest.mark.parametrize("protocol", [ON_IMAGES, PROTOCOL], ids=["images", "vectors"])
def test_the_optimiser_begins_anew_after_the_first_epoch(protocol: ResolvedProtocol) -> None:
    """Adam counts the steps since it began."""
    protocol = replace(protocol, iterations=3, optimiser=Optimiser(lr=0.01, kind="adam"))
    one = trainee(HeadFirst, protocol)
    stepper, rows = OneNetwork(protocol, (4, 4), CPU), np.arange(16)
    stepper.open(1, 9)
    stepper.add(0, one, done=0)
    counted = []
    for _ in range(5):
        stepper.step({0: Drawn(rows, one.view.y[rows])})
        tensors = stepper.state(0).part("optimiser").tensors
        counted.append({value.item() for name, value in tensors.items() if name.endswith(".step")})
    assert counted == [{1}, {2}, {3}, {1}, {2}]


def test_learning_rates_go_on_when_the_optimiser_begins_anew() -> None:
    """On a frozen trunk, an optimiser that gathers nothing has nothing to begin anew with."""
    cosine = Optimiser(lr=0.1, kind="sgd", momentum=0.0, schedule="cosine")
    protocol = replace(PROTOCOL, optimiser=cosine, epochs=4)
    found, usual = (train(loss, protocol) for loss in (HeadFirst, losses["normalized_softmax"]))
    assert found[0].history == usual[0].history
    assert all(torch.equal(found[1][-1][name], usual[1][-1][name]) for name in usual[1][-1])


# --- From a bench to vectors ---

BENCHED = ("dreml", "dreml_one", "proxy_softmax")
LEARNS = (*MINI, "dim=96", "iterations=30", "epochs=4")
"""Settings under which trained heads are better than random ones, and an ensemble has members."""


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of features and the store of a bench on it."""
    root = tmp_path_factory.mktemp("heads")
    file, small = root / "f.npz", customise(protocols["quick"], LEARNS)
    view = vectors(classes=48)
    np.savez(file, z=view.x, y=view.y)
    package.bench(f"features:{file}", BENCHED, small, root / "store", engine="inline")
    return file, root / "store"


def test_a_bench_of_such_heads_is_verified_with_runs_computed_again(
    assay: Any, benched: tuple[Path, Path]
) -> None:
    file, store = benched
    code, out, err = assay(
        "verify", store, "--data", f"features:{file}", "--rerun", "100", "--engine", "inline"
    )
    assert code == 0, out + err
    assert "DIFFERENT" not in out


def test_a_plan_times_steps_that_train_the_trunk_too(
    benched: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the head alone take less time."""
    timed, add = [], OneNetwork.add

    def watched(self: OneNetwork, number: int, one: Trainee, done: int) -> Any:
        timed.append(done)
        return add(self, number, one, done)

    monkeypatch.setattr(OneNetwork, "add", watched)
    small = customise(protocols["quick"], LEARNS)
    for method in ("normalized_softmax", "proxy_softmax"):
        plan_bench(f"features:{benched[0]}", [method], small, workers=1)
    assert timed == [0, 30]


@pytest.mark.parametrize("method", BENCHED)
def test_the_model_of_a_study_embeds_as_its_run_did(
    assay: Any, benched: tuple[Path, Path], method: str, tmp_path: Path
) -> None:
    file, root = benched
    store = Store(root)
    record = next(one for one in study_records(store) if one.method == method)
    [folder] = (root / "models").glob(f"*-{method}-*")
    model = package.load(folder)
    test = next(one for one in record.tests if model.card["run"] in one.runs)
    of_run = np.load(store.test_vectors(model.card["run"], test.test))
    code, _, err = assay("embed", folder, f"features:{file}", "--out", tmp_path / "z.npz")
    assert code == 0, err
    with np.load(tmp_path / "z.npz") as found:
        z, y = found["z"], found["y"]
    half = np.isin(y, np.unique(y)[24:])
    np.testing.assert_allclose(z[half], of_run, atol=1e-6)


@pytest.mark.parametrize("method", BENCHED)
def test_a_final_model_has_the_head_of_the_models_of_its_study(
    benched: tuple[Path, Path], method: str, tmp_path: Path
) -> None:
    file, root = benched
    finished = newest_of(finished_studies(Store(root), load(f"features:{file}")), method)
    train_final(finished, tmp_path / "final")
    [folder] = (root / "models").glob(f"*-{method}-*")
    final, own = package.load(tmp_path / "final"), package.load(folder)
    assert final.model.architecture == own.model.architecture
    assert final.model.architecture.described.keys() & {"parts", "dropout"} == {
        "dreml": {"parts"}, "dreml_one": set(), "proxy_softmax": {"dropout"},
    }[method]  # fmt: skip
