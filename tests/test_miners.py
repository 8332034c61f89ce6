"""Every miner against its rule in loops, and the laws that all of them share."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import miners as pml
from scipy.stats import chisquare
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay.losses import losses
from assay.miners import miners
from assay.miners.distance_weighted import DistanceWeightedMiner
from assay.miners.miner import Miner
from assay.pairs import Mined, Pairs, References, Triplets, all_pairs, as_triplets
from loops import for_each

BUILT_IN = [name for name, miner in miners.items() if miner.__module__.startswith("assay.")]
few_examples = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)

Row = list[float]
Choice = tuple[int, set[int], set[int]]
"""A triplet that is to be mined: its anchor, the positives that may be in it, the negatives that
may be in it.
"""


# --- The rules, one pair at a time, no tensors ---


@dataclass
class Case:
    """A batch in plain numbers, as the miner sees it, the columns that each sample may be compared
    with, and each sample's own column.
    """

    z: list[Row]
    references: list[Row]
    positives: list[list[int]]
    negatives: list[list[int]]
    own: list[int] | None

    def distance(self, anchor: int, column: int) -> float:
        difference = [a - b for a, b in zip(self.z[anchor], self.references[column], strict=True)]
        return math.sqrt(math.fsum(x * x for x in difference))

    def similarity(self, anchor: int, column: int) -> float:
        return math.fsum(
            a * b for a, b in zip(self.z[anchor], self.references[column], strict=True)
        )

    def nearest(self, anchor: int, columns: list[int]) -> set[int]:
        """Several where they cannot be told apart."""
        distances = {column: self.distance(anchor, column) for column in columns}
        return {column for column, d in distances.items() if d <= min(distances.values()) + 1e-9}

    def farthest(self, anchor: int, columns: list[int]) -> set[int]:
        distances = {column: self.distance(anchor, column) for column in columns}
        return {column for column, d in distances.items() if d >= max(distances.values()) - 1e-9}

    def pairs(self) -> list[tuple[int, int]]:
        return [
            (anchor, column) for anchor, columns in enumerate(self.positives) for column in columns
        ]

    def pushed(self) -> list[tuple[int, int]]:
        return [
            (anchor, column) for anchor, columns in enumerate(self.negatives) for column in columns
        ]

    def triplets(self) -> list[tuple[int, int, int]]:
        return [
            (anchor, positive, negative)
            for anchor, positive in self.pairs()
            for negative in self.negatives[anchor]
        ]


def beyond(case: Case, anchor: int, radius: float) -> set[int]:
    """The closest negative with d_an > the radius; where there is none, the farthest. On the edge
    rounding decides.
    """
    found: set[int] = set()
    for edge in (radius - 1e-9, radius + 1e-9) if radius > 0 else (radius,):
        farther = [
            column for column in case.negatives[anchor] if case.distance(anchor, column) > edge
        ]
        found |= (
            case.nearest(anchor, farther)
            if farther
            else case.farthest(anchor, case.negatives[anchor])
        )
    return found


def semihard(case: Case) -> list[Choice]:
    """For each (a, p) the closest n with d_an > d_ap; where there is none, the farthest n."""
    pairs = [(anchor, positive) for anchor, positive in case.pairs() if case.negatives[anchor]]
    return [
        (anchor, {positive}, beyond(case, anchor, case.distance(anchor, positive)))
        for anchor, positive in pairs
    ]


def hard(case: Case) -> list[Choice]:
    """Hardest positive and hardest negative of each anchor."""
    chosen = []
    for anchor, (positives, negatives) in enumerate(
        zip(case.positives, case.negatives, strict=True)
    ):
        if positives and negatives:
            chosen.append(
                (anchor, case.farthest(anchor, positives), case.nearest(anchor, negatives))
            )
    return chosen


def easy_positive(case: Case, negatives: str = "semihard") -> list[Choice]:
    """Closest positive of each anchor, with the hardest or with a semi-hard negative."""
    chosen = []
    for anchor, (same, other) in enumerate(zip(case.positives, case.negatives, strict=True)):
        if same and other:
            radius = min(case.distance(anchor, positive) for positive in same)
            against = (
                case.nearest(anchor, other) if negatives == "hard" else beyond(case, anchor, radius)
            )
            chosen.append((anchor, case.nearest(anchor, same), against))
    return chosen


def every(case: Case) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """All of them."""
    return set(case.pairs()), set(case.pushed())


def multi_similarity(
    case: Case, epsilon: float = 0.1
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Eq. 12, 13: a negative if s_an > min_p s_ap - eps, a positive if s_ap < max_n s_an + eps."""
    positives, negatives = set(), set()
    for anchor, (same, other) in enumerate(zip(case.positives, case.negatives, strict=True)):
        similar = {column: case.similarity(anchor, column) for column in (*same, *other)}
        positives |= {
            (anchor, p)
            for p in same
            if other and similar[p] < max(similar[n] for n in other) + epsilon
        }
        negatives |= {
            (anchor, n)
            for n in other
            if same and similar[n] > min(similar[p] for p in same) - epsilon
        }
    return positives, negatives


def distance_weighted(
    case: Case, anchor: int, dim: int, cutoff: float = 0.5, limit: float = 1.4
) -> dict[int, float]:
    """Probability of each negative of an anchor, for each of its positives anew.

    log w = (2 - D) log d - (D - 3)/2 log(1 - d^2/4), d clipped below, weight 0 above the limit, the
    largest of what is left subtracted; where nothing is left, all negatives alike.
    """
    logs = {}
    for column in case.negatives[anchor]:
        if case.distance(anchor, column) <= limit:
            d = max(case.distance(anchor, column), cutoff)
            logs[column] = (2 - dim) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4)
    if not logs:
        return {column: 1 / len(case.negatives[anchor]) for column in case.negatives[anchor]}
    weights = {column: math.exp(value - max(logs.values())) for column, value in logs.items()}
    return {
        column: weights.get(column, 0.0) / math.fsum(weights.values())
        for column in case.negatives[anchor]
    }


