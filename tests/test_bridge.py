"""Losses from elsewhere are what they were: value, gradient and parameters; and their source is in
the hash.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as theirs
from pytorch_metric_learning import miners as their_miners
from torch import Tensor, nn

from assay.errors import BadInput
from assay.hashing import digest
from assay.losses import losses
from assay.losses.adopt import Adopted, adopt, indices
from assay.losses.loss import Loss, Method, methods
from assay.methods import assemble, defaults, import_parts, source_of
from assay.miners.multi_similarity import MultiSimilarityMiner
from assay.miners.semihard import SemihardMiner
from assay.pairs import Pairs, References, Triplets, all_pairs, as_triplets
from assay.protocols import Optimiser, Protocol, resolve
from assay.records.source import foreign_hash, source_hash
from assay.records.store import Store
from assay.records.study import study_records
from assay.samplers import samplers
from assay.space import Real, Space
from assay.train import ReadBatch, optimiser_of, step
from assay.trunks import trunk_facts, trunks
from loops import for_each
from miniature import MINI, resolved
from options import set_options

DECLARED = Protocol("quick-like.v1", optimiser=Optimiser(lr=1e-3))
QUICK = resolved(DECLARED)
RESOLVED = resolve(DECLARED, "drawing", trunk_facts)
DIM, COUNT = 8, 4


class Compact(nn.Module):
    """Pulls all embeddings to one point, in words of its own."""

    def __init__(self, strength: float = 2.0) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.strength * embeddings.var(0).sum()


class Softmax(nn.Module):
    def __init__(self, inputs: int, outputs: int, smoothing: float = 0.1) -> None:
        super().__init__()
        self.classify = nn.Linear(inputs, outputs)
        self.compare = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.compare(self.classify(z), y)


class Weighted(nn.Module):
    """Has weights that depend on no data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.weight * z.square().mean()


