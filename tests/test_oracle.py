"""pytorch-metric-learning as an independent oracle: value and gradient of every loss and choice of
every miner that it has in the same form; and where it departs from the equation, a test that says
how.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning import reducers as pml_reducers
from pytorch_metric_learning import regularizers as pml_regularisers
from pytorch_metric_learning.utils import loss_and_miner_utils as pml_utils
from torch import Tensor

from assay.losses import losses
from assay.losses.loss import Loss
from assay.methods import assemble, methods
from assay.miners import miners
from assay.pairs import References, Triplets, distances
from loops import for_each
from miniature import QUICK

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # their SphereFaceLoss hands tensors to scipy, which NumPy 2 deprecates
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
    # their HistogramLoss takes a list for an index, which torch deprecates
    pytest.mark.filterwarnings(
        "ignore:Using a non-tuple sequence for multidimensional indexing:UserWarning"
    ),
]

COMPARED, DEPARTS, ABSENT = "compared", "departs", "not in PML"

STANDING: dict[str, tuple[str, str]] = {
    "angular": (
        COMPARED,
        "theirs leaves negatives as long as they are: given unit vectors it is the equation",
    ),
    "angular_n_pairs": (ABSENT, ""),
    "angular_raw": (ABSENT, "theirs insists on normalised anchors"),
    "arcface": (
        COMPARED,
        (
            "theirs extends the margin beyond 180 degrees otherwise, and its acos has no gradient"
            " at cosine 1"
        ),
    ),
    "circle": (COMPARED, "theirs leaves anchors whose cost underflows to 0 out of the mean"),
    "circle_class": (COMPARED, ""),
    "contrastive": (COMPARED, "theirs returns 0 where neither kind of pair occurs more than once"),
    "cosface": (COMPARED, ""),
    "dreml": (ABSENT, ""),
    "fastap": (COMPARED, ""),
    "histogram": (
        COMPARED,
        (
            "theirs fails at similarity 1, and leaves out negative pairs of two samples without"
            " positives"
        ),
    ),
    "lifted": (COMPARED, ""),
    "lifted_generalized": (COMPARED, "theirs counts anchors without positives"),
    "margin": (COMPARED, ""),
    "margin_per_class": (COMPARED, ""),
    "multi_similarity": (COMPARED, ""),
    "n_pairs": (COMPARED, "theirs normalises unless told otherwise"),
    "n_pairs_symmetric": (COMPARED, ""),
    "normalized_softmax": (COMPARED, ""),
    "nt_xent": (COMPARED, "theirs caps each term, at 87 in single precision"),
    "prototypical": (ABSENT, ""),
    "proxy_anchor": (COMPARED, ""),
    "proxy_nca": (COMPARED, ""),
    "proxy_nca_strict": (ABSENT, "theirs keeps the own proxy in the denominator"),
    "proxy_softmax": (ABSENT, "theirs smooths no labels"),
    "proxy_triplet": (COMPARED, ""),
    "quadruplet": (ABSENT, ""),
    "ranked_list": (
        DEPARTS,
        "theirs differentiates the weights, and adds 1e-5 per pair to each divisor",
    ),
    "smooth_ap": (
        DEPARTS,
        (
            "theirs ranks the anchor among its own positives, and is right only for square, grouped"
            " batches"
        ),
    ),
    "snr_contrastive": (
        COMPARED,
        "theirs takes the zero-mean term of raw embeddings: given unit vectors it is the equation",
    ),
    "snr_triplet": (
        COMPARED,
        "theirs takes the zero-mean term of every embedding, not of the anchors of the triplets",
    ),
    "soft_triple": (
        COMPARED,
        "theirs has no 1e-5 under the root of the regulariser, whose gradient has no bound",
    ),
    "sphereface": (
        COMPARED,
        "theirs multiplies by the length of the embedding: given unit vectors it is the equation",
    ),
    "structured_clustering": (ABSENT, ""),
    "supcon": (
        COMPARED,
        "theirs returns 0 for a single class, and leaves anchors out of the mean whose cost is 0",
    ),
    "triplet": (COMPARED, ""),
    "triplet_mean": (COMPARED, ""),
    "triplet_squared": (COMPARED, ""),
    "tuplet_margin": (
        COMPARED,
        "theirs takes acos without a clamp: NaN where two positives are the same",
    ),
    **dict.fromkeys(
        ("xbm_contrastive", "xbm_margin", "xbm_multi_similarity", "xbm_triplet"),
        (ABSENT, "theirs is the comparison with the memory alone: see test_cross_batch_memory.py"),
    ),
}
"""How each loss stands to pytorch-metric-learning's, and where theirs departs from the equation."""

BUILT_IN = [name for name, loss in losses.items() if loss.__module__.startswith("assay.")]
SHOWN: set[str] = set()
"""Losses with a test of how theirs departs."""