def rho(
    case: Case,
    anchor: int,
    dim: int,
    swap_probability: float = 0.2,
    cutoff: float = 0.5,
    limit: float = 1.4,
) -> dict[tuple[int, int], float]:
    """Probability of each positive with each sample pushed away, for an anchor.

    All positives alike. With the swap probability all other samples of the class alike, or, where
    there is no other, the positive itself, with the anchor in its place; else a negative as
    distance-weighted sampling draws it.
    """
    same, chances = case.positives[anchor], Counter[tuple[int, int]]()
    if not same or not case.negatives[anchor]:
        return {}
    for positive in same:
        swapped = [(positive, third) for third in same if third != positive]
        if not swapped and case.own is not None:
            swapped = [(case.own[anchor], positive)]
        kept = 1 - swap_probability if swapped else 1.0
        drawn = distance_weighted(case, anchor, dim, cutoff, limit)
        for pushed, chance in drawn.items():
            chances[positive, pushed] += kept * chance / len(same)
        for pair in swapped:
            chances[pair] += swap_probability / len(swapped) / len(same)
    return dict(chances)


def random_pairs(case: Case) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Probability of every set of positive and of negative pairs: N/2 pairs, half of them positive,
    as far as there are.
    """
    count = len(case.z)
    half = count // 4
    return subsets(case.pairs(), max(1, half)), subsets(case.pushed(), max(1, count // 2 - half))


def random_triplets(case: Case) -> dict[Hashable, float]:
    """Probability of every set of N/3 different triplets."""
    return subsets(case.triplets(), max(1, len(case.z) // 3))


def subsets(items: list[Any], count: int) -> dict[Hashable, float]:
    chosen = [frozenset(part) for part in itertools.combinations(items, min(count, len(items)))]
    return {part: 1 / len(chosen) for part in chosen}


PAIR_RULES: dict[str, Callable[..., tuple[set[tuple[int, int]], set[tuple[int, int]]]]] = {
    "all": every,
    "multi_similarity": multi_similarity,
}
TRIPLET_RULES: dict[str, Callable[..., list[Choice]]] = {
    "semihard": semihard,
    "hard": hard,
    "easy_positive": easy_positive,
}
CHANCES: dict[str, tuple[Callable[..., Any], ...]] = {
    "random": (random_pairs, random_triplets),
    "distance_weighted": (distance_weighted,),
    "rho": (rho,),
}
"""What may be drawn, and how likely it is."""

LISTED = {"listed_triplets": 3, "listed_pairs": 2}
"""Miners that go by the places in the batch, and how many parts they want it to have: the laws of
the others do not hold for them.
"""


# --- Miners and batches to try them on ---

Setting = tuple[str, dict[str, Any]]
SETTINGS: list[Setting] = [
    ("all", {}),
    ("semihard", {}),
    ("hard", {}),
    ("easy_positive", {"negatives": "semihard"}),
    ("easy_positive", {"negatives": "hard"}),
    ("multi_similarity", {}),
    ("distance_weighted", {}),
    ("rho", {}),
    ("rho", {"swap_probability": 1.0}),
    ("random", {"of": "pairs"}),
    ("random", {"of": "triplets"}),
]


def spelled(setting: Setting) -> str:
    name, parameters = setting
    return " ".join([name, *map(str, parameters.values())])


every_miner = for_each("setting", SETTINGS, ids=spelled)
every_sure_miner = for_each(
    "setting", [part for part in SETTINGS if part[0] not in CHANCES], ids=spelled
)
every_random_miner = for_each(
    "setting", [part for part in SETTINGS if part[0] in CHANCES], ids=spelled
)


def make(name: str, **parameters: Any) -> Miner:
    miner: Any = miners[name]
    made: Miner = miner(**parameters)
    return made


def build(setting: Setting) -> Miner:
    return make(setting[0], **setting[1])


def unit(row: Row) -> Row:
    length = math.sqrt(math.fsum(x * x for x in row))
    return [x / length for x in row]


def draw_batch(
    draw: random.Random, count: int, dim: int, classes: int
) -> tuple[list[Row], list[int]]:
    rows = [[draw.gauss(0, 1) for _ in range(dim)] for _ in range(count)]
    return rows, draw.choices(
        range(classes), weights=[draw.random() ** 3 + 1e-3 for _ in range(classes)], k=count
    )


@dataclass
class World:
    """A batch, what it is compared with (itself, where `memory` is None), and both in plain
    numbers.
    """

    z: Tensor
    y: Tensor
    memory: References | None
    case: Case

    @classmethod
    def of(
        cls,
        z: list[Row],
        y: list[int],
        past: list[Row] | None = None,
        labels: list[int] | None = None,
        own: list[int] | None = None,
        normalise: bool = True,
    ) -> "World":
        dim = len(z[0])
        batch = torch.tensor(z, dtype=torch.float64), torch.tensor(y)
        memory = None
        if past is not None and labels is not None:
            references = (
                torch.tensor(past, dtype=torch.float64).reshape(-1, dim),
                torch.tensor(labels, dtype=torch.long),
            )
            memory = References(*references, None if own is None else torch.tensor(own))
        else:
            past, labels, own = z, y, list(range(len(y)))
        columns = range(len(labels))
        seen = unit if normalise else list
        case = Case(
            [seen(row) for row in z],
            [seen(row) for row in past],
            [
                [j for j in columns if labels[j] == y[i] and (own is None or own[i] != j)]
                for i in range(len(y))
            ],
            [[j for j in columns if labels[j] != y[i]] for i in range(len(y))],
            own,
        )
        return cls(*batch, memory, case)

    def mine(self, miner: Miner) -> Mined:
        return miner(self.z, self.y, self.memory)


def draw_world(seed: int, kind: str, normalise: bool = True) -> World:
    """`alone` is a batch with itself; `known` one that lies in a larger memory; `strange` one
    beside a memory of others.
    """
    draw = random.Random(seed)
    dim, classes = draw.randint(2, 5), draw.randint(1, 4)
    z, y = draw_batch(draw, draw.randint(1, 12 if kind == "alone" else 6), dim, classes)
    if kind == "alone":
        return World.of(z, y, normalise=normalise)
    past, labels = draw_batch(draw, draw.randint(1, 9), dim, classes)
    if kind == "strange":
        return World.of(z, y, past, labels, normalise=normalise)
    own = draw.sample(range(len(past) + len(z)), len(z))
    for column, row, label in sorted(zip(own, z, y, strict=True)):
        past.insert(column, row)
        labels.insert(column, label)
    return World.of(z, y, past, labels, own, normalise)


in_every_world = for_each("kind", ["alone", "known", "strange"])


def batch(count: int = 9, dim: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    z = torch.randn(count, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return z, torch.arange(count) % classes


def entries(mask: Tensor) -> set[tuple[int, int]]:
    return {(i, j) for i, j in mask.nonzero().tolist()}


def kept(mined: Mined) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    assert isinstance(mined, Pairs)
    return entries(mined.positive), entries(mined.negative)


def listed(mined: Mined) -> list[tuple[int, int, int]]:
    """The triplets as (row, column, column)."""
    assert isinstance(mined, Triplets)
    return [
        (int(mined.anchor[pair]), int(mined.positive[pair]), n)
        for pair, n in mined.negative.nonzero().tolist()
    ]


def contents(mined: Mined) -> Any:
    """What was mined as plain data, in an order of its own."""
    return kept(mined) if isinstance(mined, Pairs) else sorted(listed(mined))


def mine_seeded(setting: Setting, *arguments: Any) -> Any:
    torch.manual_seed(5)
    return contents(build(setting)(*arguments))


def assert_follows_its_rule(mined: Mined, case: Case, setting: Setting) -> None:
    name, parameters = setting
    if name in PAIR_RULES:
        assert kept(mined) == PAIR_RULES[name](case, **parameters)
    elif name in TRIPLET_RULES:
        found, expected = sorted(listed(mined)), sorted(TRIPLET_RULES[name](case, **parameters))
        assert len(found) == len(expected)
        for (anchor, positive, negative), (whose, positives, negatives) in zip(
            found, expected, strict=True
        ):
            assert anchor == whose
            assert positive in positives
            assert negative in negatives
    else:
        assert_may_be_drawn(mined, case, setting)


def assert_may_be_drawn(mined: Mined, case: Case, setting: Setting) -> None:
    """The support and the counts of a random miner."""
    name, parameters = setting
    count = len(case.z)
    if name == "distance_weighted":
        found = listed(mined)
        assert sorted(triple[:2] for triple in found) == [
            pair for pair in case.pairs() if case.negatives[pair[0]]
        ]
        assert all(
            distance_weighted(case, anchor, len(case.z[0]))[negative] > 0
            for anchor, _, negative in found
        )
    elif name == "rho":
        found = listed(mined)
        chances = [rho(case, anchor, len(case.z[0]), **parameters) for anchor in range(count)]
        assert [anchor for anchor, *_ in found] == [
            anchor for anchor in range(count) if chances[anchor]
        ]
        assert all(chances[anchor].get((p, n), 0) > 0 for anchor, p, n in found)
    elif parameters["of"] == "pairs":
        positives, negatives = kept(mined)
        assert positives <= set(case.pairs())
        assert negatives <= set(case.pushed())
        assert len(positives) == min(len(case.pairs()), max(1, count // 4))
        assert len(negatives) == min(len(case.pushed()), max(1, count // 2 - count // 4))
    else:
        found = listed(mined)
        assert set(found) <= set(case.triplets())
        assert len(found) == len(set(found)) == min(len(case.triplets()), max(1, count // 3))


# --- The rule ---


def test_every_miner_has_its_rule_written_out() -> None:
    assert {*PAIR_RULES, *TRIPLET_RULES, *CHANCES, *LISTED} == set(BUILT_IN)
    assert {name for name, _ in SETTINGS} == set(BUILT_IN) - {*LISTED}


@every_miner
@in_every_world
@given(seed=seeds)
@few_examples
def test_matches_its_rule(setting: Setting, kind: str, seed: int) -> None:
    world = draw_world(seed, kind)
    torch.manual_seed(seed)
    assert_follows_its_rule(world.mine(build(setting)), world.case, setting)


@every_sure_miner
@in_every_world
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_matches_its_rule_on_vectors_that_are_not_normalised(
    setting: Setting, kind: str, seed: int
) -> None:
    """As a method mines whose loss compares such."""
    miner, world = build(setting), draw_world(seed, kind, normalise=False)
    miner.normalise = False
    assert_follows_its_rule(world.mine(miner), world.case, setting)


@given(seed=seeds, epsilon=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
@few_examples
def test_multi_similarity_matches_its_rule_at_any_epsilon(seed: int, epsilon: float) -> None:
    world = draw_world(seed, "alone")
    assert_follows_its_rule(
        world.mine(build(("multi_similarity", {"epsilon": epsilon}))),
        world.case,
        ("multi_similarity", {"epsilon": epsilon}),
    )


@given(seed=seeds, epsilon=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
@few_examples
def test_multi_similarity_keeps_what_pytorch_metric_learning_keeps(
    seed: int, epsilon: float
) -> None:
    """Both read eq. 12 and 13 alike, also where an anchor has no positive or no negative."""
    draw = random.Random(seed)
    rows, labels = draw_batch(draw, draw.randint(2, 12), 4, draw.randint(1, 4))
    z, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    anchors, positives, again, negatives = (
        part.tolist() for part in pml.MultiSimilarityMiner(epsilon)(z, y)
    )
    theirs = set(zip(anchors, positives, strict=True)), set(zip(again, negatives, strict=True))
    assert kept(make("multi_similarity", epsilon=epsilon)(z, y)) == theirs


@given(seed=seeds)
@few_examples
def test_hard_keeps_what_pytorch_metric_learning_keeps(seed: int) -> None:
    draw = random.Random(seed)
    rows, labels = draw_batch(draw, draw.randint(2, 12), 4, draw.randint(1, 4))
    z, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    theirs = zip(*(part.tolist() for part in pml.BatchHardMiner()(z, y)), strict=True)
    assert sorted(listed(make("hard")(z, y))) == sorted(theirs)


def around(degrees: list[float], y: list[int]) -> tuple[Tensor, Tensor]:
    """Unit vectors in the plane."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor(y)