class Gives(nn.Module):
    """Gives what it is told to."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, z: Tensor, y: Tensor) -> Any:
        return self.what(z)


USUAL: dict[str, str] = {}
THEIR_NUMBERS = {"num_classes": COUNT, "embedding_size": DIM}
CASES: list[tuple[type[nn.Module], dict[str, Any], dict[str, str], dict[str, int]]] = [
    (theirs.AngularLoss, {"alpha": 45}, USUAL, {}),
    (theirs.CircleLoss, {"gamma": 64}, USUAL, {}),
    (theirs.ContrastiveLoss, {"neg_margin": 0.7}, USUAL, {}),
    (theirs.FastAPLoss, {}, USUAL, {}),
    (theirs.GeneralizedLiftedStructureLoss, {}, USUAL, {}),
    (theirs.MarginLoss, {"learn_beta": True}, USUAL, {"num_classes": COUNT}),
    (theirs.MultiSimilarityLoss, {"alpha": 3.0}, USUAL, {}),
    (theirs.NTXentLoss, {"temperature": 0.2}, USUAL, {}),
    (theirs.RankedListLoss, {"margin": 0.4, "Tn": 1.2}, USUAL, {}),
    (theirs.SignalToNoiseRatioContrastiveLoss, {"neg_margin": 0.3}, USUAL, {}),
    (theirs.SmoothAPLoss, {}, USUAL, {}),
    (theirs.SupConLoss, {}, USUAL, {}),
    (theirs.TripletMarginLoss, {"margin": 0.2, "swap": True}, USUAL, {}),
    (theirs.ArcFaceLoss, {"margin": 20.0}, USUAL, THEIR_NUMBERS),
    (theirs.CosFaceLoss, {"scale": 30}, USUAL, THEIR_NUMBERS),
    (theirs.NormalizedSoftmaxLoss, {}, USUAL, THEIR_NUMBERS),
    (
        theirs.P2SGradLoss,
        {},
        {"dim": "descriptors_dim"},
        {"num_classes": COUNT, "descriptors_dim": DIM},
    ),
    (theirs.ProxyAnchorLoss, {"alpha": 16}, USUAL, THEIR_NUMBERS),
    (theirs.ProxyNCALoss, {"softmax_scale": 3}, USUAL, THEIR_NUMBERS),
    (theirs.SoftTripleLoss, {"centers_per_class": 2}, USUAL, THEIR_NUMBERS),
    (theirs.SubCenterArcFaceLoss, {"sub_centers": 2}, USUAL, THEIR_NUMBERS),
    (Compact, {"strength": 0.5}, USUAL, {}),
    (Weighted, {}, USUAL, {}),
    (
        Softmax,
        {"smoothing": 0.2},
        {"dim": "inputs", "classes": "outputs"},
        {"inputs": DIM, "outputs": COUNT},
    ),
]
every_module = for_each(
    ("module", "parameters", "names", "numbers"),
    CASES,
    ids=[module.__name__ for module, *_ in CASES],
)


def batch(count: int = 16, classes: int = COUNT, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=draw).requires_grad_(), torch.arange(count) % classes


def built(adopted: type[Loss], seed: int = 0, **parameters: Any) -> Any:
    torch.manual_seed(seed)
    loss = adopted(**parameters)
    loss.setup(DIM, COUNT)
    return loss


def build(module: type[nn.Module], seed: int = 0, **parameters: Any) -> nn.Module:
    torch.manual_seed(seed)
    return module(**parameters)


# --- the same loss --------------------------------------------------------------------------------


@every_module
def test_value_and_gradients_are_those_of_the_module(module, parameters, names, numbers) -> None:
    z, y = batch()
    ours, direct = (
        built(adopt(module, **names), **parameters),
        build(module, **parameters, **numbers),
    )
    found, expected = ours(z, y), direct(z, y)
    assert torch.equal(found, expected)
    inputs = [z, *ours.parameters()], [z, *direct.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, inputs[0]), torch.autograd.grad(expected, inputs[1]), strict=True
    ):
        assert torch.equal(one, other)
    assert found.shape == ()


@every_module
def test_parameters_and_defaults_are_those_of_the_module_without_what_setup_gives(
    module, parameters, names, numbers
) -> None:
    takes = inspect.signature(adopt(module, **names)).parameters
    own = {
        name: item
        for name, item in inspect.signature(module).parameters.items()
        if item.kind not in (2, 4)
    }
    assert {name: takes[name].default for name in own if name in takes} == {
        name: item.default for name, item in own.items() if name not in numbers
    }
    assert not set(takes) & set(numbers)
    assert set(parameters) <= set(takes)
    assert {item.kind for item in takes.values()} <= {inspect.Parameter.KEYWORD_ONLY}


def test_what_the_constructor_hands_on_to_its_bases_is_a_parameter_too() -> None:
    takes = inspect.signature(adopt(theirs.SignalToNoiseRatioContrastiveLoss)).parameters
    assert (takes["pos_margin"].default, takes["neg_margin"].default) == (0, 1)
    assert "mat_based_loss" not in takes  # no default: the subclass fills it in
    assert list(inspect.signature(adopt(Compact)).parameters) == ["strength"]
    assert list(inspect.signature(adopt(Weighted)).parameters) == []


def test_raw_embeddings_go_in_unless_unit_vectors_are_asked_for() -> None:
    z, y = batch()
    assert not adopt(Compact).normalise
    assert torch.equal(built(adopt(Compact))(5 * z, y), Compact()(5 * z, y))
    unit = nn.functional.normalize(z)
    assert torch.allclose(built(adopt(Compact, normalise=True))(5 * z, y), Compact()(unit, y))


def test_unit_vectors_change_nothing_for_a_loss_that_normalises() -> None:
    z, y = batch()
    raw, unit = (
        built(adopt(theirs.TripletMarginLoss, normalise=normalise))(z, y)
        for normalise in (False, True)
    )
    assert torch.allclose(raw, unit)
    assert torch.allclose(*(torch.autograd.grad(value, z)[0] for value in (raw, unit)), atol=1e-6)


def test_an_adopted_loss_says_what_it_is() -> None:
    assert adopt(Compact).__name__ == "Compact"
    assert adopt(Compact).__doc__ == "Pulls all embeddings to one point, in words of its own."
    assert (
        adopt(theirs.TripletMarginLoss).__doc__
        == "TripletMarginLoss of pytorch_metric_learning.losses.triplet_margin_loss."
    )
    assert adopt(Softmax, dim="inputs", classes="outputs").__doc__ == f"Softmax of {__name__}."
    assert adopt(Compact).paper is None
    assert issubclass(adopt(Compact), Loss)


def test_a_number_that_is_not_to_be_told_is_left_to_its_default() -> None:
    told = built(adopt(theirs.MarginLoss), learn_beta=True)
    untold = built(adopt(theirs.MarginLoss, classes=None), learn_beta=True)
    assert (len(told.module.beta), len(untold.module.beta)) == (COUNT, 1)
    assert "num_classes" in inspect.signature(adopt(theirs.MarginLoss, classes=None)).parameters


def test_weights_are_in_the_state_dict_and_come_back_from_it() -> None:
    z, y = batch()
    one, other = (built(adopt(theirs.ArcFaceLoss), seed) for seed in (0, 1))
    assert list(one.state_dict()) == ["module.W"]
    assert one(z, y) != other(z, y)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(z, y), other(z, y))


def test_setup_builds_only_what_depends_on_the_data() -> None:
    loss = adopt(Weighted)()
    weight = next(loss.parameters())
    loss.setup(DIM, COUNT)
    assert next(loss.parameters()) is weight
    arcface = adopt(theirs.ArcFaceLoss)()
    assert list(arcface.parameters()) == []
    arcface.setup(5, 3)
    assert next(arcface.parameters()).shape == (5, 3)


def test_half_precision_is_compared_in_single_precision() -> None:
    z, y = batch()
    half = z.detach().bfloat16().requires_grad_()
    value = built(adopt(theirs.MultiSimilarityLoss))(half, y)
    assert value.dtype == torch.float32
    value.backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16


def test_an_adopted_loss_can_be_subclassed() -> None:
    class Cosine(adopt(theirs.TripletMarginLoss)):  # type: ignore[misc]
        def __init__(self, *, margin: float = 0.3) -> None:
            super().__init__(margin=margin, triplets_per_anchor=2)

    loss = Cosine()
    assert list(inspect.signature(Cosine).parameters) == ["margin"]
    assert (loss.module.margin, loss.module.triplets_per_anchor) == (0.3, 2)


# --- mined pairs and references -------------------------------------------------------------------


def test_indices_of_pairs_and_triplets_written_out() -> None:
    z, y = batch(7, 3)
    pairs = all_pairs(y, References.of_batch(z, y))
    together = [(a, b) for a in range(7) for b in range(7) if a != b and y[a] == y[b]]
    apart = [(a, b) for a in range(7) for b in range(7) if y[a] != y[b]]
    a1, p, a2, n = (part.tolist() for part in indices(pairs))
    assert list(zip(a1, p, strict=True)) == together
    assert list(zip(a2, n, strict=True)) == apart
    triplets = [part.tolist() for part in indices(as_triplets(pairs))]
    assert list(zip(*triplets, strict=True)) == [
        (a, p, n) for a, p in together for b, n in apart if a == b
    ]


@pytest.mark.parametrize(
    "module", [theirs.MultiSimilarityLoss, theirs.ContrastiveLoss, theirs.TripletMarginLoss]
)
def test_pairs_of_a_miner_give_what_the_librarys_own_miner_gives(module) -> None:
    z, y = batch()
    direct = module()(z, y, their_miners.MultiSimilarityMiner(epsilon=0.1)(z, y))
    mined = MultiSimilarityMiner(epsilon=0.1)(z, y)
    assert 0 < mined.negative.sum() < all_pairs(y, References.of_batch(z, y)).negative.sum()
    assert torch.allclose(adopt(module)()(z, y, mined), direct)


@pytest.mark.parametrize(
    "module", [theirs.TripletMarginLoss, theirs.ContrastiveLoss, theirs.MarginLoss]
)
def test_triplets_of_a_miner_are_handed_over(module) -> None:
    z, y = batch()
    mined = SemihardMiner()(z, y)
    assert isinstance(mined, Triplets)
    written = [
        (int(a), int(p), n)
        for a, p, row in zip(mined.anchor, mined.positive, mined.negative.tolist(), strict=True)
        for n, taken in enumerate(row)
        if taken
    ]
    direct = module()(z, y, tuple(torch.tensor(column) for column in zip(*written, strict=True)))
    assert torch.equal(adopt(module, classes=None)()(z, y, mined), direct)
    assert not torch.allclose(direct, module()(z, y))


def test_nothing_mined_costs_nothing() -> None:
    z, y = batch()
    none = torch.zeros(len(y), len(y), dtype=torch.bool)
    value = adopt(theirs.MultiSimilarityLoss)()(z, y, Pairs(none, none))
    value.backward()
    assert value == 0
    assert z.grad is not None
    assert not z.grad.any()


@pytest.mark.parametrize("module", [theirs.TripletMarginLoss, theirs.MultiSimilarityLoss])
def test_references_are_handed_over(module) -> None:
    (z, y), (past, labels) = batch(), batch(10, seed=1)
    found = adopt(module)()(z, y, None, References(past, labels, None))
    assert torch.equal(found, module()(z, y, ref_emb=past, ref_labels=labels))


@pytest.mark.parametrize(
    "module", [theirs.TripletMarginLoss, theirs.MultiSimilarityLoss, theirs.NTXentLoss]
)
def test_a_sample_among_the_references_is_not_its_own_positive(module) -> None:
    z, y = batch()
    order = torch.randperm(len(y))
    own = References(z[order], y[order], order.argsort())
    assert torch.allclose(adopt(module)()(z, y, None, own), module()(z, y))


def test_mined_pairs_index_the_references() -> None:
    (z, y), (past, labels) = batch(), batch(10, seed=1)
    references = References(past, labels, None)
    mined = MultiSimilarityMiner()(z, y, references)
    direct = theirs.ContrastiveLoss()(z, y, indices(mined), past, labels)
    assert torch.equal(adopt(theirs.ContrastiveLoss)()(z, y, mined, references), direct)


def test_a_module_without_a_place_for_them_takes_neither_mined_pairs_nor_references() -> None:
    z, y = batch()
    loss = adopt(Compact)()
    with pytest.raises(
        ValueError,
        match="Compact takes no mined pairs: its forward has no parameter 'indices_tuple'",
    ):
        loss(z, y, SemihardMiner()(z, y))
    with pytest.raises(
        ValueError, match="Compact takes no references: its forward has no parameter 'ref_emb'"
    ):
        loss(z, y, None, References.of_batch(z, y))
    with pytest.raises(
        ValueError, match="takes no mined pairs: its forward has no parameter 'indices_tuple'"
    ):
        loss(z, y, SemihardMiner()(z, y), References(z, y, None))


# --- what does not fit ----------------------------------------------------------------------------


def test_a_module_that_depends_on_the_data_waits_for_setup() -> None:
    with pytest.raises(
        ValueError, match=r"ArcFaceLoss depends on the data: call setup\(dim, classes\) first"
    ):
        adopt(theirs.ArcFaceLoss)()(*batch())


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda z: z.square().sum(1), r"a tensor of shape \(16,\), but a loss is one number"),
        (lambda z: {"loss": z.sum()}, "a dict, but a loss is one number"),
        (lambda z: z.sum().item(), "a float, but a loss is one number"),
        (lambda z: z.detach().sum(), r"a number without gradient; use no \.item"),
    ],
)
def test_what_is_no_loss_is_refused_by_the_modules_name(what, said) -> None:
    with pytest.raises(ValueError, match=f"^Gives gave {said}"):
        adopt(Gives)(what=what)(*batch())


def test_a_number_without_gradient_is_enough_where_nothing_is_trained() -> None:
    z, y = batch()
    loss = adopt(Gives)(what=lambda z: z.sum())
    with torch.no_grad():
        assert loss(z, y) == z.sum()
    assert loss(z.detach(), y) == z.sum()


def test_a_single_number_in_any_shape_is_a_scalar() -> None:
    assert adopt(Gives)(what=lambda z: z.sum()[None, None])(*batch()).shape == ()


def test_bad_parameters_fail_when_the_loss_is_made() -> None:
    with pytest.raises(TypeError, match="margn"):
        adopt(theirs.TripletMarginLoss)(margn=0.1)
    with pytest.raises(TypeError, match="margn"):
        adopt(theirs.ArcFaceLoss)(margn=0.1)
    with pytest.raises(TypeError, match="Tn"):
        adopt(theirs.RankedListLoss)(margin=0.4)
    with pytest.raises(TypeError, match="num_classes"):
        adopt(theirs.ArcFaceLoss)(num_classes=3)
    with pytest.raises(ValueError, match="expected margin to be greater than 0"):
        adopt(nn.TripletMarginLoss)(margin=-1.0)


@pytest.mark.parametrize("module", [Compact(), "Compact", Tensor])
def test_only_a_class_of_module_can_be_adopted(module) -> None:
    with pytest.raises(ValueError, match="adopt takes a class"):
        adopt(module)


def test_a_loss_need_not_be_adopted() -> None:
    with pytest.raises(ValueError, match="Triplet is a Loss already"):
        adopt(losses["triplet"])


def test_a_parameter_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="Compact has no parameter 'dim'; it has strength"):
        adopt(Compact, dim="dim")
    with pytest.raises(ValueError, match="Weighted has no parameter 'labels'; it has none"):
        adopt(Weighted, classes="labels")


# --- as a method ----------------------------------------------------------------------------------


def test_parameters_of_a_method_go_by_name() -> None:
    method = Method(
        "m",
        adopt(theirs.TripletMarginLoss),
        Space(margin=Real(0, 1)),
        miner="semihard",
        fixed={"swap": True},
    )
    assert defaults(method, QUICK) == {"margin": 0.05}
    parts = assemble(method, {"margin": 0.4}, QUICK)
    assert isinstance(parts.loss.module, theirs.TripletMarginLoss)
    assert (parts.loss.module.margin, parts.loss.module.swap) == (0.4, True)
    with pytest.raises(BadInput, match="'margn' is taken by nothing"):
        defaults(Method("m", adopt(theirs.TripletMarginLoss), Space(margn=Real(0, 1))), QUICK)
    with pytest.raises(
        BadInput, match="'margin' has no value; give it a default, search it or fix it"
    ):
        defaults(Method("m", adopt(theirs.RankedListLoss), Space(Tn=Real(0, 1))), QUICK)
    with pytest.raises(BadInput, match="'Tn' has no default"):
        defaults(
            Method("m", adopt(theirs.RankedListLoss), Space(Tn=Real(0, 1)), fixed={"margin": 0.4}),
            QUICK,
        )


def test_a_miner_looks_at_what_the_loss_is_given() -> None:
    for normalise in (True, False):
        method = Method(
            "m", adopt(theirs.TripletMarginLoss, normalise=normalise), Space(), miner="semihard"
        )
        miner = assemble(method, {}, QUICK).miner
        assert miner is not None
        assert miner.normalise == normalise


@pytest.mark.parametrize(
    ("loss", "miner", "trained"),
    [
        (adopt(theirs.MultiSimilarityLoss, normalise=True), "multi_similarity", []),
        (adopt(theirs.TripletMarginLoss), "semihard", []),
        (adopt(theirs.ProxyAnchorLoss), None, ["module.proxies"]),
        (
            adopt(Softmax, dim="inputs", classes="outputs"),
            None,
            ["module.classify.weight", "module.classify.bias"],
        ),
    ],
)
def test_a_step_trains_the_model_and_the_modules_weights(loss, miner, trained) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, DIM)
    parts = assemble(Method("m", loss, Space(), miner=miner), {"lr": 0.1, "weights_lr": 0.1}, QUICK)
    parts.loss.setup(DIM, COUNT)
    assert [name for name, _ in parts.loss.named_parameters()] == trained
    watched = [model.weight, *parts.loss.parameters()]
    before = [weight.detach().clone() for weight in watched]
    optimiser = optimiser_of(model, parts, QUICK)
    values = [
        step(
            model,
            parts,
            optimiser,
            ReadBatch(torch.ones(16, 6) + torch.eye(16, 6), batch()[1], torch.arange(16), 0.0),
            QUICK,
            torch.device("cpu"),
        )[0]
    ]
    assert values[0] > 0
    assert all(not torch.equal(weight, old) for weight, old in zip(watched, before, strict=True))


# --- source ---------------------------------------------------------------------------------------

MODULE = """
from torch import nn


