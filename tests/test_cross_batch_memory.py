"""The losses with a memory of past batches, after their warm-up: each step against loops over a
list, against pytorch-metric-learning, and the laws of the memory.
"""

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor

from assay.heads import HeadShape
from assay.losses import losses
from assay.losses.contrastive import Contrastive
from assay.losses.loss import Loss, Seen
from assay.losses.triplet import Triplet
from assay.methods import Method, Miner, assemble, cross_batch_memory, methods
from assay.methods.parameters import signature
from assay.miners import miners
from assay.pairs import Mined, Pairs, References, all_pairs
from assay.registry import UnknownName
from assay.space import Space
from equations import REFERENCE, Case, Row, informative, unit
from loops import for_each
from miniature import QUICK

pytestmark = pytest.mark.usefixtures("one_thread")

DIM, CLASSES = 4, 3
WRAPPED = {
    "xbm_contrastive": "contrastive",
    "xbm_margin": "margin",
    "xbm_multi_similarity": "multi_similarity",
    "xbm_triplet": "triplet",
}
every_memory_loss = for_each("name", list(WRAPPED))


def build(name: str, samples: int = 20, dtype: torch.dtype = torch.float64, **own: Any) -> Any:
    loss = losses[name](**{"warmup": 0.0} | own)
    loss.setup(DIM, CLASSES)
    loss.prepare(samples, DIM)
    return loss.to(dtype)