def test_multi_similarity_keeps_only_pairs_within_epsilon_of_the_other_kind() -> None:
    """One anchor at 0 degrees, positives at 10 and 60, negatives at 50 and 90: cosines 0.98, 0.5
    and 0.64, 0.
    """
    positives, negatives = kept(
        make("multi_similarity", epsilon=0.1)(*around([0, 10, 60, 50, 90], [0, 0, 0, 1, 1]))
    )
    assert {pair for pair in positives if pair[0] == 0} == {(0, 2)}
    assert {pair for pair in negatives if pair[0] == 0} == {(0, 3)}


def test_multi_similarity_with_a_wide_epsilon_keeps_every_pair() -> None:
    z, y = batch()
    assert kept(make("multi_similarity", epsilon=2.1)(z, y)) == kept(
        all_pairs(y, References.of_batch(z, y))
    )


@pytest.mark.parametrize(
    ("setting", "of_first"),
    [
        (("semihard", {}), [(0, 1, 4), (0, 2, 5)]),
        (("hard", {}), [(0, 2, 3)]),
        (("easy_positive", {"negatives": "hard"}), [(0, 1, 3)]),
        (("easy_positive", {"negatives": "semihard"}), [(0, 1, 4)]),
    ],
    ids=lambda part: spelled(part) if isinstance(part[0], str) else "",
)
def test_some_triplets_that_one_can_see(
    setting: Setting, of_first: list[tuple[int, int, int]]
) -> None:
    """One anchor at 0 degrees, positives at 20 and 80, negatives at 10, 50 and 70: none of these is
    beyond 80.
    """
    mined = build(setting)(*around([0, 20, 80, 10, 50, 70], [0, 0, 0, 1, 1, 2]))
    assert sorted(triple for triple in listed(mined) if triple[0] == 0) == of_first