def departure(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test that shows how theirs departs from the equations of these losses."""
    SHOWN.update(names)
    return lambda test: test


# --- Their losses, brought to the form of ours by their own arguments ---


def with_weights(
    module: torch.nn.Module, weights: dict[str, Tensor], *arguments: Tensor, **more: Any
) -> Tensor:
    """Their loss with these weights in the place of its own, so that gradients reach the tensors
    given here.
    """
    value: Tensor = torch.func.functional_call(module, weights, arguments, more)
    return value


def numbers(weights: Tensor) -> Tensor:
    """Labels of class weights that serve as references."""
    return torch.arange(len(weights))


def angular(z: Tensor, y: Tensor, alpha: float = 45.0) -> Tensor:
    return pml.AngularLoss(alpha=alpha)(F.normalize(z), y)


def arcface(
    z: Tensor, y: Tensor, weights: Tensor, margin: float = 28.6, scale: float = 64.0
) -> Tensor:
    return with_weights(
        pml.ArcFaceLoss(*weights.shape, margin=margin, scale=scale), {"W": weights.T}, z, y
    )


def circle(z: Tensor, y: Tensor, margin: float = 0.4, gamma: float = 80.0, **more: Any) -> Tensor:
    return pml.CircleLoss(m=margin, gamma=gamma)(z, y, **more)


def circle_class(
    z: Tensor, y: Tensor, weights: Tensor, margin: float = 0.4, gamma: float = 256.0
) -> Tensor:
    return pml.CircleLoss(m=margin, gamma=gamma)(z, y, ref_emb=weights, ref_labels=numbers(weights))


def contrastive(
    z: Tensor, y: Tensor, pos_margin: float = 0.0, neg_margin: float = 0.5, **more: Any
) -> Tensor:
    return pml.ContrastiveLoss(pos_margin=pos_margin, neg_margin=neg_margin)(z, y, **more)


def cosface(
    z: Tensor, y: Tensor, weights: Tensor, margin: float = 0.35, scale: float = 64.0
) -> Tensor:
    return with_weights(
        pml.CosFaceLoss(*weights.shape, margin=margin, scale=scale), {"W": weights.T}, z, y
    )


def fastap(z: Tensor, y: Tensor, bins: int = 10) -> Tensor:
    return pml.FastAPLoss(num_bins=bins)(z, y)


def histogram(z: Tensor, y: Tensor, bins: int = 100) -> Tensor:
    return pml.HistogramLoss(n_bins=bins)(z, y)


def lifted(z: Tensor, y: Tensor, margin: float = 1.0) -> Tensor:
    return pml.LiftedStructureLoss(neg_margin=margin)(z, y)


def lifted_generalized(z: Tensor, y: Tensor, margin: float = 1.0, **more: Any) -> Tensor:
    return pml.GeneralizedLiftedStructureLoss(neg_margin=margin)(z, y, **more)


def margin(
    z: Tensor, y: Tensor, beta_weight: Tensor, margin: float = 0.2, beta: float = 1.2, **more: Any
) -> Tensor:
    return with_weights(
        pml.MarginLoss(margin=margin, learn_beta=True),
        {"beta": beta_weight.reshape(1)},
        z,
        y,
        **more,
    )


def margin_per_class(
    z: Tensor, y: Tensor, beta_weight: Tensor, margin: float = 0.2, beta: float = 1.2, **more: Any
) -> Tensor:
    module = pml.MarginLoss(margin=margin, learn_beta=True, num_classes=len(beta_weight))
    return with_weights(module, {"beta": beta_weight}, z, y, **more)


def multi_similarity(
    z: Tensor, y: Tensor, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, **more: Any
) -> Tensor:
    return pml.MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)(z, y, **more)


RAW = pml_distances.DotProductSimilarity(normalize_embeddings=False)


def n_pairs(z: Tensor, y: Tensor, regularisation: float = 0.002) -> Tensor:
    anchor, positive = pml_utils.convert_to_pos_pairs_with_unique_labels(None, y)
    length = pml_regularisers.LpRegularizer(power=2)
    return pml.NPairsLoss(distance=RAW)(z, y) + regularisation * (
        length(z[anchor]) + length(z[positive])
    )


def n_pairs_symmetric(z: Tensor, y: Tensor, regularisation: float = 0.002) -> Tensor:
    anchor, positive = pml_utils.convert_to_pos_pairs_with_unique_labels(None, y)
    nobody = anchor[:0]
    reversed_ = pml.NPairsLoss(distance=RAW)(z, y, (positive, anchor, nobody, nobody))
    forwards = pml.NPairsLoss(distance=RAW)(z, y)
    return (forwards + reversed_) / 2 + n_pairs(z, y, regularisation) - forwards


def normalized_softmax(z: Tensor, y: Tensor, weights: Tensor, temperature: float = 0.05) -> Tensor:
    return with_weights(
        pml.NormalizedSoftmaxLoss(*weights.shape, temperature=temperature), {"W": weights.T}, z, y
    )


def nt_xent(z: Tensor, y: Tensor, temperature: float = 0.07, **more: Any) -> Tensor:
    return pml.NTXentLoss(temperature=temperature)(z, y, **more)


def proxy_anchor(
    z: Tensor, y: Tensor, weights: Tensor, alpha: float = 32.0, margin: float = 0.1
) -> Tensor:
    return with_weights(
        pml.ProxyAnchorLoss(*weights.shape, margin=margin, alpha=alpha), {"proxies": weights}, z, y
    )


def proxy_nca(z: Tensor, y: Tensor, weights: Tensor, scale: float = 9.0) -> Tensor:
    return with_weights(
        pml.ProxyNCALoss(*weights.shape, softmax_scale=scale), {"proxies": weights}, z, y
    )


def proxy_triplet(z: Tensor, y: Tensor, weights: Tensor, margin: float = 1.0) -> Tensor:
    """A mean over samples and other proxies, of which there are C - 1."""
    squared = pml_distances.LpDistance(power=2)
    module = pml.TripletMarginLoss(
        margin=margin, distance=squared, reducer=pml_reducers.MeanReducer()
    )
    return (len(weights) - 1) * module(z, y, ref_emb=weights, ref_labels=numbers(weights))


def snr_contrastive(
    z: Tensor,
    y: Tensor,
    pos_margin: float = 0.0,
    neg_margin: float = 0.9,
    regularisation: float = 0.1,
) -> Tensor:
    zero_mean = {
        "embedding_regularizer": pml_regularisers.ZeroMeanRegularizer(),
        "embedding_reg_weight": regularisation,
    }
    module = pml.SignalToNoiseRatioContrastiveLoss(
        pos_margin=pos_margin, neg_margin=neg_margin, **zero_mean
    )
    return module(F.normalize(z), y)


def snr_triplet(
    z: Tensor, y: Tensor, margin: float = 0.2, regularisation: float = 0.005, **more: Any
) -> Tensor:
    module = pml.TripletMarginLoss(
        margin=margin,
        distance=pml_distances.SNRDistance(),
        embedding_regularizer=pml_regularisers.ZeroMeanRegularizer(),
        embedding_reg_weight=regularisation,
    )
    return module(F.normalize(z), y, **more)


def soft_triple(
    z: Tensor,
    y: Tensor,
    weights: Tensor,
    centres: int = 10,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    regularisation: float = 0.2,
) -> Tensor:
    merge: dict[str, Any] = {}
    if regularisation:
        merge["weight_regularizer"] = pml_regularisers.SparseCentersRegularizer(
            len(weights), centres
        )
        merge["weight_reg_weight"] = regularisation
    module = pml.SoftTripleLoss(
        len(weights),
        weights.shape[2],
        centers_per_class=centres,
        la=scale,
        gamma=gamma,
        margin=margin,
        **merge,
    )
    return with_weights(module, {"fc": weights.flatten(0, 1).T}, z, y)


def sphereface(
    z: Tensor, y: Tensor, weights: Tensor, margin: int = 4, scale: float = 30.0
) -> Tensor:
    return with_weights(
        pml.SphereFaceLoss(*weights.shape, margin=margin, scale=scale),
        {"W": weights.T},
        F.normalize(z),
        y,
    )


def supcon(z: Tensor, y: Tensor, temperature: float = 0.1, **more: Any) -> Tensor:
    return pml.SupConLoss(temperature=temperature)(z, y, **more)


def triplet(z: Tensor, y: Tensor, margin: float = 0.1, **more: Any) -> Tensor:
    return pml.TripletMarginLoss(margin=margin)(z, y, **more)


def triplet_mean(z: Tensor, y: Tensor, margin: float = 0.2, **more: Any) -> Tensor:
    return pml.TripletMarginLoss(margin=margin, reducer=pml_reducers.MeanReducer())(z, y, **more)


def triplet_squared(z: Tensor, y: Tensor, margin: float = 1.0, **more: Any) -> Tensor:
    raw_squared = pml_distances.LpDistance(normalize_embeddings=False, power=2)
    return pml.TripletMarginLoss(
        margin=margin, distance=raw_squared, reducer=pml_reducers.MeanReducer()
    )(z, y, **more)


def tuplet_margin(
    z: Tensor, y: Tensor, scale: float = 64.0, margin: float = 5.73, **more: Any
) -> Tensor:
    return pml.TupletMarginLoss(margin=margin, scale=scale)(z, y, **more)


ORACLES: dict[str, Callable[..., Tensor]] = {
    oracle.__name__: oracle
    for oracle in (
        angular,
        arcface,
        circle,
        circle_class,
        contrastive,
        cosface,
        fastap,
        histogram,
        lifted,
        lifted_generalized,
        margin,
        margin_per_class,
        multi_similarity,
        n_pairs,
        n_pairs_symmetric,
        normalized_softmax,
        nt_xent,
        proxy_anchor,
        proxy_nca,
        proxy_triplet,
        snr_contrastive,
        snr_triplet,
        soft_triple,
        sphereface,
        supcon,
        triplet,
        triplet_mean,
        triplet_squared,
        tuplet_margin,
    )
}

DEFAULTS: dict[str, Any] = {}
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "angular": [DEFAULTS, {"alpha": 30.0}],
    "arcface": [{"margin": 10.0}, {"margin": 5.0, "scale": 12.0}],
    "circle": [DEFAULTS, {"margin": 0.25, "gamma": 16.0}],
    "circle_class": [DEFAULTS, {"margin": 0.25, "gamma": 16.0}],
    "contrastive": [DEFAULTS, {"pos_margin": 0.3, "neg_margin": 1.3}],
    "cosface": [DEFAULTS, {"margin": 0.1, "scale": 9.0}],
    "fastap": [DEFAULTS, {"bins": 7}, {"bins": 128}],
    "histogram": [DEFAULTS, {"bins": 11}],
    "lifted": [DEFAULTS, {"margin": 0.3}],
    "lifted_generalized": [DEFAULTS, {"margin": 0.0}],
    "margin": [DEFAULTS, {"margin": 0.05, "beta": 0.9}],
    "margin_per_class": [DEFAULTS, {"margin": 0.05, "beta": 0.9}],
    "multi_similarity": [DEFAULTS, {"alpha": 3.0, "beta": 40.0, "base": 0.4}],
    "n_pairs": [DEFAULTS, {"regularisation": 0.0}],
    "n_pairs_symmetric": [DEFAULTS, {"regularisation": 0.0}],
    "normalized_softmax": [DEFAULTS, {"temperature": 0.5}],
    "nt_xent": [DEFAULTS, {"temperature": 0.01}, {"temperature": 3.0}],
    "proxy_anchor": [DEFAULTS, {"alpha": 8.0, "margin": 0.4}],
    "proxy_nca": [DEFAULTS, {"scale": 1.0}],
    "proxy_triplet": [DEFAULTS, {"margin": 0.2}],
    "snr_contrastive": [DEFAULTS, {"pos_margin": 0.5, "neg_margin": 1.7, "regularisation": 1.0}],
    "snr_triplet": [{"regularisation": 0.0}, {"margin": 1.5, "regularisation": 0.0}],
    "soft_triple": [
        {"regularisation": 0.0},
        {"centres": 3, "scale": 5.0, "gamma": 0.5, "margin": 0.2, "regularisation": 0.0},
    ],
    "sphereface": [DEFAULTS, {"margin": 3, "scale": 7.0}, {"margin": 1, "scale": 2.0}],
    "supcon": [DEFAULTS, {"temperature": 1.0}],
    "triplet": [DEFAULTS, {"margin": 0.5}],
    "triplet_mean": [DEFAULTS, {"margin": 0.5}],
    "triplet_squared": [DEFAULTS, {"margin": 4.0}],
    "tuplet_margin": [DEFAULTS, {"scale": 8.0, "margin": 20.0}],
}

# --- Batches ---


DIM, CLASSES = 6, 5
SIZES = {
    "4 of each class": [4, 4, 4, 4, 0],
    "unequal classes": [2, 3, 7, 0, 5],
    "2 of each class": [2, 2, 2, 2, 2],
}
every_batch = for_each("sizes", list(SIZES.values()), ids=list(SIZES))


def draw_batch(sizes: list[int], seed: int, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Shuffled, and of unequal lengths; samples lean towards their class's direction, as they do in
    training.
    """
    draw = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=draw)]
    centres = torch.randn(len(sizes), dim, generator=draw, dtype=torch.float64)
    z = 0.5 * centres[y] + torch.randn(len(y), dim, generator=draw, dtype=torch.float64)
    return z, y