class Mine(nn.Module):
    def __init__(self, strength: float = {strength}) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, z, y):
        return self.strength * z.var(0).sum()
"""
DECLARED = """
from assay.losses.adopt import adopt
from assay.losses.loss import Method, methods
from assay.space import Real, Space

methods.add(Method("mine", adopt({adopted}), space=Space({space})))
"""


def write(
    path: Path, adopted: str = "Mine", space: str = "strength=Real(0, 9)", before: str = ""
) -> Path:
    path.write_text(before + DECLARED.format(adopted=adopted, space=space))
    return path


def imported(file: Path) -> str:
    import_parts([str(file)])
    return source_of(methods["mine"], RESOLVED)


def hash_of(adopting: Path, *others: Path) -> str:
    own = [trunks[RESOLVED.trunk].__module__, samplers[RESOLVED.sampler].__module__]
    parts = [*(source_hash([module]) for module in own), foreign_hash(adopting)]
    return digest([*parts, source_hash(["assay.losses.adopt"]), *map(foreign_hash, others)])


def test_the_source_is_that_of_the_file_with_module_and_method(
    as_before: None, tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.py", before=MODULE.format(strength=2.0))
    assert imported(file) == hash_of(file)
    assert defaults(methods["mine"], QUICK) == {"strength": 2.0}


def test_the_source_changes_with_the_file_and_not_otherwise(
    as_before: None, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    first = imported(write(file, before=MODULE.format(strength=2.0)))
    (tmp_path / "other.py").write_text("")
    assert imported(write(file, before=MODULE.format(strength=2.0))) == first
    changed = {
        imported(write(file, before=MODULE.format(strength=3.0))),
        imported(write(file, "Mine, normalise=True", before=MODULE.format(strength=2.0))),
        imported(write(file, space="strength=Real(0, 8)", before=MODULE.format(strength=2.0))),
    }
    assert len({first, *changed}) == 4


def test_the_source_changes_with_the_module_in_another_file(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module, file = tmp_path / "bridged_module.py", tmp_path / "mine.py"
    module.write_text(MODULE.format(strength=2.0))
    first = imported(write(file, before="from bridged_module import Mine\n"))
    assert first == hash_of(file, module)
    module.write_text(MODULE.format(strength=3.0))
    assert source_of(methods["mine"], RESOLVED) == hash_of(file, module) != first


def test_the_source_changes_with_a_base_of_the_module(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    base, file = tmp_path / "bridged_base.py", tmp_path / "mine.py"
    base.write_text(MODULE.format(strength=2.0))
    first = imported(
        write(file, "Own", before="from bridged_base import Mine\n\n\nclass Own(Mine):\n    pass\n")
    )
    base.write_text(MODULE.format(strength=3.0))
    assert source_of(methods["mine"], RESOLVED) != first


def test_where_the_loss_was_adopted_is_hashed_too(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `normalise=True` could be added there without a trace."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bridged_loss.py").write_text(
        MODULE.format(strength=2.0)
        + "\n\nfrom assay.losses.adopt import adopt\nMade = adopt(Mine)\n"
    )
    file = tmp_path / "mine.py"
    file.write_text(
        "from bridged_loss import Made\n"
        "from assay.methods import Method, Space, methods\n"
        'methods.add(Method("mine", Made, space=Space()))\n'
    )
    assert imported(file) == hash_of(tmp_path / "bridged_loss.py", file)


def test_the_source_of_a_library_loss_is_its_class_and_bases() -> None:
    parts = adopt(theirs.ArcFaceLoss).written_in()
    assert parts[0].__module__ == __name__
    assert theirs.ArcFaceLoss in parts
    assert theirs.BaseMetricLossFunction in parts
    assert nn.Module not in parts
    assert object not in parts
    assert adopt(nn.CrossEntropyLoss).written_in()[1:] == (Adopted,)


def test_an_installed_module_names_its_distribution_and_version() -> None:
    from importlib.metadata import version

    assert adopt(theirs.ArcFaceLoss).distributions() == (
        f"pytorch-metric-learning {version('pytorch-metric-learning')}",
    )
    assert adopt(Compact).distributions() == ()
    assert adopt(nn.CrossEntropyLoss).distributions() == ()


# --- on the command line --------------------------------------------------------------------------

THEIRS = """
from pytorch_metric_learning.losses import ArcFaceLoss, TripletMarginLoss