# --- Chance ---


def frequencies_agree(counts: Counter[Hashable], chances: dict[Hashable, float]) -> bool:
    """Pearson's test; what is expected less than 10 times is taken together."""
    total = sum(counts.values())
    assert set(counts) <= {outcome for outcome, chance in chances.items() if chance > 0}
    often = [outcome for outcome, chance in chances.items() if chance * total >= 10]
    seen, expected = (
        [counts[outcome] for outcome in often],
        [chances[outcome] * total for outcome in often],
    )
    if len(often) < len(chances):
        seen, expected = [*seen, total - sum(seen)], [*expected, total - math.fsum(expected)]
    if expected[-1] < 1:
        seen, expected = (
            [*seen[:-2], seen[-2] + seen[-1]],
            [*expected[:-2], expected[-2] + expected[-1]],
        )
    assert len(expected) > 1
    return bool(chisquare(seen, expected).pvalue > 1e-4)


def at_distances(anchor: Row, apart: list[float], draw: random.Random) -> list[Row]:
    """Unit vectors so far from a unit vector, each in a direction of its own."""
    found = []
    for d in apart:
        step = [draw.gauss(0, 1) for _ in anchor]
        along = math.fsum(a * b for a, b in zip(step, anchor, strict=True))
        across = unit([a - along * b for a, b in zip(step, anchor, strict=True)])
        cosine = 1 - d * d / 2
        found.append(
            [
                cosine * a + math.sqrt(1 - cosine * cosine) * b
                for a, b in zip(anchor, across, strict=True)
            ]
        )
    return found


DRAWS = 1500
ANCHORS = 50