def build(name: str, seed: int = 0, **parameters: Any) -> Loss:
    """In double precision, with weights that are all different."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loss = losses[name](**parameters)
        loss.setup(DIM, CLASSES)
        loss = loss.double()
        for weight in loss.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
    return loss


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


IN_SINGLE_PRECISION = {"histogram"}
"""Theirs multiplies whole numbers by a Python float, which torch does in single precision, also in
a batch of doubles.
"""


def assert_same(ours: Tensor, theirs: Tensor, name: str = "") -> None:
    relative, absolute = (1e-5, 1e-6) if name in IN_SINGLE_PRECISION else (1e-7, 1e-10)
    torch.testing.assert_close(ours, theirs, rtol=relative, atol=absolute)


# --- The same form: value and gradient ---


def test_the_table_covers_exactly_the_losses_that_there_are() -> None:
    assert set(STANDING) == set(BUILT_IN)
    assert {standing for standing, _ in STANDING.values()} == {COMPARED, DEPARTS, ABSENT}


def test_every_loss_that_is_said_to_be_compared_is() -> None:
    compared = {name for name, (standing, _) in STANDING.items() if standing == COMPARED}
    assert compared == set(ORACLES) == set(PARAMETERS)


def test_every_departure_in_the_table_is_shown_by_a_test() -> None:
    assert {
        name for name, (standing, how) in STANDING.items() if how and standing != ABSENT
    } == SHOWN


def assert_agrees(
    name: str,
    z: Tensor,
    y: Tensor,
    parameters: dict[str, Any],
    mined: Any,
    theirs_mined: dict[str, Any],
) -> None:
    """Value, and gradient of embeddings and of weights."""
    loss, mine, other = build(name, **parameters), leaf(z), leaf(z)
    copies = {
        key + "_weight" * (key == "beta"): leaf(weight) for key, weight in loss.named_parameters()
    }
    value, expected = (
        loss(mine, y, mined),
        ORACLES[name](other, y, **copies, **parameters, **theirs_mined),
    )
    assert value.item() > 0
    if name not in IN_SINGLE_PRECISION:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    found, wanted = (
        (value, *gradients(value, mine, *loss.parameters())),
        (expected, *gradients(expected, other, *copies.values())),
    )
    assert wanted[1].ne(0).any(), "a comparison of nothing"
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs, name)


@every_batch
@for_each("seed", range(3))
@for_each("name", list(ORACLES))
def test_agrees_in_value_and_gradient(name: str, seed: int, sizes: list[int]) -> None:
    z, y = draw_batch(sizes, seed)
    for parameters in PARAMETERS[name]:
        assert_agrees(name, z, y, parameters, None, {})


@every_batch
@for_each(
    "name", ["circle", "contrastive", "multi_similarity", "nt_xent", "supcon", "tuplet_margin"]
)
def test_agrees_on_the_pairs_that_each_ones_multi_similarity_miner_keeps(
    name: str, sizes: list[int]
) -> None:
    """So the two miners keep the same: with 2 of each class, with many of them, and with a narrow
    and a wide epsilon.
    """
    z, y = draw_batch(sizes, 5)
    for epsilon in (0.01, 0.3):
        theirs = pml_miners.MultiSimilarityMiner(epsilon)(z, y)
        assert_agrees(
            name,
            z,
            y,
            DEFAULTS,
            miners["multi_similarity"](epsilon=epsilon)(z, y),
            {"indices_tuple": theirs},
        )


def test_multi_similarity_mined_agrees_with_its_loss_and_miner_together() -> None:
    z, y = draw_batch(SIZES["unequal classes"], 1)
    parameters = {"alpha": 3.0, "beta": 40.0, "base": 0.4, "epsilon": 0.05}
    parts = assemble(methods["multi_similarity_mined"], parameters, QUICK)
    assert parts.miner is not None
    mine, other = leaf(z), leaf(z)
    value = parts.loss(mine, y, parts.miner(mine, y))
    theirs = pml_miners.MultiSimilarityMiner(0.05)(other, y)
    expected = multi_similarity(other, y, 3.0, 40.0, 0.4, indices_tuple=theirs)
    assert expected.item() != pytest.approx(
        multi_similarity(other, y, 3.0, 40.0, 0.4).item(), rel=1e-3
    )
    assert_same(value, expected)
    assert_same(gradients(value, mine)[0], gradients(expected, other)[0])


@every_batch
@for_each("name", ["margin", "margin_per_class", "triplet", "triplet_mean", "triplet_squared"])
@for_each("miner", ["semihard", "distance_weighted", "hard", "easy_positive"])
def test_agrees_on_mined_triplets(name: str, miner: str, sizes: list[int]) -> None:
    z, y = draw_batch(sizes, 6)
    torch.manual_seed(0)
    mined = miners[miner]()(z, y)
    assert isinstance(mined, Triplets)
    pair, negative = mined.negative.nonzero(as_tuple=True)
    theirs = (mined.anchor[pair], mined.positive[pair], negative)
    parameters = {"margin": 3.0} if name == "triplet_squared" else DEFAULTS
    assert_agrees(name, z, y, parameters, mined, {"indices_tuple": theirs})


@for_each(
    "name",
    [
        "circle",
        "contrastive",
        "lifted_generalized",
        "margin",
        "margin_per_class",
        "multi_similarity",
        "nt_xent",
        "supcon",
        "triplet",
        "triplet_mean",
        "triplet_squared",
        "tuplet_margin",
    ],
)
def test_agrees_against_a_memory(name: str) -> None:
    """Gradients of the batch and of the memory."""
    z, y = draw_batch([4, 3, 2, 1, 0], 7)
    past, labels = draw_batch([5, 2, 2, 1, 3], 8)
    loss, tensors, copies = build(name), [leaf(z), leaf(past)], [leaf(z), leaf(past)]
    weights = {f"{key}_weight": leaf(weight) for key, weight in loss.named_parameters()}
    value = loss(tensors[0], y, None, References(tensors[1], labels, None))
    expected = ORACLES[name](copies[0], y, **weights, ref_emb=copies[1], ref_labels=labels)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(gradients(value, *tensors), gradients(expected, *copies), strict=True):
        assert_same(ours, theirs)


# --- Where theirs departs from the equation ---


def plane(*degrees: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Unit vectors of the plane at these angles."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)


def cos(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def differ(one: float, other: float) -> bool:
    return abs(one - other) > 0.01 * max(abs(one), abs(other))


def with_class_weights(name: str, weights: Tensor, **parameters: Any) -> Loss:
    loss = losses[name](**parameters)
    loss.setup(weights.shape[-1], len(weights))
    loss.weights = torch.nn.Parameter(weights.clone())
    return loss


@departure("contrastive")
def test_contrastive_counts_a_single_pair_but_theirs_returns_zero() -> None:
    z, past, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    assert losses["contrastive"]()(z, y, None, References(past, y, None)).item() == pytest.approx(
        math.sqrt(2)
    )
    assert pml.ContrastiveLoss()(z, y, ref_emb=past, ref_labels=y).item() == 0


@departure("nt_xent")
def test_nt_xent_is_exact_but_theirs_caps_each_term_and_loses_the_gradient() -> None:
    """Positives at 0 and 90 degrees, a negative at 10: at T = 0.001 the terms are 1000 cos 10 and
    1000 cos 80.
    """
    y = torch.tensor([0, 0, 1])
    mine, other = (leaf(plane(0, 90, 10, dtype=torch.float32)) for _ in range(2))
    value, theirs = (
        losses["nt_xent"](temperature=0.001)(mine, y),
        nt_xent(other, y, temperature=0.001),
    )
    assert value.item() == pytest.approx(1000 * (cos(10) + cos(80)) / 2, rel=1e-5)
    assert theirs.item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny), rel=1e-5)
    assert gradients(value, mine)[0].abs().max() > 100
    assert gradients(theirs, other)[0].abs().max() == 0


@departure("arcface")
def test_arcface_goes_on_falling_beyond_180_degrees_otherwise_than_theirs() -> None:
    """A sample 170 degrees from its own weight and 80 from the other: ours -2 - cos(198.6), theirs
    cos(170) - m sin(m).
    """
    weights, z, y = plane(0, 90), plane(170), torch.tensor([0])
    value = with_class_weights("arcface", weights, scale=2.0)(z, y).item()
    own = -2 - cos(170 + 28.6)
    assert value == pytest.approx(math.log(math.exp(2 * own) + math.exp(2 * cos(80))) - 2 * own)
    theirs = arcface(z, y, weights, scale=2.0).item()
    margin = math.radians(28.6)
    own = cos(170) - margin * math.sin(margin)
    assert theirs == pytest.approx(math.log(math.exp(2 * own) + math.exp(2 * cos(80))) - 2 * own)
    assert differ(value, theirs)


@departure("arcface")
@pytest.mark.parametrize("angle", [0.0, 180.0])
def test_arcface_has_a_gradient_at_both_ends_of_the_cosine_but_theirs_has_none(
    angle: float,
) -> None:
    weights, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0])
    mine, other = (
        leaf(torch.tensor([[1.0 if angle == 0 else -1.0, 0.0]], dtype=torch.float64))
        for _ in range(2)
    )
    (gradient,) = gradients(with_class_weights("arcface", weights)(mine, y), mine)
    (theirs,) = gradients(arcface(other, y, weights), other)
    assert torch.isfinite(gradient).all()
    assert not torch.isfinite(theirs).all()


@departure("tuplet_margin")
def test_tuplet_margin_takes_duplicates_but_theirs_gives_nan() -> None:
    """Positive at 0 degrees, negative at 60: log(1 + e^(k (cos 60 - cos 5.73))); the negative has
    no positive.
    """
    mine, other = (leaf(torch.cat([plane(0, 0), plane(60)])) for _ in range(2))
    y = torch.tensor([0, 0, 1])
    value, theirs = losses["tuplet_margin"](scale=4.0)(mine, y), tuplet_margin(other, y, scale=4.0)
    assert value.item() == pytest.approx(math.log1p(math.exp(4 * (cos(60) - cos(5.73)))))
    assert torch.isfinite(gradients(value, mine)[0]).all()
    assert not torch.isfinite(gradients(theirs, other)[0]).all()


def angular_by_hand(z: Tensor, y: Tensor, alpha: float) -> float:
    t, terms = math.tan(math.radians(alpha)) ** 2, []
    for a in range(len(y)):
        for p in range(len(y)):
            if a != p and y[a] == y[p]:
                others = [
                    4 * t * ((z[a] + z[p]) @ z[n]) - 2 * (1 + t) * (z[a] @ z[p])
                    for n in range(len(y))
                    if y[n] != y[a]
                ]
                terms.append(math.log(1 + sum(math.exp(other) for other in others)))
    return sum(terms) / len(terms)


@departure("angular")
def test_angular_is_about_unit_vectors_but_theirs_leaves_negatives_as_long_as_they_are() -> None:
    z, y = draw_batch([2, 3, 2], 0)
    value, expected = (
        losses["angular"](alpha=30.0)(z, y).item(),
        angular_by_hand(F.normalize(z), y, 30),
    )
    assert value == pytest.approx(expected)
    assert differ(pml.AngularLoss(alpha=30)(z, y).item(), expected)
    assert pml.AngularLoss(alpha=30)(F.normalize(z), y).item() == pytest.approx(expected)


@departure("snr_contrastive")
def test_snr_contrastive_centres_unit_vectors_but_theirs_raw_ones() -> None:
    z, y = draw_batch([3, 4], 2)
    zero_mean = {"embedding_regularizer": pml_regularisers.ZeroMeanRegularizer()}
    terms = losses["snr_contrastive"](regularisation=0.0)(z, y).item()
    value = losses["snr_contrastive"](regularisation=1.0)(z, y).item()
    theirs = pml.SignalToNoiseRatioContrastiveLoss(pos_margin=0, neg_margin=0.9, **zero_mean)(
        z, y
    ).item()
    assert value - terms == pytest.approx(F.normalize(z).sum(1).abs().mean().item())
    assert theirs - terms == pytest.approx(z.sum(1).abs().mean().item())
    assert differ(value, theirs)


@departure("snr_triplet")
def test_snr_triplet_centres_the_anchors_of_its_triplets_but_theirs_every_embedding() -> None:
    """In classes of the same size every sample is the anchor of as many triplets."""
    for sizes, same in (([4, 4, 4], True), ([2, 3, 7], False)):
        z, y = draw_batch(sizes, 2)
        value = losses["snr_triplet"](regularisation=1.0)(z, y).item()
        theirs = snr_triplet(z, y, regularisation=1.0).item()
        assert (value == pytest.approx(theirs)) == same
        terms = losses["snr_triplet"](regularisation=0.0)(z, y).item()
        apart = [(sizes[label] - 1) * (len(y) - sizes[label]) for label in y.tolist()]
        off_centre = F.normalize(z).sum(1).abs().tolist()
        assert value - terms == pytest.approx(
            sum(count * off for count, off in zip(apart, off_centre, strict=True)) / sum(apart)
        )


@departure("sphereface")
def test_sphereface_ignores_the_length_of_embeddings_but_theirs_multiplies_by_it() -> None:
    """One sample 30 degrees from its own weight, 60 from the other; cos(4 x 30) = -0.5 within the
    first turn.
    """
    weights, y = plane(0, 90), torch.tensor([0])
    for length in (1.0, 3.0):
        value = with_class_weights("sphereface", weights, scale=2.0)(length * plane(30), y).item()
        assert value == pytest.approx(
            math.log(math.exp(2 * cos(120)) + math.exp(2 * cos(60))) - 2 * cos(120)
        )
        theirs = with_weights(
            pml.SphereFaceLoss(2, 2, margin=4, scale=2.0), {"W": weights.T}, length * plane(30), y
        ).item()
        assert (theirs == pytest.approx(value)) == (length == 1)


@departure("soft_triple")
@pytest.mark.parametrize("seed", range(3))
def test_soft_triple_keeps_a_gradient_where_centres_meet_but_theirs_has_none(seed: int) -> None:
    """Apart, the 1e-5 under the root hardly shows; together, it is all that there is."""
    z, y = draw_batch(SIZES["unequal classes"], seed)
    loss = build("soft_triple", seed, centres=3, regularisation=1.0)
    weights = leaf(loss.weights)
    expected = soft_triple(z, y, weights, centres=3, regularisation=1.0)
    assert loss(z, y).item() == pytest.approx(expected.item(), rel=1e-5)
    together = torch.zeros(CLASSES, 3, DIM, dtype=torch.float64)
    together[..., 0] = 1
    meeting, other = (
        with_class_weights("soft_triple", together, centres=3, regularisation=1.0),
        leaf(together),
    )
    free = with_class_weights("soft_triple", together, centres=3, regularisation=0.0)
    value = meeting(z, y)
    assert value.item() - free(z, y).item() == pytest.approx(math.sqrt(1e-5) / 2)
    assert torch.isfinite(gradients(value, meeting.weights)[0]).all()
    assert not torch.isfinite(
        gradients(soft_triple(z, y, other, centres=3, regularisation=1.0), other)[0]
    ).all()


@departure("lifted_generalized")
def test_lifted_generalized_leaves_out_anchors_without_positives_but_theirs_counts_them() -> None:
    """Positives at 0 and 60 degrees (d = 1), a lone negative at 180 (d = 2 and sqrt 3)."""
    z, y = plane(0, 60, 180), torch.tensor([0, 0, 1])
    own = [1 + (1 - 2), 1 + (1 - math.sqrt(3))]
    lone = math.log(math.exp(1 - 2) + math.exp(1 - math.sqrt(3)))
    value, theirs = (
        losses["lifted_generalized"](margin=1.0)(z, y).item(),
        lifted_generalized(z, y).item(),
    )
    assert value == pytest.approx(sum(max(0, cost) for cost in own) / 2)
    assert theirs == pytest.approx(sum(max(0, cost) for cost in [*own, lone]) / 3)
    assert differ(value, theirs)


@departure("circle")
def test_circle_means_over_anchors_that_cost_nothing_too_but_theirs_leaves_them_out() -> None:
    """Class 0 lies together and far from the rest, class 1 is torn apart: half of the anchors cost
    0.
    """
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    y = torch.tensor([0, 0, 1, 1])
    torn = 512 * 2.4 * 1.6 + 512 * 0.4 * -0.4 + math.log(2)
    value, theirs = losses["circle"](gamma=512.0)(z, y).item(), circle(z, y, gamma=512.0).item()
    assert value == pytest.approx(torn / 2, rel=1e-5)
    assert theirs == pytest.approx(torn, rel=1e-5)


@departure("supcon")
def test_supcon_of_a_single_class_is_not_zero_but_theirs_is() -> None:
    """Three samples at 0, 90, 180 degrees: the one in the middle sees two alike, each of the others
    one of two.
    """
    z, y = plane(0, 90, 180), torch.zeros(3, dtype=torch.long)
    side = math.log(1 + math.exp(-1)) + 0.5
    value = losses["supcon"](temperature=1.0)(z, y).item()
    assert value == pytest.approx((2 * side + math.log(2)) / 3)
    assert supcon(z, y, temperature=1.0).item() == 0


@departure("supcon")
def test_supcon_means_over_anchors_that_cost_nothing_too_but_theirs_leaves_them_out() -> None:
    """Class 0 lies together, far from class 1, whose two lie apart and as near to class 0 as to
    each other.
    """
    z, y = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]], torch.tensor([0, 0, 1, 1])
    value, theirs = (
        losses["supcon"](temperature=0.001)(z, y).item(),
        supcon(z, y, temperature=0.001).item(),
    )
    assert value == pytest.approx(math.log(3) / 2, rel=1e-5)
    assert theirs == pytest.approx(math.log(3), rel=1e-5)


@departure("histogram")
def test_histogram_takes_duplicates_but_theirs_fails() -> None:
    """Positives at s = 1, negatives at 0: no negative pair is more similar than a positive one."""
    z, y = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    assert losses["histogram"]()(z, y).item() == pytest.approx(0, abs=1e-12)
    with pytest.raises(RuntimeError, match="out of bounds"):
        histogram(z, y)


@departure("histogram")
def test_histogram_counts_every_negative_pair_but_theirs_only_those_of_anchors_with_positives() -> (
    None
):
    """One positive pair at s = 0. Of the five negative pairs two are much more similar, one of them
    that of the lone samples, and one lies on the node of the positive pair, which counts as well.
    """
    z, y = plane(0, 90, 135, 180), torch.tensor([0, 0, 1, 2])
    assert cos(135 - 90) == cos(180 - 135) > 0.2 > cos(180 - 90) > cos(135) > cos(180)
    value, theirs = losses["histogram"](bins=10)(z, y).item(), histogram(z, y, bins=10).item()
    assert value == pytest.approx(3 / 5)
    assert theirs == pytest.approx(2 / 4)


@departure("n_pairs")
def test_n_pairs_is_about_raw_vectors_but_theirs_normalises_unless_told_otherwise() -> None:
    z, y = (
        torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 1.0]]),
        torch.tensor([0, 0, 1, 1]),
    )
    value = losses["n_pairs"](regularisation=0.0)(z, y).item()
    assert value == pytest.approx((math.log1p(math.exp(-2)) + math.log1p(math.exp(-3))) / 2)
    assert pml.NPairsLoss()(z, y).item() == pytest.approx(math.log1p(math.exp(-1)))


def ranked_list_by_hand(
    z: Tensor, y: Tensor, temperature: float, constant: bool, added: float
) -> Tensor:
    """alpha 1.2, m 0.4; theirs has weights that are not constant, and 1e-5 added to a divisor for
    each sample.
    """
    unit = F.normalize(z)
    total = z.new_zeros(())
    for a in range(len(y)):
        d = {j: (unit[a] - unit[j]).norm() for j in range(len(y)) if j != a}
        pull = [d[j] - 0.8 for j in d if y[j] == y[a] and d[j] > 0.8]
        push = [1.2 - d[j] for j in d if y[j] != y[a] and d[j] < 1.2]
        weights = [(temperature * (term.detach() if constant else term)).exp() for term in push]
        if pull:
            total = total + sum(pull) / (len(pull) + added * len(y))
        if push:
            total = total + sum(w * term for w, term in zip(weights, push, strict=True)) / (
                sum(weights) + added * len(y)
            )
    return total / len(y)


@departure("ranked_list")
@every_batch
def test_ranked_list_has_constant_weights_but_theirs_differentiates_them(sizes: list[int]) -> None:
    z, y = draw_batch(sizes, 3)
    mine, other, hand, theirs_hand = (leaf(z) for _ in range(4))
    value = losses["ranked_list"](temperature=4.0)(mine, y)
    theirs = 2 * pml.RankedListLoss(margin=0.4, Tn=4.0, imbalance=0.5, alpha=1.2)(other, y)
    expected = ranked_list_by_hand(hand, y, 4.0, constant=True, added=0.0)
    theirs_expected = ranked_list_by_hand(theirs_hand, y, 4.0, constant=False, added=1e-5)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    assert_same(gradients(value, mine)[0], gradients(expected, hand)[0])
    torch.testing.assert_close(theirs, theirs_expected, rtol=1e-6, atol=1e-9)
    (their_gradient,) = gradients(theirs, other)
    torch.testing.assert_close(
        their_gradient, gradients(theirs_expected, theirs_hand)[0], rtol=1e-4, atol=1e-7
    )
    assert value.item() == pytest.approx(theirs.item(), rel=1e-3)
    assert value.item() != pytest.approx(theirs.item(), rel=1e-7)
    assert differ(
        gradients(losses["ranked_list"](temperature=4.0)(mine, y), mine)[0].norm().item(),
        their_gradient.norm().item(),
    )


def smooth_ap_by_hand(z: Tensor, y: Tensor, temperature: float, itself: bool) -> Tensor:
    """`itself`: whether the anchor stands in the list that it ranks, as a positive."""
    s = F.normalize(z) @ F.normalize(z).T
    precisions = []
    for a in range(len(y)):
        everyone = [j for j in range(len(y)) if itself or j != a]
        positives = [j for j in everyone if y[j] == y[a]]
        terms = []
        for p in positives:
            above = {
                j: torch.sigmoid((s[a, j] - s[a, p]) / temperature) for j in everyone if j != p
            }
            terms.append(
                (1 + sum(above[j] for j in positives if j != p)) / (1 + sum(above.values()))
            )
        precisions.append(sum(terms) / len(positives))
    return 1 - torch.stack(precisions).mean()


@departure("smooth_ap")
def test_smooth_ap_leaves_the_anchor_out_of_its_list_but_theirs_ranks_it_first() -> None:
    z, y = draw_batch([3, 3, 3], 4)
    order = y.argsort()
    z, y = z[order], y[order]
    mine, other, hand, theirs_hand = (leaf(z) for _ in range(4))
    value, theirs = (
        losses["smooth_ap"](temperature=0.1)(mine, y),
        pml.SmoothAPLoss(temperature=0.1)(other, y),
    )
    expected = smooth_ap_by_hand(hand, y, 0.1, itself=False)
    theirs_expected = smooth_ap_by_hand(theirs_hand, y, 0.1, itself=True)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    assert_same(gradients(value, mine)[0], gradients(expected, hand)[0])
    assert theirs.item() == pytest.approx(theirs_expected.item(), rel=1e-5)
    assert differ(value.item(), theirs.item())


@departure("smooth_ap")
@pytest.mark.parametrize("shape", ["not square", "shuffled", "unequal"])
def test_smooth_ap_takes_any_batch_but_theirs_only_square_and_grouped_ones(shape: str) -> None:
    sizes = {"not square": [4, 4], "shuffled": [3, 3, 3], "unequal": [2, 5]}[shape]
    z, y = draw_batch(sizes, 4)
    if shape == "not square":
        order = y.argsort()
        z, y = z[order], y[order]
    assert_same(
        losses["smooth_ap"](temperature=0.1)(z, y), smooth_ap_by_hand(z, y, 0.1, itself=False)
    )
    if shape == "unequal":
        with pytest.raises(ValueError, match="same number of elements"):
            pml.SmoothAPLoss(temperature=0.1)(z, y)
    else:
        theirs = pml.SmoothAPLoss(temperature=0.1)(z, y).item()
        assert differ(theirs, smooth_ap_by_hand(z, y, 0.1, itself=True).item())


def test_angular_raw_cannot_be_had_from_theirs() -> None:
    with pytest.raises(AssertionError):
        pml.AngularLoss(distance=pml_distances.LpDistance(normalize_embeddings=False))


# --- Miners ---

Chosen = set[tuple[int, int, int]]


def chosen_by(name: str, z: Tensor, y: Tensor, **parameters: Any) -> Chosen:
    mined = miners[name](**parameters)(z, y)
    assert isinstance(mined, Triplets)
    pairs = [
        (int(mined.anchor[row]), int(mined.positive[row]), int(column))
        for row, column in mined.negative.nonzero()
    ]
    assert len(pairs) == len(set(pairs))
    return set(pairs)


def as_set(anchor: Tensor, positive: Tensor, negative: Tensor) -> Chosen:
    return set(zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True))


WITH_ONE_ALONE = [4, 1, 3, 6]
several = pytest.mark.parametrize("seed", range(5))


@several
def test_hard_chooses_what_their_batch_hard_miner_chooses(seed: int) -> None:
    z, y = draw_batch(WITH_ONE_ALONE, seed)
    assert chosen_by("hard", z, y) == as_set(*pml_miners.BatchHardMiner()(z, y))


@several
def test_easy_positive_with_hard_negatives_chooses_what_their_easy_hard_miner_chooses(
    seed: int,
) -> None:
    z, y = draw_batch(WITH_ONE_ALONE, seed)
    anchor, positive, _, negative = pml_miners.BatchEasyHardMiner(
        pos_strategy="easy", neg_strategy="hard"
    )(z, y)
    assert chosen_by("easy_positive", z, y, negatives="hard") == as_set(anchor, positive, negative)


@several
def test_easy_positive_with_semihard_negatives_chooses_alike_and_keeps_anchors_that_theirs_drops(
    seed: int,
) -> None:
    """Theirs has no triplet for an anchor without a negative beyond its nearest positive; ours
    takes the farthest.
    """
    z, y = draw_batch(WITH_ONE_ALONE, seed, dim=2)
    z[y == 2] = -3 * z[y == 2].roll(1, 0)
    anchor, positive, _, negative = pml_miners.BatchEasyHardMiner(
        pos_strategy="easy", neg_strategy="semihard"
    )(z, y)
    theirs, ours, d = (
        as_set(anchor, positive, negative),
        chosen_by("easy_positive", z, y),
        distances(F.normalize(z), F.normalize(z)),
    )
    assert theirs <= ours
    for a, p, n in ours - theirs:
        others = d[a, y != y[a]]
        assert others.max() <= d[a, p]
        assert d[a, n] == others.max()
    assert {a for a, _, _ in ours} == {a for a in range(len(y)) if y[a] != 1}


@several
def test_semihard_chooses_the_nearest_of_all_that_their_triplet_miner_calls_semihard(
    seed: int,
) -> None:
    """Theirs gives every triplet with d_an > d_ap, whatever the margin; where there is none, ours
    takes the farthest.
    """
    z, y = draw_batch(WITH_ONE_ALONE, seed, dim=3)
    d = distances(F.normalize(z), F.normalize(z))
    beyond: dict[tuple[int, int], list[int]] = {}
    for a, p, n in as_set(
        *pml_miners.TripletMarginMiner(margin=9, type_of_triplets="semihard")(z, y)
    ):
        beyond.setdefault((a, p), []).append(n)
    pairs = [(a, p) for a in range(len(y)) for p in range(len(y)) if a != p and y[a] == y[p]]
    farthest = {a: int(d[a].masked_fill(y == y[a], -1).argmax()) for a, _ in pairs}
    expected = {
        (
            a,
            p,
            (
                min(beyond[a, p], key=lambda n, a=a: d[a, n].item())
                if (a, p) in beyond
                else farthest[a]
            ),
        )
        for a, p in pairs
    }
    assert chosen_by("semihard", z, y) == expected


def their_weights(z: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The probabilities by which their distance-weighted miner draws, which it keeps to itself."""
    seen: list[Tensor] = []
    monkeypatch.setattr(
        pml_utils,
        "get_random_triplet_indices",
        lambda labels, ref_labels, weights: seen.append(weights),
    )
    pml_miners.DistanceWeightedMiner().mine(z, y, z, y)
    return seen[0]