from assay.methods import WEIGHTS_LR, Method, Real, Space, adopt, losses, methods

losses.set("their_arcface", adopt(ArcFaceLoss))
methods.add(
    Method(
        "their_triplet",
        adopt(TripletMarginLoss, normalise=True),
        miner="semihard",
        space=Space(margin=Real(0, 1)),
    ),
    Method(
        "their_arcface",
        losses["their_arcface"],
        batch="classification",
        space=Space(margin=Real(0, 90), weights_lr=WEIGHTS_LR),
        about="as the library has it",
    ),
)
"""


def test_adopted_methods_and_losses_are_listed(as_before: None, assay, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    code, out, _ = assay("list", "methods", "--import", tmp_path / "theirs.py", "--json")
    row = next(row for row in json.loads(out) if row["name"] == "their_arcface")
    assert code == 0
    assert (list(row["space"]), row["about"], row["paper"]) == (
        ["margin", "weights_lr"],
        "as the library has it",
        None,
    )
    assert "their_triplet" in assay("list", "methods", "--import", tmp_path / "theirs.py")[1]
    code, out, _ = assay("list", "losses", "--import", tmp_path / "theirs.py")
    assert code == 0
    assert "Implementation of https://arxiv.org/pdf/1801.07698" in out


def test_adopted_methods_are_benched_continued_and_refused_when_edited(
    as_before: None, assay, tmp_path: Path, mini_features: Path
) -> None:
    mine, store = tmp_path / "theirs.py", tmp_path / "store"
    command = ["bench", "--data", f"features:{mini_features}", "--out", store, "--import", mine]
    command += ["--methods", "their_triplet,their_arcface"]
    command += set_options((*MINI, "trials=1", "startup=0"))

    mine.write_text(THEIRS)
    code, _, err = assay(*command, "--workers", 1)  # a worker process imports the file too
    assert code == 0, err
    assert (store / "report" / "index.html").exists()
    found = {record.method: record for record in study_records(Store(store))}
    assert all(record.complete for record in found.values())
    assert found["their_arcface"].announced.method.paper is None
    assert set(found["their_arcface"].trials[0].parameters) == {"margin", "weights_lr"}

    code, _, err = assay(*command, "--engine", "inline")
    assert code == 0, err
    assert " done" not in err.replace("runs done", "")

    mine.write_text(THEIRS.replace("normalise=True", "normalise=False"))
    code, _, err = assay(*command, "--engine", "inline")
    assert code == 2
    assert "different: method" in err