def draw_batch(seed: int, count: int = 6, labels: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Draw embeddings with labels, of three classes if none are given."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES if labels is None else torch.tensor(labels)
    return torch.randn(len(y), DIM, generator=draw, dtype=torch.float64), y


def gradient_of(value: Tensor, z: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, z)
    return gradient


# --- The equation, with a list as memory ---


class ListedMemory:
    """The memory in plain numbers: unit vectors and labels, the oldest first."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.rows: list[Row] = []
        self.labels: list[int] = []

    def enqueue(self, z: list[Row], y: list[int]) -> tuple[list[Row], list[int]]:
        """Return what the batch is compared with: it is all there, also where there is no room."""
        self.rows, self.labels = self.rows + [unit(row) for row in z], self.labels + y
        kept = max(self.places, len(z))
        compared = self.rows[-kept:], self.labels[-kept:]
        self.rows, self.labels = self.rows[-self.places :], self.labels[-self.places :]
        return compared


def compare(
    name: str, loss: Any, z: list[Row], y: list[int], rows: list[Row], labels: list[int]
) -> float:
    """The wrapped loss of a batch, which stands at the end of the rows."""
    own = range(len(rows) - len(y), len(rows))
    positives = [
        [m for m, label in enumerate(labels) if label == y[i] and m != own[i]]
        for i in range(len(y))
    ]
    negatives = [[m for m, label in enumerate(labels) if label != y[i]] for i in range(len(y))]
    triplets = [(a, p, n) for a in range(len(y)) for p in positives[a] for n in negatives[a]]
    case = Case([unit(row) for row in z], y, rows, labels, positives, negatives, triplets)
    weights = {key.removeprefix("loss."): w.item() for key, w in loss.named_parameters()}
    if name == "xbm_multi_similarity":
        case = informative(case, loss.mining.get("epsilon", 0.1))
    given = {key: vars(loss.loss)[key] for key in signature(type(loss.loss)) if key in KEPT}
    return REFERENCE[WRAPPED[name]](case, weights, **given)


KEPT = {"pos_margin", "neg_margin", "margin", "alpha", "base"}
"""Parameters that losses keep under their own names, and that the tests turn."""


def step_in_loops(
    name: str, loss: Any, memory: ListedMemory, z: list[Row], y: list[int], is_warm: bool
) -> float:
    value = compare(name, loss, z, y, [unit(row) for row in z], y)
    if is_warm:
        value += loss.weight * compare(name, loss, z, y, *memory.enqueue(z, y))
    return value


PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "xbm_contrastive": [{}, {"pos_margin": 0.3, "neg_margin": 1.2}],
    "xbm_margin": [{}, {"margin": 0.5, "beta": 0.9}],
    "xbm_multi_similarity": [{}, {"alpha": 5.0, "base": 0.2, "epsilon": 0.4}],
    "xbm_triplet": [{}, {"margin": 0.7}],
}


@every_memory_loss
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_matches_its_equation_at_every_step(name: str, seed: int) -> None:
    """Batches of unequal sizes, larger than the memory or not; the memory fills and wraps around.
    Labels are negative and 0 too.
    """
    draw = random.Random(seed)
    samples, memory = draw.randint(1, 30), draw.choice([0.01, 0.3, 0.5, 1.0])
    warmup = draw.choice([0.0, 0.4, 1.0])
    loss = build(
        name,
        samples,
        memory=memory,
        warmup=warmup,
        weight=draw.choice([1.0, 0.3]),
        **draw.choice(PARAMETERS[name]),
    )
    listed, seen = ListedMemory(max(1, round(memory * samples))), 0
    for _ in range(8):
        count = draw.randint(1, 8)
        z = [[draw.gauss(0, 1) for _ in range(DIM)] for _ in range(count)]
        y = [draw.choice([-1, 0, 5]) for _ in range(count)]
        expected = step_in_loops(name, loss, listed, z, y, seen >= warmup * samples)
        value = loss(torch.tensor(z, dtype=torch.float64), torch.tensor(y))
        assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-11)
        seen += count


@every_memory_loss
def test_gradient_is_that_of_finite_differences_with_the_memory_held(name: str) -> None:
    """The memory has no gradient, also where it holds the batch itself."""
    loss, listed = build(name, samples=20, memory=0.6), ListedMemory(12)
    for seed in range(3):
        z, y = draw_batch(seed)
        rows, labels = listed.enqueue(z.tolist(), y.tolist())
        leaf = z.clone().requires_grad_()
        gradient = gradient_of(loss(leaf, y), leaf)

        def value(
            moved: Tensor, y: Tensor = y, rows: list[Row] = rows, labels: list[int] = labels
        ) -> float:
            past = compare(name, loss, moved.tolist(), y.tolist(), rows, labels)
            batch = [unit(row) for row in moved.tolist()]
            return past + compare(name, loss, moved.tolist(), y.tolist(), batch, y.tolist())

        torch.testing.assert_close(gradient, finite_differences(value, z), rtol=1e-5, atol=1e-7)


def finite_differences(equation: Callable[[Tensor], float], at: Tensor) -> Tensor:
    slopes = torch.zeros_like(at)
    for place in itertools.product(*map(range, at.shape)):
        move = torch.zeros_like(at)
        move[place] = 1e-6
        slopes[place] = (equation(at + move) - equation(at - move)) / 2e-6
    return slopes


# --- pytorch-metric-learning ---

THEIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "xbm_contrastive": lambda: (pml.ContrastiveLoss(pos_margin=0, neg_margin=0.5), None),
    "xbm_margin": lambda: (pml.MarginLoss(margin=0.2, beta=1.2, learn_beta=False), None),
    "xbm_multi_similarity": lambda: (
        pml.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        pml_miners.MultiSimilarityMiner(epsilon=0.1),
    ),
    "xbm_triplet": lambda: (pml.TripletMarginLoss(margin=0.1), None),
}


@every_memory_loss
def test_the_memory_term_is_that_of_pytorch_metric_learning(name: str) -> None:
    """Theirs is the comparison with the memory alone. The memory of 16 wraps around in the middle
    of a batch.
    """
    loss = build(name, samples=16)
    inner, miner = THEIRS[name]()
    theirs = pml.CrossBatchMemory(inner, embedding_size=DIM, memory_size=16, miner=miner)
    theirs.embedding_memory = theirs.embedding_memory.double()
    alone = build(name, weight=0.0)
    for seed in range(6):
        z, y = draw_batch(seed)
        mine, other = z.clone().requires_grad_(), z.clone().requires_grad_()
        value = loss(mine, y) - alone(mine, y)
        expected = theirs(other, y)
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(
            gradient_of(value, mine), gradient_of(expected, other), rtol=1e-6, atol=1e-9
        )


# --- The warm-up, and the weight ---


@every_memory_loss
def test_before_the_warm_up_ends_it_is_the_wrapped_loss_to_the_bit(name: str) -> None:
    loss, inner = build(name, samples=20, warmup=1.0), wrapped(name)
    for seed, is_warm in enumerate([False, False, False, False, True]):
        z, y = draw_batch(seed)
        assert (loss(z, y) != inner(z, y)) == is_warm
        assert loss.enqueued.item() == 6 * is_warm


def wrapped(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss without a memory, on what its miner chooses."""
    parts = assemble(
        methods["multi_similarity_mined" if "multi" in name else WRAPPED[name]], {}, QUICK
    )
    loss = parts.loss.double()
    return lambda z, y: loss(z, y, parts.miner and parts.miner(z, y))


@every_memory_loss
def test_a_weight_of_0_leaves_the_wrapped_loss(name: str) -> None:
    loss, inner = build(name, weight=0.0), wrapped(name)
    for seed in range(4):
        z, y = draw_batch(seed)
        mine, other = z.clone().requires_grad_(), z.clone().requires_grad_()
        value, expected = loss(mine, y), inner(other, y)
        assert value.item() == expected.item()
        torch.testing.assert_close(gradient_of(value, mine), gradient_of(expected, other))


@every_memory_loss
def test_a_memory_of_nothing_but_the_batch_is_the_batch_counted_again(name: str) -> None:
    z, y = draw_batch(0)
    value = build(name, weight=0.5)(z, y)
    torch.testing.assert_close(value, 1.5 * wrapped(name)(z, y), rtol=1e-10, atol=0)
    assert value > 0


def test_the_warm_up_counts_samples_and_not_steps() -> None:
    loss = build("xbm_contrastive", samples=10, warmup=1.0)
    for count, enqueued in ((9, 0), (1, 0), (1, 1), (3, 4)):
        loss(*draw_batch(count, count))
        assert loss.enqueued.item() == enqueued
    assert loss.seen.item() == 14


# --- What is in the memory ---


@for_each(
    "sizes", [[4, 4, 4, 4], [3, 5, 8, 1], [8, 8], [16], [11, 3], [1] * 20, [7, 9, 30, 2]], ids=str
)
def test_the_memory_holds_the_newest_embeddings(sizes: list[int]) -> None:
    """8 places; the batches fill them to the last, wrap around, or are larger than all of them."""
    loss, rows, labels = build("xbm_triplet", samples=16, memory=0.5), [], []
    for number, size in enumerate(sizes):
        z, y = draw_batch(number, size, [100 * number + place for place in range(size)])
        loss(z, y)
        rows += torch.nn.functional.normalize(z)
        labels += y.tolist()
        held = min(len(labels), 8)
        assert set(loss.labels[:held].tolist()) == set(labels[-8:])
        by_label = dict(zip(labels, rows, strict=True))
        for label, row in zip(loss.labels[:held].tolist(), loss.embeddings, strict=False):
            torch.testing.assert_close(row, by_label[label])
        assert not loss.embeddings[held:].any()


@for_each("memory, samples, places", [(1.0, 20, 20), (0.5, 21, 10), (0.01, 20, 1), (0.3, 10, 3)])
def test_the_memory_is_a_share_of_the_training_samples(
    memory: float, samples: int, places: int
) -> None:
    loss = build("xbm_triplet", samples, memory=memory)
    assert loss.embeddings.shape == (places, DIM)
    assert loss.labels.shape == (places,)


@every_memory_loss
def test_what_is_in_the_memory_is_detached(name: str) -> None:
    loss = build(name)
    z, y = draw_batch(0)
    past = z.requires_grad_()
    loss(past, y)
    assert all(not buffer.requires_grad for buffer in loss.buffers())
    now, labels = draw_batch(1)
    value = loss(now.requires_grad_(), labels)
    found = torch.autograd.grad(value, [now, past], allow_unused=True)
    assert found[0] is not None
    assert found[1] is None


def test_a_sample_is_not_its_own_positive_but_its_past_embedding_is() -> None:
    loss = build("xbm_contrastive", neg_margin=0.0)
    z, y = draw_batch(0, labels=[0, 1, 2])
    assert loss(z, y).item() == 0
    assert loss(-z, y).item() == pytest.approx(2)


@for_each("label", [0, -1, 7])
def test_empty_places_match_no_label(label: int) -> None:
    """20 places, one of them taken: the others hold zeros."""
    loss = build("xbm_triplet", margin=5.0, over="all")
    z, y = draw_batch(0, labels=[label])
    assert loss(z, y).item() == 0
    z, y = draw_batch(1, labels=[label])
    assert loss(z, y).item() == 0  # a positive, and nothing of another class


def test_two_backward_passes_after_two_steps_do_not_disturb_each_other() -> None:
    """The memory changes in place; what the first step saved for its backward pass does not."""

    class Raw(Triplet):
        normalise = False

    loss: Any = cross_batch_memory(Raw)(warmup=0.0, margin=5.0)
    loss.setup(DIM, CLASSES)
    loss.prepare(6, DIM)
    z, y = (draw_batch(0)[0].float().requires_grad_(), draw_batch(0)[1])
    first = loss(z, y)
    expected = gradient_of(copy.deepcopy(loss)(z, y), z)
    second = loss(z, y)
    assert torch.isfinite(gradient_of(first, z)).all()
    torch.testing.assert_close(gradient_of(second, z), expected)


# --- State ---


@every_memory_loss
@for_each("steps", [1, 2, 3, 4, 5])
def test_a_state_that_is_loaded_goes_on_to_the_bit(name: str, steps: int) -> None:
    """In the warm-up, with a memory that is partly filled, exactly full, and wrapped around."""
    batches = [draw_batch(seed) for seed in range(9)]

    def begin() -> Any:
        return build(name, samples=24, memory=0.5, warmup=0.5)

    loss, other = begin(), begin()
    for z, y in batches[:steps]:
        loss(z, y)
    other.load_state_dict(copy.deepcopy(loss.state_dict()))
    for z, y in batches[steps:]:
        assert loss(z, y).item() == other(z, y).item()
    assert all(
        torch.equal(mine, its) for mine, its in zip(loss.buffers(), other.buffers(), strict=True)
    )


@every_memory_loss
def test_buffers_keep_their_shapes_and_their_place(name: str) -> None:
    loss = build(name)
    before = {key: (buffer.data_ptr(), buffer.shape) for key, buffer in loss.named_buffers()}
    assert set(before) == {"embeddings", "labels", "enqueued", "seen"}
    for seed in range(5):
        loss(*draw_batch(seed))
    assert {
        key: (buffer.data_ptr(), buffer.shape) for key, buffer in loss.named_buffers()
    } == before


# --- Laws after the warm-up ---


def after_steps(name: str, **own: Any) -> Any:
    """A loss whose memory is full and has wrapped around."""
    loss = build(name, memory=0.7, **own)
    for seed in range(10, 14):
        loss(*draw_batch(seed))
    return loss


@every_memory_loss
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    z, y = draw_batch(0)
    loss, order = after_steps(name), torch.tensor([3, 0, 5, 1, 4, 2])
    assert len(y) < len(loss.labels)
    value = copy.deepcopy(loss)(z, y)
    torch.testing.assert_close(loss(z[order], y[order]), value, rtol=1e-10, atol=1e-12)


@every_memory_loss
def test_scale_of_the_embeddings_does_not_matter(name: str) -> None:
    small, large = build(name), build(name)
    for seed in range(4):
        z, y = draw_batch(seed)
        torch.testing.assert_close(small(z / 9, y), large(100 * z, y), rtol=1e-9, atol=1e-12)


@every_memory_loss
@for_each("dtype", [torch.int32, torch.int16, torch.int8], ids=str)
def test_type_of_the_labels_does_not_matter(name: str, dtype: torch.dtype) -> None:
    loss, other = build(name), build(name)
    for seed in range(3):
        z, y = draw_batch(seed)
        assert loss(z, y.to(dtype)).item() == other(z, y).item()


@every_memory_loss
@for_each("labels", [[0, 1, 2, 3], [0] * 6, [0], []], ids=str)
def test_value_and_gradient_are_finite_whatever_is_missing(name: str, labels: list[int]) -> None:
    for loss in (build(name), after_steps(name)):
        for _ in range(2):  # the second time against its own past, at distance 0
            z = draw_batch(0, labels=labels)[0].requires_grad_()
            value = loss(z, torch.tensor(labels, dtype=torch.long))
            assert torch.isfinite(value)
            assert torch.isfinite(gradient_of(value, z)).all()


@every_memory_loss
def test_single_precision_and_half_precision_are_near_double_precision(name: str) -> None:
    exact, single = build(name), build(name, dtype=torch.float32)
    for seed in range(4):
        z, y = draw_batch(seed)
        expected = exact(z, y).item()
        assert single(z.float(), y).item() == pytest.approx(expected, rel=1e-4)
    rough = single(z.bfloat16().requires_grad_(), y)
    assert rough.dtype == single.embeddings.dtype == torch.float32
    assert rough.item() == pytest.approx(exact(z, y).item(), rel=0.1)


def test_a_weight_of_the_wrapped_loss_is_trained_by_both_terms() -> None:
    """A boundary beyond all pairs: each term is the mean of [b - d + m]+, of slope 1."""
    loss = build("xbm_margin", beta=5.0, margin=0.0, weight=0.5)
    assert [name for name, _ in loss.named_parameters()] == list(loss.undecayed) == ["loss.beta"]
    z, y = draw_batch(0)
    assert gradient_of(loss(z, y), loss.loss.beta).item() == pytest.approx(1.5)


# --- Wrapping a loss ---


class Raw(Contrastive):
    """Contrastive, on embeddings as they are."""

    normalise = False


class Widest(Miner):
    """The pairs with a long anchor, which only raw embeddings have."""

    def __init__(self, *, least: float = 1.5) -> None:
        self.least = least

    def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
        long_N1 = z.norm(dim=1, keepdim=True) > self.least
        pairs = all_pairs(y, references)
        return Pairs(pairs.positive & long_N1, pairs.negative & long_N1)


@pytest.mark.usefixtures("as_before")
def test_a_loss_and_a_miner_of_ones_own_see_the_memory_as_it_is_compared() -> None:
    miners.set("widest", Widest)
    loss: Any = cross_batch_memory(Raw, miner="widest")(warmup=0.0, neg_margin=9.0)
    loss.setup(DIM, CLASSES)
    loss.prepare(12, DIM)
    loss.double()
    assert not loss.normalise
    past, labels = draw_batch(0)
    loss(past, labels)
    z, y = draw_batch(1)
    inner, long_N1 = Raw(neg_margin=9.0), z.norm(dim=1, keepdim=True) > 1.5
    assert long_N1.any()
    assert not long_N1.all()
    expected = torch.zeros((), dtype=torch.float64)
    for references in (
        References.of_batch(z, y),
        References(torch.cat([z, past]), torch.cat([y, labels]), torch.arange(6)),
    ):
        pairs = all_pairs(y, references)
        mined = Pairs(pairs.positive & long_N1, pairs.negative & long_N1)
        expected += inner(z, y, mined, references)
    torch.testing.assert_close(loss(z, y), expected)


def test_the_parameters_are_those_of_loss_miner_and_memory() -> None:
    made = cross_batch_memory(Contrastive, miner="multi_similarity")
    assert signature(made) == {
        "pos_margin": 0.0,
        "neg_margin": 0.5,
        "epsilon": 0.1,
        "memory": 1.0,
        "warmup": 1.0,
        "weight": 1.0,
    }
    loss: Any = made(neg_margin=0.7, epsilon=0.3, memory=0.2)
    assert (loss.loss.neg_margin, loss.mining, loss.memory) == (0.7, {"epsilon": 0.3}, 0.2)
    assert made.__module__ == __name__
    with pytest.raises(TypeError, match="'margin'"):
        made(margin=0.2)


def test_the_wrapped_loss_shapes_the_head_and_prepares_its_own_buffers() -> None:
    class Wide(Contrastive):
        def head(self, dim: int) -> HeadShape:
            return HeadShape((dim, dim))

        def prepare(self, samples: int, features: int) -> None:
            self.given = samples, features

    loss: Any = cross_batch_memory(Wide)(memory=0.5)
    shape = loss.head(DIM)
    assert shape == HeadShape((DIM, DIM))
    loss.setup(shape.dim, CLASSES)
    loss.prepare(10, 7)
    assert loss.loss.given == (10, 7)
    assert loss.embeddings.shape == (5, 2 * DIM)


def test_a_run_depends_on_the_code_of_the_wrapped_loss_and_of_the_miner() -> None:
    made = cross_batch_memory(Raw, miner="multi_similarity")
    assert {Raw, Contrastive, miners["multi_similarity"]} <= set(made.written_in())


def test_departures_are_those_of_the_memory_the_loss_and_the_miner() -> None:
    made = cross_batch_memory(Triplet, miner="distance_weighted")
    own = (*miners["distance_weighted"].departures, *Triplet.departures)
    assert made.departures[-len(own) :] == own
    assert len(made.departures) > len(own)


class OfFeatures(Loss):
    compares = "seen"

    def forward(self, seen: Seen) -> Tensor:
        return seen.z.sum()


class Refreshed(Contrastive):
    def refresh(self, bank: Any, draw: Any) -> None:
        pass


@for_each("loss", [losses["normalized_softmax"], losses["proxy_anchor"], OfFeatures])
def test_a_loss_that_compares_no_samples_is_refused(loss: type[Loss]) -> None:
    with pytest.raises(ValueError, match=f"{loss.__name__} does not compare .*{loss.compares}"):
        cross_batch_memory(loss)


def test_a_loss_with_a_memory_is_not_wrapped_again() -> None:
    for loss in (losses["xbm_triplet"], cross_batch_memory(Contrastive)):
        with pytest.raises(ValueError, match="does not compare samples"):
            cross_batch_memory(loss)


def test_a_loss_that_fills_buffers_is_refused() -> None:
    remembering = type("Remembering", (Contrastive,), {"remembers": True})
    for loss in (Refreshed, remembering):
        with pytest.raises(ValueError, match=f"{loss.__name__} fills buffers of its own"):
            cross_batch_memory(loss)


def test_a_parameter_that_two_parts_take_is_refused() -> None:
    class Weighed(Contrastive):
        def __init__(self, *, weight: float = 1.0) -> None:
            super().__init__()

    with pytest.raises(ValueError, match="Weighed: the parameter 'weight' is taken by two"):
        cross_batch_memory(Weighed)


def test_an_unknown_miner_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'multi_similarity'"):
        cross_batch_memory(Contrastive, miner="multi_similarty")


def test_a_method_with_a_memory_names_no_miner() -> None:
    with pytest.raises(ValueError, match="takes no mined pairs"):
        Method("m", losses["xbm_triplet"], Space(), miner="semihard")


@every_memory_loss
def test_mined_pairs_and_other_references_are_refused(name: str) -> None:
    z, y = draw_batch(0)
    references = References.of_batch(z, y)
    mined: Mined = all_pairs(y, references)
    for more in ((mined, None), (None, references)):
        with pytest.raises(ValueError, match="has references of its own"):
            build(name)(z, y, *more)


@every_memory_loss
def test_a_loss_without_its_memory_says_that_prepare_is_missing(name: str) -> None:
    loss = losses[name]()
    loss.setup(DIM, CLASSES)
    with pytest.raises(ValueError, match=r"call setup\(dim, classes\) and prepare\(samples"):
        loss(*draw_batch(0))


@every_memory_loss
def test_embeddings_of_another_size_raise_with_both(name: str) -> None:
    z, y = draw_batch(0)
    with pytest.raises(ValueError, match="dim=4, but embeddings have 3 dimensions"):
        build(name)(z[:, :3], y)