def draw_negatives(
    miner: Miner, anchor: Row, past: list[Row], labels: list[int]
) -> tuple[list[list[int]], Case]:
    """What is drawn for each positive of an anchor, often: it stands in the batch many times."""
    world = World.of([anchor] * ANCHORS, [0] * ANCHORS, past, labels)
    drawn: list[list[int]] = []
    torch.manual_seed(0)
    for _ in range(DRAWS // ANCHORS):
        mined = world.mine(miner)
        assert isinstance(mined, Triplets)
        assert mined.negative.sum(1).eq(1).all()
        drawn += mined.negative.nonzero()[:, 1].view(ANCHORS, -1).tolist()
    return drawn, world.case


@pytest.mark.parametrize(
    ("dim", "apart"),
    [
        (4, [0.2, 0.4999, 0.7, 0.9, 1.1, 1.3, 1.3999, 1.4001, 1.9]),
        (3, [0.3, 0.8, 1.2, 1.39, 1.7]),
        (16, [1.05, 1.15, 1.25, 1.35, 1.395, 1.41]),
        (128, [1.3, 1.32, 1.34, 1.36, 1.39, 1.41]),
        (4, [1.41, 1.5, 1.7, 1.9, 1.99]),
        (4, [0.3, 1.5]),
    ],
    ids=["4 dims", "3 dims", "16 dims", "128 dims", "no mass", "one with mass"],
)
def test_distance_weighted_draws_each_negative_as_often_as_its_weight_says(
    dim: int, apart: list[float]
) -> None:
    """One anchor, two positives: both draws at once, so that they are seen to be independent of
    each other.
    """
    draw = random.Random(dim)
    anchor = unit([draw.gauss(0, 1) for _ in range(dim)])
    past = [*at_distances(anchor, [0.4, 1.1], draw), *at_distances(anchor, apart, draw)]
    drawn, case = draw_negatives(
        make("distance_weighted"), anchor, past, [0, 0, *range(1, len(apart) + 1)]
    )
    chances = distance_weighted(case, 0, dim)
    joint: dict[Hashable, float] = {
        (one, two): p * q for one, p in chances.items() for two, q in chances.items()
    }
    if math.isclose(max(chances.values()), 1):
        assert drawn == [[2, 2]] * DRAWS
    else:
        assert frequencies_agree(Counter((one, two) for one, two in drawn), joint)


def test_distance_weighted_draws_uniformly_where_no_negative_has_mass() -> None:
    """The rule gives so; here the reference itself is looked at."""
    draw = random.Random(0)
    anchor = unit([1.0, 2.0, 3.0])
    past = at_distances(anchor, [0.5, 1.5, 1.8, 1.95], draw)
    world = World.of([anchor], [0], past, [0, 1, 1, 2])
    assert distance_weighted(world.case, 0, 3) == {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}
    assert_follows_its_rule(
        world.mine(make("distance_weighted")), world.case, ("distance_weighted", {})
    )


@pytest.mark.parametrize("dim", [4, 128, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_distance_weighted_weighs_by_its_formula(dim: int, dtype: torch.dtype) -> None:
    """Up to a constant of each row. One row has negatives on both sides of the limit, one none
    below, one none at all.
    """
    d = torch.tensor(
        [
            [0.0, 0.3, 0.5, 0.8, 1.1, 1.3, 1.4, 1.45, 2.0],
            [1.41, 1.5, 1.6, 1.7, 1.8, 1.9, 1.95, 1.99, 2.0],
        ]
    ).to(dtype)
    d = torch.cat([d, d[:1]])
    negative = torch.ones(3, 9, dtype=torch.bool)
    negative[0, 4], negative[1, 3], negative[2] = False, False, False
    miner = make("distance_weighted", limit=1.4000001)
    assert isinstance(miner, DistanceWeightedMiner)
    found = miner.log_weights(d, negative, dim).double()

    def formula(distance: float) -> float:
        clipped = max(distance, 0.5)
        return (2 - dim) * math.log(clipped) - (dim - 3) / 2 * math.log(1 - clipped**2 / 4)

    admitted = [0, 1, 2, 3, 5, 6]
    expected = [formula(value) - formula(0.5) for value in d[0, admitted].tolist()]
    assert (found[0, admitted] - found[0, 0]).tolist() == pytest.approx(
        expected, rel=1e-5 if dtype == torch.float32 else 1e-10
    )
    assert found[0, [4, 7, 8]].tolist() == [-math.inf] * 3
    assert found[1].tolist() == [0.0, 0.0, 0.0, -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert found[2].tolist() == [-math.inf] * 9


@pytest.mark.parametrize(("cutoff", "limit"), [(0.1, 1.4), (0.5, 0.9), (1.0, 2.0)])
def test_distance_weighted_goes_by_its_cutoff_and_its_limit(cutoff: float, limit: float) -> None:
    draw = random.Random(1)
    anchor = unit([draw.gauss(0, 1) for _ in range(5)])
    past = [
        *at_distances(anchor, [0.4], draw),
        *at_distances(anchor, [0.2, 0.6, 0.8, 1.2, 1.8], draw),
    ]
    miner = make("distance_weighted", cutoff=cutoff, limit=limit)
    drawn, case = draw_negatives(miner, anchor, past, [0, 1, 1, 2, 2, 3])
    chances: dict[Hashable, float] = dict(distance_weighted(case, 0, 5, cutoff, limit).items())
    assert frequencies_agree(Counter(negative for (negative,) in drawn), chances)


RHO_WORLDS: dict[str, tuple[list[float], list[float], bool]] = {
    "four of a class": ([0.4, 0.8, 1.2], [0.3, 0.9, 1.3, 1.5], True),
    "two of a class": ([0.4], [0.3, 0.9, 1.3, 1.5], True),
    "a stranger to a class of two": ([0.4, 0.8], [0.3, 0.9, 1.3, 1.5], False),
    "a stranger to a class of one": ([0.4], [0.3, 0.9, 1.3, 1.5], False),
    "no mass": ([0.4, 0.8], [1.45, 1.6, 1.9], True),
}
"""Distances from an anchor to the other samples of its class and to those of other classes, and
whether the anchor itself is among the references.
"""


def draw_rho(miner: Miner, name: str, dim: int) -> tuple[Counter[Hashable], Case]:
    """Often drawn pairs of a positive and a pushed sample of an anchor."""
    draw = random.Random(dim)
    anchor = unit([draw.gauss(0, 1) for _ in range(dim)])
    same, others, known = RHO_WORLDS[name]
    past = [anchor] * known + at_distances(anchor, [*same, *others], draw)
    labels = [0] * (known + len(same)) + list(range(1, len(others) + 1))
    batch, own = [anchor] * ANCHORS, [0] * ANCHORS if known else None
    world = World.of(batch, [0] * ANCHORS, past, labels, own)
    torch.manual_seed(0)
    drawn: Counter[Hashable] = Counter()
    for _ in range(DRAWS // ANCHORS):
        found = listed(world.mine(miner))
        assert [row for row, *_ in found] == list(range(ANCHORS))
        drawn.update((positive, pushed) for _, positive, pushed in found)
    return drawn, world.case


@pytest.mark.parametrize("name", list(RHO_WORLDS))
@pytest.mark.parametrize("swap_probability", [0.0, 0.3, 1.0])
def test_rho_draws_each_triplet_as_often_as_its_rule_says(
    name: str, swap_probability: float
) -> None:
    drawn, case = draw_rho(make("rho", swap_probability=swap_probability), name, 4)
    chances: dict[Hashable, float] = dict(rho(case, 0, 4, swap_probability).items())
    likely = [outcome for outcome, chance in chances.items() if chance > 0]
    if len(likely) == 1:
        assert drawn == {likely[0]: DRAWS}
    else:
        assert frequencies_agree(drawn, chances)


def test_rho_goes_by_its_cutoff_and_its_limit() -> None:
    drawn, case = draw_rho(make("rho", cutoff=1.0, limit=2.0), "four of a class", 5)
    assert frequencies_agree(drawn, dict(rho(case, 0, 5, cutoff=1.0, limit=2.0).items()))


def test_rho_without_a_swap_pushes_only_other_classes_and_with_one_only_the_own() -> None:
    z, y = batch(count=32, classes=8)
    for swap_probability, of_own_class in ((0.0, False), (1.0, True)):
        found = listed(make("rho", swap_probability=swap_probability)(z, y))
        assert [anchor for anchor, *_ in found] == list(range(32))
        assert all(y[anchor] == y[positive] for anchor, positive, _ in found)
        assert {bool(y[anchor] == y[pushed]) for anchor, _, pushed in found} == {of_own_class}
        assert all(len(set(triplet)) == 3 for triplet in found)


@pytest.mark.parametrize("swap_probability", [0.1, 0.2, 0.6])
def test_rho_swaps_as_often_as_it_is_told(swap_probability: float) -> None:
    """Within four standard deviations of a binomial count."""
    torch.manual_seed(0)
    z, y = batch(count=32, classes=8)
    miner, draws = make("rho", swap_probability=swap_probability), 100 * 32
    drawn = [triplet for _ in range(100) for triplet in listed(miner(z, y))]
    assert len(drawn) == draws
    swaps = sum(bool(y[anchor] == y[pushed]) for anchor, _, pushed in drawn)
    deviation = math.sqrt(draws * swap_probability * (1 - swap_probability))
    assert abs(swaps - draws * swap_probability) < 4 * deviation


def test_rho_has_one_triplet_for_each_anchor_that_has_a_positive_and_a_negative() -> None:
    """Classes of three, two and one; then one class alone."""
    z = batch(count=6)[0]
    for labels, anchors in (([0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 4]), ([0] * 6, [])):
        found = listed(make("rho", swap_probability=1.0)(z, torch.tensor(labels)))
        assert [anchor for anchor, *_ in found] == anchors


def test_rho_swaps_the_only_positive_of_a_class_of_two_for_the_anchor_itself() -> None:
    """Else one pair would be pulled together and pushed apart in the same triplet."""
    z, y = batch(count=4)[0], torch.tensor([0, 0, 1, 1])
    found = listed(make("rho", swap_probability=1.0)(z, y))
    assert found == [(0, 0, 1), (1, 1, 0), (2, 2, 3), (3, 3, 2)]
    memory = References(z[[1, 2]], y[[1, 2]], None)
    assert listed(make("rho", swap_probability=1.0)(z[:1], y[:1], memory)) == [(0, 0, 1)]


RANDOM_WORLDS: dict[str, tuple[list[int], list[int] | None]] = {
    "alone": ([0, 0, 0, 1], None),
    "unequal classes": ([0, 0, 1, 1, 1], None),
    "two at a time": ([0, 0, 0, 0, 1, 1, 1, 1], [0]),
    "two triplets at a time": ([0, 0, 0, 0, 0, 0], [0, 0, 1]),
}
in_random_worlds = pytest.mark.parametrize("world", list(RANDOM_WORLDS))


def random_world(name: str) -> World:
    y, labels = RANDOM_WORLDS[name]
    rows = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(0)).tolist()
    return World.of(rows, y) if labels is None else World.of(rows, y, rows[: len(labels)], labels)


@in_random_worlds
def test_random_draws_every_set_of_pairs_equally_often(world: str) -> None:
    torch.manual_seed(0)
    there, miner = random_world(world), make("random", of="pairs")
    drawn = [kept(there.mine(miner)) for _ in range(DRAWS)]
    for kind, chances in enumerate(random_pairs(there.case)):
        counts: Counter[Hashable] = Counter(frozenset(pairs[kind]) for pairs in drawn)
        assert set(counts) == set(chances)
        assert len(chances) == 1 or frequencies_agree(counts, chances)


@in_random_worlds
def test_random_draws_every_set_of_triplets_equally_often(world: str) -> None:
    torch.manual_seed(0)
    there, miner = random_world(world), make("random", of="triplets")
    counts: Counter[Hashable] = Counter(frozenset(listed(there.mine(miner))) for _ in range(DRAWS))
    chances = random_triplets(there.case)
    assert set(counts) <= set(chances)
    assert len(chances) == 1 or frequencies_agree(counts, chances)


@pytest.mark.parametrize(
    ("count", "pairs", "triplets"),
    [(32, (8, 8), 10), (33, (8, 8), 11), (8, (2, 2), 2), (120, (30, 30), 40)],
)
def test_random_takes_as_many_as_would_use_each_sample_once(
    count: int, pairs: tuple[int, int], triplets: int
) -> None:
    """N/2 pairs, half of them positive; N/3 triplets."""
    z, y = batch(count, classes=4)
    assert tuple(map(len, kept(make("random", of="pairs")(z, y)))) == pairs
    assert len(set(listed(make("random", of="triplets")(z, y)))) == triplets


def test_random_takes_all_that_there_are_where_these_are_fewer() -> None:
    z, _ = batch(12)
    y = torch.tensor([0, 0, *range(1, 11)])
    positives, negatives = kept(make("random", of="pairs")(z, y))
    assert positives == {(0, 1), (1, 0)}
    assert len(negatives) == 3
    few = References(z[:3], torch.tensor([0, 0, 1]), None)
    mined = make("random", of="triplets")(z, torch.tensor([0] + [7] * 11), few)
    assert sorted(listed(mined)) == [(0, 0, 2), (0, 1, 2)]


@every_random_miner
def test_a_seed_decides_what_is_drawn(setting: Setting) -> None:
    z, y = batch(24)
    drawn = []
    for seed in (1, 2, 3, 1):
        torch.manual_seed(seed)
        drawn.append([contents(build(setting)(z, y)) for _ in range(2)])
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


@every_sure_miner
def test_a_miner_without_chance_leaves_the_generator_alone(setting: Setting) -> None:
    before = torch.random.get_rng_state()
    z, y = batch()
    assert contents(build(setting)(z, y)) == contents(build(setting)(z, y))
    assert torch.equal(torch.random.get_rng_state(), before)


# --- Laws ---


def assert_is_well_formed(mined: Mined, count: int, columns: int) -> None:
    if isinstance(mined, Pairs):
        assert mined.positive.shape == mined.negative.shape == (count, columns)
        assert mined.positive.dtype == mined.negative.dtype == torch.bool
    else:
        assert mined.anchor.shape == mined.positive.shape == mined.negative.shape[:1]
        assert mined.negative.shape[1] == columns
        assert (mined.anchor.dtype, mined.positive.dtype, mined.negative.dtype) == (
            torch.long,
            torch.long,
            torch.bool,
        )
    assert not any(part.requires_grad for part in vars(mined).values())


@every_miner
@in_every_world
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_keeps_only_pairs_and_triplets_that_there_are(
    setting: Setting, kind: str, seed: int
) -> None:
    world = draw_world(seed, kind)
    mined = world.mine(build(setting))
    assert_is_well_formed(mined, len(world.z), len(world.case.references))
    if isinstance(mined, Pairs):
        positives, negatives = kept(mined)
        assert positives <= set(world.case.pairs())
        assert negatives <= set(world.case.pushed())
    else:
        found = listed(mined)
        assert len(set(found)) == len(found)
        if setting[0] == "rho":
            assert_follows_its_rule(mined, world.case, setting)
        else:
            assert set(found) <= set(world.case.triplets())


@every_miner
def test_keeps_something_where_there_is_something(setting: Setting) -> None:
    mined = build(setting)(*batch())
    if isinstance(mined, Pairs):
        assert mined.positive.any()
    assert mined.negative.any()


@every_sure_miner
def test_order_of_the_batch_does_not_matter(setting: Setting) -> None:
    z, y = batch()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    place = order.tolist()
    found, shuffled = build(setting)(z, y), build(setting)(z[order], y[order])
    if isinstance(found, Pairs) and isinstance(shuffled, Pairs):
        assert torch.equal(found.positive[order][:, order], shuffled.positive)
        assert torch.equal(found.negative[order][:, order], shuffled.negative)
    else:
        assert sorted((place[a], place[p], place[n]) for a, p, n in listed(shuffled)) == sorted(
            listed(found)
        )


@every_miner
def test_names_of_the_labels_do_not_matter(setting: Setting) -> None:
    z, y = batch()
    assert mine_seeded(setting, z, torch.tensor([2**40, -3, 2**40 + 1])[y]) == mine_seeded(
        setting, z, y
    )


@every_miner
def test_scale_of_the_embeddings_does_not_matter(setting: Setting) -> None:
    z, y = batch()
    scales = torch.logspace(-3, 3, 9, dtype=torch.float64)[:, None]
    assert mine_seeded(setting, z * scales, y) == mine_seeded(setting, z, y)
    past, labels = batch(5)
    near, far = (References(past * scale, labels, None) for scale in (1, 1000))
    assert mine_seeded(setting, z * scales, y, far) == mine_seeded(setting, z, y, near)


@every_miner
@for_each("labels", [[0, 1, 2, 3], [0, 0, 0, 0], [0], [0, 0], [0, 1]], ids=str)
def test_there_is_no_triplet_where_one_kind_of_pair_is_missing(
    setting: Setting, labels: list[int]
) -> None:
    """No positives, no negatives, one sample, two of a class, two of two classes."""
    z, y = batch(count=len(labels))[0], torch.tensor(labels)
    world = World.of(z.tolist(), labels)
    mined = build(setting)(z, y)
    assert_is_well_formed(mined, len(labels), len(labels))
    assert_follows_its_rule(mined, world.case, setting)
    assert not as_triplets(mined).negative.any()
    if setting[0] == "multi_similarity":
        assert kept(mined) == (set(), set())


@every_miner
def test_an_anchor_that_lacks_one_kind_of_pair_does_not_keep_the_others_from_theirs(
    setting: Setting,
) -> None:
    """Class 1 has one sample: an anchor without a positive among others."""
    z, _ = batch(count=7)
    labels = [0, 0, 0, 1, 2, 2, 2]
    mined, world = build(setting)(z, torch.tensor(labels)), World.of(z.tolist(), labels)
    assert_follows_its_rule(mined, world.case, setting)
    if isinstance(mined, Triplets):
        assert all(anchor != 3 for anchor, _, _ in listed(mined))


@every_miner
@for_each("count", [1, 4])
def test_an_empty_memory_has_nothing_to_mine(setting: Setting, count: int) -> None:
    z, y = batch(count)
    mined = build(setting)(z, y, References(z[:0], y[:0], None))
    assert_is_well_formed(mined, count, 0)
    assert not as_triplets(mined).negative.any()
    leaf = z.clone().requires_grad_()
    value = losses["triplet"]()(leaf, y, mined, References(z[:0], y[:0], None))
    assert value.item() == 0


@every_miner
@given(seed=seeds)
@few_examples
def test_duplicates_are_mined_like_any_other_pair(setting: Setting, seed: int) -> None:
    """Where several choices are equally good, any of them will do."""
    draw = random.Random(seed)
    z, y = draw_batch(draw, draw.randint(2, 10), 3, 3)
    for target in range(1, len(z)):
        if draw.random() < 0.5:
            z[target] = list(z[draw.randrange(target)])
    world = World.of(z, y)
    assert_follows_its_rule(world.mine(build(setting)), world.case, setting)


@pytest.mark.parametrize(
    "setting", [("semihard", {}), ("easy_positive", {"negatives": "semihard"})], ids=spelled
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_negative_as_near_as_the_positive_is_not_beyond_it(
    setting: Setting, dtype: torch.dtype
) -> None:
    """Anchor, positive and a negative are the same vector, at distance 0; the other negative is
    farther than that.
    """
    z = torch.randn(128, generator=torch.Generator().manual_seed(0)).to(dtype).repeat(4, 1)
    z[3] += torch.randn(128, generator=torch.Generator().manual_seed(1)).to(dtype)
    mined = build(setting)(z, torch.tensor([0, 0, 1, 1]))
    assert [triple for triple in listed(mined) if triple[0] < 2] == [(0, 1, 3), (1, 0, 3)]


@every_miner
def test_all_embeddings_the_same_are_mined_without_an_error(setting: Setting) -> None:
    z, y = torch.ones(6, 3), torch.tensor([0, 0, 0, 1, 1, 2])
    world = World.of(z.tolist(), y.tolist())
    assert_follows_its_rule(build(setting)(z, y), world.case, setting)


@every_miner
def test_a_vector_of_zeros_is_mined_without_an_error(setting: Setting) -> None:
    z, y = batch()
    z[2] = 0
    assert_is_well_formed(build(setting)(z, y), 9, 9)


@every_miner
@for_each("bad", [math.nan, math.inf])
@for_each("rows", [[2], list(range(9))], ids=["one", "all"])
def test_vectors_that_are_not_finite_are_mined_without_an_error(
    setting: Setting, bad: float, rows: list[int]
) -> None:
    """A training that has diverged is to end as such, by its loss."""
    z, y = batch()
    z[rows] = bad
    for normalise in (True, False):
        miner = build(setting)
        miner.normalise = normalise
        assert_is_well_formed(miner(z, y), 9, 9)


def test_no_gradient_goes_through_the_choice() -> None:
    seen: list[bool] = []

    class Watching(Miner):
        def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
            seen.extend([z.requires_grad, references.z.requires_grad, torch.is_grad_enabled()])
            return all_pairs(y, references)

    z, y = batch()
    leaf = z.requires_grad_()
    Watching()(leaf, y)
    Watching()(leaf, y, References(leaf * 2, y, None))
    assert seen == [False] * 6


def test_a_miner_sees_unit_vectors_unless_it_is_told_otherwise() -> None:
    seen: list[Tensor] = []

    class Watching(Miner):
        def mine(self, z: Tensor, y: Tensor, references: References) -> Pairs:
            seen.extend([z, references.z])
            return all_pairs(y, references)

    z, y = batch()
    for normalise in (True, False):
        miner = Watching()
        miner.normalise = normalise
        miner(z, y)
        miner(z, y, References(z * 2, y, None))
    for vectors in seen[:4]:
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(9, dtype=torch.float64))
    for vectors, expected in zip(seen[4:], (z, z, z, z * 2), strict=True):
        assert torch.equal(vectors, expected)


@every_miner
def test_a_batch_that_asks_for_gradients_is_mined_alike(setting: Setting) -> None:
    z, y = batch()
    leaf = z.clone().requires_grad_()
    assert mine_seeded(setting, leaf, y, References(leaf, y, None)) == mine_seeded(
        setting, z, y, References(z, y, None)
    )
    assert_is_well_formed(build(setting)(leaf, y), 9, 9)


class NoHalfProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends the test, not the process, where a product would be taken in half precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in func.__name__:
            assert all(
                part.dtype not in (torch.bfloat16, torch.float16)
                for part in args
                if isinstance(part, Tensor)
            )
        return func(*args, **(kwargs or {}))


@every_miner
@for_each("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_mined_in_single_precision(setting: Setting, dtype: torch.dtype) -> None:
    z, y = batch(24, dim=32)
    half = z.to(dtype)
    with NoHalfProducts():  # type: ignore[no-untyped-call]
        found = mine_seeded(setting, half, y)
        beside = mine_seeded(setting, half, y, References(half[:7], y[:7], None))
    assert found == mine_seeded(setting, half.float(), y)
    assert beside == mine_seeded(
        setting, half.float(), y, References(half[:7].float(), y[:7], None)
    )


@every_miner
def test_autocast_does_not_change_what_is_mined(setting: Setting) -> None:
    z, y = batch(24, dim=32)
    single = z.float()
    with torch.autocast("cpu", dtype=torch.bfloat16), NoHalfProducts():  # type: ignore[no-untyped-call]
        found = mine_seeded(setting, single, y)
    assert found == mine_seeded(setting, single, y)


COMPARING = [
    name
    for name, loss in losses.items()
    if loss.__module__.startswith("assay.") and loss.takes_mined()
]
BATCHES = {
    "usual": [0, 0, 0, 1, 1, 1, 2, 2],
    "no positives": [0, 1, 2, 3, 4, 5, 6, 7],
    "no negatives": [0] * 8,
    "one positive pair": [0, 0, 1, 2, 3, 4, 5, 6],
}


@every_miner
@for_each("labels", list(BATCHES.values()), ids=list(BATCHES))
def test_every_loss_that_compares_samples_can_use_what_was_mined(
    setting: Setting, labels: list[int]
) -> None:
    """Duplicates and opposite vectors are in the batch, which is compared with itself and with a
    memory.
    """
    z, y = batch(8)[0].float(), torch.tensor(labels)
    z[1], z[3], z[4] = z[0], z[0], -z[0]
    memory = References(z[:5] + 0.1, y[:5], None)
    for name in COMPARING:
        for references in (None, memory):
            loss, leaf = losses[name](), z.clone().requires_grad_()
            loss.setup(4, 8)
            value = loss(leaf, y, build(setting)(leaf.detach(), y, references), references)
            assert torch.isfinite(value), name
            found = torch.autograd.grad(value, [leaf, *loss.parameters()], allow_unused=True)
            assert all(part is None or torch.isfinite(part).all() for part in found), name
            assert found[0] is not None, name


def test_a_miner_that_forgets_its_rule_cannot_be_built() -> None:
    with pytest.raises(TypeError, match="mine"):
        type("Misspelt", (Miner,), {"mien": lambda self, z, y, references: None})()


def test_a_miner_that_gives_nothing_raises_instead_of_meaning_everything() -> None:
    forgetful = type("Forgetful", (Miner,), {"mine": lambda self, z, y, references: None})()
    with pytest.raises(ValueError, match="Pairs or Triplets, got NoneType"):
        forgetful(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))


def test_what_was_mined_from_another_batch_raises_with_both_shapes() -> None:
    z, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
    mined = miners["semihard"]()(z[:4], y[:4])
    with pytest.raises(ValueError, match="mined from other samples"):
        losses["triplet"]()(z, y, mined)
    with pytest.raises(ValueError, match="Pairs or Triplets, got tuple"):
        losses["triplet"]()(z, y, (y, y, y))


@pytest.mark.parametrize("name", list(miners))
def test_a_miner_refuses_labels_that_a_loss_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="labels are integers, got"):
        miners[name]()(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=r"\(4, 2\) and \(3,\)"):
        miners[name]()(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))


# --- Miners that go by the places in the batch ---


def place_triplets(case: Case) -> list[tuple[int, int, int]]:
    """Return (i, T + i, 2 T + i) where the second is of the class and the third is not."""
    size = len(case.z) // 3
    columns = case.own or range(len(case.z))
    return [
        (i, columns[size + i], columns[2 * size + i])
        for i in range(size)
        if columns[size + i] in case.positives[i] and columns[2 * size + i] in case.negatives[i]
    ]


def place_pairs(case: Case) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return (i, T + i), by whether the labels agree."""
    size = len(case.z) // 2
    columns = case.own or range(len(case.z))
    pairs = {(i, columns[size + i]) for i in range(size)}
    same = {(i, column) for i, column in pairs if column in case.positives[i]}
    return same, pairs - same


def listed_world(seed: int, parts: int, kind: str) -> World:
    """Return a batch of several equal parts, alone or in a larger memory."""
    draw = random.Random(seed)
    dim, classes = draw.randint(2, 5), draw.randint(1, 4)
    z, y = draw_batch(draw, parts * draw.randint(1, 5), dim, classes)
    if kind == "alone":
        return World.of(z, y)
    past, labels = draw_batch(draw, draw.randint(1, 9), dim, classes)
    own = draw.sample(range(len(past) + len(z)), len(z))
    for column, row, label in sorted(zip(own, z, y, strict=True)):
        past.insert(column, row)
        labels.insert(column, label)
    return World.of(z, y, past, labels, own)


@for_each("kind", ["alone", "known"])
@given(seed=seeds)
@few_examples
def test_listed_triplets_and_pairs_are_those_of_their_places(kind: str, seed: int) -> None:
    world = listed_world(seed, 3, kind)
    assert listed(world.mine(make("listed_triplets"))) == place_triplets(world.case)
    world = listed_world(seed, 2, kind)
    assert kept(world.mine(make("listed_pairs"))) == place_pairs(world.case)


def test_listed_triplets_and_pairs_that_one_can_see() -> None:
    """Two triplets: the second one's negative is of its own class."""
    z, y = batch(6)[0], torch.tensor([0, 1, 0, 1, 1, 1])
    assert listed(make("listed_triplets")(z, y)) == [(0, 2, 4)]
    assert kept(make("listed_pairs")(z, y)) == ({(1, 4)}, {(0, 3), (2, 5)})


def test_a_loss_on_listed_triplets_is_the_mean_over_them_alone() -> None:
    """Compared one triplet at a time; no other two samples of the batch have a gradient."""
    z = batch(12)[0].requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 3])
    loss = losses["triplet"](margin=2.0, over="all")
    value = loss(z, y, make("listed_triplets")(z.detach(), y))
    (gradient,) = torch.autograd.grad(value, z)
    u = torch.nn.functional.normalize(z.detach())
    terms = [2 + (u[i] - u[4 + i]).norm() - (u[i] - u[8 + i]).norm() for i in range(3)]
    assert value.item() == pytest.approx(sum(term.item() for term in terms) / 3)
    assert gradient.any(1).tolist() == [True, True, True, False] * 3


@pytest.mark.parametrize("name", LISTED)
def test_a_batch_that_cannot_be_a_list_raises_with_its_size(name: str) -> None:
    z, y = batch(7)
    with pytest.raises(ValueError, match=f"7 samples are no list.*no multiple of {LISTED[name]}"):
        make(name)(z, y)


@pytest.mark.parametrize("name", LISTED)
def test_a_list_among_references_without_the_batch_raises(name: str) -> None:
    z, y = batch(6)
    with pytest.raises(ValueError, match="not among these references"):
        make(name)(z, y, References(z, y, None))


@pytest.mark.parametrize("name", LISTED)
def test_an_empty_list_mines_nothing(name: str) -> None:
    mined = make(name)(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert mined.negative.numel() == 0