@several
@pytest.mark.parametrize("dim", [4, 16])
def test_distance_weighted_draws_by_the_weights_of_theirs(
    seed: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few dimensions, where theirs does not underflow; rows without an admissible negative are
    0/0 in theirs.
    """
    z, y = draw_batch(WITH_ONE_ALONE, seed, dim=dim)
    theirs = their_weights(z, y, monkeypatch)
    negative = y[:, None] != y
    unit = F.normalize(z)
    ours = (
        miners["distance_weighted"]().log_weights(distances(unit, unit), negative, dim).softmax(1)
    )
    usable = ((torch.cdist(unit, unit) < 1.4) & negative).any(1)
    assert usable.any()
    torch.testing.assert_close(ours[usable], theirs[usable], rtol=1e-6, atol=1e-12)
    assert theirs[~usable].isnan().all()
    torch.testing.assert_close(
        ours[~usable], (negative / negative.sum(1, keepdim=True)).double()[~usable]
    )


def test_distance_weighted_keeps_rows_in_many_dimensions_that_underflow_in_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Theirs subtracts the largest logarithm of the batch, not of the row: one near pair leaves
    nothing for the others.
    """
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(16) % 4
    z = torch.randn(1, 512, generator=draw) + 1.3 * torch.randn(16, 512, generator=draw)
    z[0] = z[1] + 0.01 * z[0]
    negative = y[:, None] != y
    unit = F.normalize(z)
    admissible = ((distances(unit, unit) <= 1.4) & negative).any(1)
    theirs = their_weights(z, y, monkeypatch)
    ours = (
        miners["distance_weighted"]().log_weights(distances(unit, unit), negative, 512).softmax(1)
    )
    assert admissible.all()
    assert theirs.isnan().any(1).sum() > 8
    torch.testing.assert_close(ours.sum(1), torch.ones(16))
    assert not (ours > 0)[~negative].any()
