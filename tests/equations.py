"""Every loss's equation, one term at a time, in plain numbers: slow, and written from the papers'
formulas, not from the code.

Empty sums and means over nothing are 0. Exponentials are taken after subtracting the largest
exponent, nothing else is clever.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Row = list[float]
Weights = dict[str, Any]
Table = dict[tuple[int, int], float]


@dataclass
class Case:
    """A batch in plain numbers, and what is compared in it.

    `z` and `references` are unit vectors where the loss is about those. A triplet is (row of `z`,
    positive column, negative column); `positives` and `negatives` hold each sample's columns in
    rising order.
    """

    z: list[Row]
    y: list[int]
    references: list[Row]
    labels: list[int]
    positives: list[list[int]]
    negatives: list[list[int]]
    triplets: list[tuple[int, int, int]]

    @property
    def anchors(self) -> list[tuple[int, list[int], list[int]]]:
        """Each sample with its positives and its negatives."""
        return list(zip(range(len(self.z)), self.positives, self.negatives, strict=True))

    @property
    def positive_pairs(self) -> list[tuple[int, int]]:
        return [(a, p) for a, positives, _ in self.anchors for p in positives]

    @property
    def negative_pairs(self) -> list[tuple[int, int]]:
        return [(a, n) for a, _, negatives in self.anchors for n in negatives]

    def s(self, row: int, column: int) -> float:
        return dot(self.z[row], self.references[column])

    def d(self, row: int, column: int) -> float:
        return distance(self.z[row], self.references[column])


# --- Pairs ---


def contrastive(
    case: Case, weights: Weights, pos_margin: float = 0.0, neg_margin: float = 0.5
) -> float:
    pull = [case.d(a, p) - pos_margin for a, p in case.positive_pairs]
    push = [neg_margin - case.d(a, n) for a, n in case.negative_pairs]
    return mean_above_zero(pull) + mean_above_zero(push)


def snr_contrastive(
    case: Case,
    weights: Weights,
    pos_margin: float = 0.0,
    neg_margin: float = 0.9,
    regularisation: float = 0.1,
) -> float:
    pull = [noise_to_signal(case, a, p) - pos_margin for a, p in case.positive_pairs]
    push = [neg_margin - noise_to_signal(case, a, n) for a, n in case.negative_pairs]
    return mean_above_zero(pull) + mean_above_zero(push) + regularisation * off_centre(case)


def noise_to_signal(case: Case, row: int, column: int) -> float:
    noise = [x - y for x, y in zip(case.z[row], case.references[column], strict=True)]
    return variance(noise) / variance(case.z[row])


def off_centre(case: Case) -> float:
    """The regulariser of SNR: how far the dimensions of a sample are from a sum of 0."""
    return mean([abs(math.fsum(row)) for row in case.z])


def nt_xent(case: Case, weights: Weights, temperature: float = 0.07) -> float:
    terms = []
    for a, p in case.positive_pairs:
        own = case.s(a, p) / temperature
        others = [case.s(a, n) / temperature for n in case.negatives[a]]
        terms.append(log_sum_exp([own, *others]) - own)
    return mean(terms)


def supcon(case: Case, weights: Weights, temperature: float = 0.1) -> float:
    terms = []
    for a, positives, negatives in case.anchors:
        everyone = log_sum_exp([case.s(a, j) / temperature for j in positives + negatives])
        if positives:
            terms.append(mean([everyone - case.s(a, p) / temperature for p in positives]))
    return mean(terms)


def tuplet_margin(case: Case, weights: Weights, scale: float = 64.0, margin: float = 5.73) -> float:
    terms = []
    for a, p in case.positive_pairs:
        slackened = math.cos(angle(case.s(a, p)) - math.radians(margin))
        terms.append(log1p_sum_exp([scale * (case.s(a, n) - slackened) for n in case.negatives[a]]))
    return mean(terms)


def multi_similarity(
    case: Case, weights: Weights, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5
) -> float:
    terms = []
    for a, positives, negatives in case.anchors:
        pull = log1p_sum_exp([-alpha * (case.s(a, p) - base) for p in positives]) / alpha
        push = log1p_sum_exp([beta * (case.s(a, n) - base) for n in negatives]) / beta
        terms.append(pull + push)
    return mean(terms)


def circle_constants(
    case: Case, weights: Weights, margin: float = 0.4, gamma: float = 80.0
) -> Table:
    """How much each pair weighs: what carries no gradient."""
    pull = {(a, p): above_zero(1 + margin - case.s(a, p)) for a, p in case.positive_pairs}
    push = {(a, n): above_zero(case.s(a, n) + margin) for a, n in case.negative_pairs}
    return pull | push


def circle(
    case: Case,
    weights: Weights,
    margin: float = 0.4,
    gamma: float = 80.0,
    constants: Table | None = None,
) -> float:
    weight = constants or circle_constants(case, weights, margin)
    terms = []
    for a, positives, negatives in case.anchors:
        push = log_sum_exp([gamma * weight[a, n] * (case.s(a, n) - margin) for n in negatives])
        pull = log_sum_exp([-gamma * weight[a, p] * (case.s(a, p) - 1 + margin) for p in positives])
        if positives and negatives:
            terms.append(log1p_sum_exp([push + pull]))
    return mean(terms)


def ranked_list_constants(
    case: Case,
    weights: Weights,
    alpha: float = 1.2,
    margin: float = 0.4,
    temperature: float = 10.0,
    balance: float = 1.0,
) -> Table:
    """How much each negative pair inside the sphere weighs, the weights of an anchor adding up to
    1: what carries no gradient.
    """
    table: Table = {}
    for a, _, negatives in case.anchors:
        inside = {
            n: math.exp(temperature * (alpha - case.d(a, n)))
            for n in negatives
            if case.d(a, n) < alpha
        }
        table |= {(a, n): weight / math.fsum(inside.values()) for n, weight in inside.items()}
    return table


def ranked_list(
    case: Case,
    weights: Weights,
    alpha: float = 1.2,
    margin: float = 0.4,
    temperature: float = 10.0,
    balance: float = 1.0,
    constants: Table | None = None,
) -> float:
    weight = constants or ranked_list_constants(case, weights, alpha, margin, temperature)
    terms = []
    for a, positives, negatives in case.anchors:
        pull = mean_above_zero([case.d(a, p) - (alpha - margin) for p in positives])
        push = math.fsum(
            weight[a, n] * (alpha - case.d(a, n)) for n in negatives if (a, n) in weight
        )
        terms.append(pull + balance * push)
    return mean(terms)


def lifted(case: Case, weights: Weights, margin: float = 1.0) -> float:
    """A column's negatives are the rows of which it is a negative: in a batch, the column's own
    negatives as a row.
    """
    terms = []
    for i, j in case.positive_pairs:
        of_row = [margin - case.d(i, k) for k in case.negatives[i]]
        of_column = [
            margin - case.d(row, j) for row, _, negatives in case.anchors if j in negatives
        ]
        terms.append(above_zero(log_sum_exp(of_row + of_column) + case.d(i, j)) ** 2 / 2)
    return mean(terms)


def lifted_generalized(case: Case, weights: Weights, margin: float = 1.0) -> float:
    terms = []
    for a, positives, negatives in case.anchors:
        pull = log_sum_exp([case.d(a, p) for p in positives])
        push = log_sum_exp([margin - case.d(a, n) for n in negatives])
        if positives and negatives:
            terms.append(above_zero(pull + push))
    return mean(terms)


def histogram(case: Case, weights: Weights, bins: int = 100) -> float:
    """Over ordered pairs: in a batch each unordered pair occurs twice, which histograms with the
    sum 1 do not notice.
    """
    pull = soft_histogram([case.s(a, p) for a, p in case.positive_pairs], -1, 1, bins)
    push = soft_histogram([case.s(a, n) for a, n in case.negative_pairs], -1, 1, bins)
    if not case.positive_pairs or not case.negative_pairs:
        return 0.0
    inversions = math.fsum(push[r] * pull[q] for r in range(bins + 1) for q in range(r + 1))
    return inversions / (len(case.positive_pairs) * len(case.negative_pairs))


def fastap(case: Case, weights: Weights, bins: int = 10) -> float:
    terms = []
    for a, positives, negatives in case.anchors:
        of_positives = soft_histogram([case.d(a, p) ** 2 for p in positives], 0, 4, bins)
        of_all = soft_histogram([case.d(a, j) ** 2 for j in positives + negatives], 0, 4, bins)
        precision = [
            of_positives[j] * math.fsum(of_positives[: j + 1]) / math.fsum(of_all[: j + 1])
            for j in range(bins + 1)
            if of_positives[j] > 0
        ]
        if positives:
            terms.append(1 - math.fsum(precision) / len(positives))
    return mean(terms)


def smooth_ap(case: Case, weights: Weights, temperature: float = 0.01) -> float:
    terms = []
    for a, positives, negatives in case.anchors:
        ratios = []
        for p in positives:
            ahead = {
                j: sigmoid((case.s(a, j) - case.s(a, p)) / temperature)
                for j in positives + negatives
                if j != p
            }
            ratios.append(
                (1 + math.fsum(ahead[j] for j in positives if j != p))
                / (1 + math.fsum(ahead.values()))
            )
        if positives:
            terms.append(1 - mean(ratios))
    return mean(terms)


def n_pairs(case: Case, weights: Weights, regularisation: float = 0.002) -> float:
    pairs = pairs_of_classes(case)
    terms = []
    for a, p in pairs:
        others = [
            case.s(a, other) for _, other in pairs if other != p and other in case.negatives[a]
        ]
        terms.append(log_sum_exp([case.s(a, p), *others]) - case.s(a, p))
    return mean(terms) + regularisation * squared_lengths(case, pairs)


def n_pairs_symmetric(case: Case, weights: Weights, regularisation: float = 0.002) -> float:
    pairs = pairs_of_classes(case)
    terms = []
    for a, p in pairs:
        others = [
            case.s(other, p) for other, _ in pairs if other != a and p in case.negatives[other]
        ]
        terms.append(log_sum_exp([case.s(a, p), *others]) - case.s(a, p))
    length = regularisation * squared_lengths(case, pairs)
    return (n_pairs(case, weights, regularisation) + mean(terms) + length) / 2


def pairs_of_classes(case: Case) -> list[tuple[int, int]]:
    """Each class's first sample that has a positive, and the first of these."""
    chosen: dict[int, tuple[int, int]] = {}
    for a, positives, _ in case.anchors:
        if positives and case.y[a] not in chosen:
            chosen[case.y[a]] = (a, positives[0])
    return list(chosen.values())


def squared_lengths(case: Case, pairs: list[tuple[int, int]]) -> float:
    """mean |a|^2 + mean |p|^2."""
    of_anchors = mean([dot(case.z[a], case.z[a]) for a, _ in pairs])
    return of_anchors + mean([dot(case.references[p], case.references[p]) for _, p in pairs])


# --- Triplets ---


def triplet(
    case: Case, weights: Weights, margin: float = 0.1, distance: str = "plain", over: str = "active"
) -> float:
    power = {"plain": 1, "squared": 2}[distance]
    terms = [case.d(a, p) ** power - case.d(a, n) ** power + margin for a, p, n in case.triplets]
    return {"active": mean_above_zero(terms), "all": mean([above_zero(term) for term in terms])}[
        over
    ]


def triplet_mean(case: Case, weights: Weights, margin: float = 0.2) -> float:
    return mean([above_zero(case.d(a, p) - case.d(a, n) + margin) for a, p, n in case.triplets])


def triplet_squared(case: Case, weights: Weights, margin: float = 1.0) -> float:
    return mean(
        [above_zero(case.d(a, p) ** 2 - case.d(a, n) ** 2 + margin) for a, p, n in case.triplets]
    )


def snr_triplet(
    case: Case, weights: Weights, margin: float = 0.2, regularisation: float = 0.005
) -> float:
    terms = [
        noise_to_signal(case, a, p) - noise_to_signal(case, a, n) + margin
        for a, p, n in case.triplets
    ]
    off_centre = mean([abs(math.fsum(case.z[a])) for a, _, _ in case.triplets])
    return mean_above_zero(terms) + regularisation * off_centre


def margin(case: Case, weights: Weights, margin: float = 0.2, beta: float = 1.2) -> float:
    """`beta` is where the learnt boundary starts."""
    boundary = weights["beta"]
    pull = [case.d(a, p) - boundary + margin for a, p, _ in case.triplets]
    push = [boundary - case.d(a, n) + margin for a, _, n in case.triplets]
    return mean_above_zero(pull + push)


def margin_per_class(case: Case, weights: Weights, margin: float = 0.2, beta: float = 1.2) -> float:
    boundary = [weights["beta"][label] for label in case.y]
    pull = [case.d(a, p) - boundary[a] + margin for a, p, _ in case.triplets]
    push = [boundary[a] - case.d(a, n) + margin for a, _, n in case.triplets]
    return mean_above_zero(pull + push)


def quadruplet(
    case: Case, weights: Weights, margin: float = 0.2, pair_margin: float = 0.2
) -> float:
    own = [above_zero(case.d(a, p) - case.d(a, n) + margin) for a, p, n in case.triplets]
    others = []
    for a, p in negatives_by_pair(case):
        for m, n in itertools.combinations(range(len(case.labels)), 2):
            if len({case.y[a], case.labels[m], case.labels[n]}) == 3:
                apart = distance(case.references[m], case.references[n])
                others.append(above_zero(case.d(a, p) - apart + pair_margin))
    return mean(own) + mean(others)


def angular(case: Case, weights: Weights, alpha: float = 45.0) -> float:
    t = math.tan(math.radians(alpha)) ** 2
    terms = []
    for (a, p), negatives in negatives_by_pair(case).items():
        both = [x + y for x, y in zip(case.z[a], case.references[p], strict=True)]
        terms.append(
            log1p_sum_exp(
                [
                    4 * t * dot(both, case.references[n]) - 2 * (1 + t) * case.s(a, p)
                    for n in negatives
                ]
            )
        )
    return mean(terms)


def angular_raw(
    case: Case, weights: Weights, alpha: float = 45.0, regularisation: float = 0.0005
) -> float:
    return angular(case, weights, alpha) + regularisation * squared_lengths(
        case, list(negatives_by_pair(case))
    )


def angular_n_pairs(
    case: Case,
    weights: Weights,
    alpha: float = 45.0,
    weight: float = 2.0,
    regularisation: float = 0.002,
) -> float:
    return n_pairs(case, weights, regularisation) + weight * angular(case, weights, alpha)


def negatives_by_pair(case: Case) -> dict[tuple[int, int], list[int]]:
    """The positive pairs that stand in a triplet, each with its negatives."""
    found: dict[tuple[int, int], list[int]] = {}
    for a, p, n in case.triplets:
        found.setdefault((a, p), []).append(n)
    return found


# --- Whole batches ---


def prototypical(case: Case, weights: Weights, scale: float = 1.0) -> float:
    prototypes: dict[int, Row] = {}
    queries: list[tuple[int, Row]] = []
    for label in sorted(set(case.y)):
        own = [row for row, other in zip(case.z, case.y, strict=True) if other == label]
        half = len(own) // 2
        if half:
            prototypes[label] = [mean(column) for column in zip(*own[:half], strict=True)]
            queries += [(label, row) for row in own[half:]]
    terms = []
    for label, row in queries:
        logits = {c: -scale * distance(row, centre) ** 2 for c, centre in prototypes.items()}
        terms.append(log_sum_exp(list(logits.values())) - logits[label])
    return mean(terms)


EQUAL = 1e-9
"""Differences in double precision below which structured clustering takes numbers for equal."""


def structured_clustering(case: Case, weights: Weights, gamma: float = 1.0) -> float:
    if not case.y:
        return 0.0
    own = 0.0
    for label in sorted(set(case.y)):
        members = [i for i, other in enumerate(case.y) if other == label]
        own -= min(math.fsum(case.d(i, j) for i in members) for j in members)
    medoids = refined_medoids(case, gamma, greedy_medoids(case, gamma))
    return above_zero(clustering_value(case, medoids, gamma) - own)


def clustering_value(case: Case, medoids: list[int], gamma: float) -> float:
    """F(S) + g (1 - NMI): what the medoids should make as large as possible."""
    clusters = clusters_of(case, medoids)
    facility = -math.fsum(case.d(i, medoids[k]) for i, k in enumerate(clusters))
    return facility + gamma * (1 - geometric_nmi(clusters, case.y))


def greedy_medoids(case: Case, gamma: float) -> list[int]:
    medoids: list[int] = []
    while len(medoids) < len(set(case.y)):
        values = {
            j: clustering_value(case, [*medoids, j], gamma)
            for j in range(len(case.y))
            if j not in medoids
        }
        medoids.append(first_best(values))
    return medoids


def refined_medoids(case: Case, gamma: float, medoids: list[int]) -> list[int]:
    """Five rounds; who belongs to which cluster stays as it was at the start of a round."""
    medoids = list(medoids)
    for _ in range(5):
        clusters = clusters_of(case, medoids)
        for k in range(len(medoids)):
            members = [i for i, cluster in enumerate(clusters) if cluster == k]
            values = {}
            for j in members:
                trial = [*medoids[:k], j, *medoids[k + 1 :]]
                agreement = geometric_nmi(clusters_of(case, trial), case.y)
                values[j] = gamma * (1 - agreement) - math.fsum(case.d(i, j) for i in members)
            medoids[k] = first_best(values)
    return medoids


def clusters_of(case: Case, medoids: list[int]) -> list[int]:
    """The place among the medoids of each sample's nearest; a medoid is its own."""
    clusters = []
    for i in range(len(case.y)):
        apart = {k: -case.d(i, medoid) for k, medoid in enumerate(medoids)}
        clusters.append(medoids.index(i) if i in medoids else first_best(apart))
    return clusters


def first_best(values: dict[int, float]) -> int:
    return next(key for key, value in values.items() if value >= max(values.values()) - EQUAL)


def geometric_nmi(a: Sequence[int], b: Sequence[int]) -> float:
    """I(a; b) / sqrt(H(a) H(b)), 0 where an entropy is 0."""

    def entropy(labels: Sequence[Any]) -> float:
        shares = [labels.count(label) / len(labels) for label in set(labels)]
        return -math.fsum(share * math.log(share) for share in shares)

    if len(set(a)) == 1 or len(set(b)) == 1:
        return 0.0
    information = entropy(a) + entropy(b) - entropy(list(zip(a, b, strict=True)))
    return information / math.sqrt(entropy(a) * entropy(b))


# --- Classes ---


def normalized_softmax(case: Case, weights: Weights, temperature: float = 0.05) -> float:
    return cross_entropy(
        case, [[s / temperature for s in row] for row in to_classes(case, weights)]
    )


def proxy_softmax(
    case: Case, weights: Weights, temperature: float = 0.05, smoothing: float = 0.1
) -> float:
    terms = []
    for label, row in zip(case.y, to_classes(case, weights), strict=True):
        normaliser = log_sum_exp([s / temperature for s in row])
        for c, s in enumerate(row):
            wanted = 1 - smoothing if c == label else smoothing / (len(row) - 1)
            terms.append(-wanted * (s / temperature - normaliser))
    return math.fsum(terms) / len(case.y) if case.y else 0.0


def dreml(case: Case, weights: Weights, meta_classes: int = 12, members: int = 0) -> float:
    """The groups are a row for each class, with its meta-class for each member."""
    total = 0.0
    for member in range(len(weights["groups"][0])):
        terms = []
        for row, label in zip(case.z, case.y, strict=True):
            width = min(meta_classes, len(row))
            own = row[member * width : (member + 1) * width]
            terms.append(log_sum_exp(own) - own[weights["groups"][label][member]])
        total += mean(terms)
    return total


def proxy_nca(case: Case, weights: Weights, scale: float = 9.0) -> float:
    return cross_entropy(
        case, [[-scale * squared for squared in row] for row in squared_to_classes(case, weights)]
    )


def proxy_nca_strict(case: Case, weights: Weights, scale: float = 9.0) -> float:
    terms = []
    for label, row in zip(case.y, squared_to_classes(case, weights), strict=True):
        others = [-scale * squared for c, squared in enumerate(row) if c != label]
        if others:
            terms.append(scale * row[label] + log_sum_exp(others))
    return mean(terms)


def proxy_triplet(case: Case, weights: Weights, margin: float = 1.0) -> float:
    terms = []
    for label, row in zip(case.y, squared_to_classes(case, weights), strict=True):
        terms.append(
            math.fsum(
                above_zero(row[label] - row[c] + margin) for c in range(len(row)) if c != label
            )
        )
    return mean(terms)


def cosface(case: Case, weights: Weights, margin: float = 0.35, scale: float = 64.0) -> float:
    return with_own_cosine(case, weights, scale, lambda cosine: cosine - margin)


def arcface(case: Case, weights: Weights, margin: float = 28.6, scale: float = 64.0) -> float:
    def own(cosine: float) -> float:
        wider = angle(cosine) + math.radians(margin)
        return math.cos(wider) if wider <= math.pi else -2 - math.cos(wider)

    return with_own_cosine(case, weights, scale, own)


def sphereface(case: Case, weights: Weights, margin: int = 4, scale: float = 30.0) -> float:
    def own(cosine: float) -> float:
        wider = margin * angle(cosine)
        turns = min(math.floor(wider / math.pi), margin - 1)
        sign = -1 if turns % 2 else 1
        return sign * math.cos(wider) - 2 * turns

    return with_own_cosine(case, weights, scale, own)


def with_own_cosine(
    case: Case, weights: Weights, scale: float, change: Callable[[float], float]
) -> float:
    """Cross-entropy over scaled cosines, the own class's changed."""
    logits = []
    for label, row in zip(case.y, to_classes(case, weights), strict=True):
        logits.append(
            [scale * (change(cosine) if c == label else cosine) for c, cosine in enumerate(row)]
        )
    return cross_entropy(case, logits)


def circle_class_constants(
    case: Case, weights: Weights, margin: float = 0.4, gamma: float = 256.0
) -> Table:
    """How much each similarity to a class weighs: what carries no gradient."""
    table = {}
    for i, row in enumerate(to_classes(case, weights)):
        for c, s in enumerate(row):
            table[i, c] = above_zero(1 + margin - s) if c == case.y[i] else above_zero(s + margin)
    return table


def circle_class(
    case: Case,
    weights: Weights,
    margin: float = 0.4,
    gamma: float = 256.0,
    constants: Table | None = None,
) -> float:
    weight = constants or circle_class_constants(case, weights, margin)
    terms = []
    for i, (label, row) in enumerate(zip(case.y, to_classes(case, weights), strict=True)):
        pull = -gamma * weight[i, label] * (row[label] - 1 + margin)
        push = [gamma * weight[i, c] * (s - margin) for c, s in enumerate(row) if c != label]
        terms.append(log1p_sum_exp([log_sum_exp(push) + pull]))
    return mean(terms)


def proxy_anchor(case: Case, weights: Weights, alpha: float = 32.0, margin: float = 0.1) -> float:
    pull, push = [], []
    cosines = to_classes(case, weights)
    for c in range(len(weights["weights"])):
        own = [
            -alpha * (row[c] - margin)
            for label, row in zip(case.y, cosines, strict=True)
            if label == c
        ]
        others = [
            alpha * (row[c] + margin)
            for label, row in zip(case.y, cosines, strict=True)
            if label != c
        ]
        if own:
            pull.append(log1p_sum_exp(own))
        push.append(log1p_sum_exp(others))
    return mean(pull) + mean(push)


def soft_triple(
    case: Case,
    weights: Weights,
    centres: int = 10,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    regularisation: float = 0.2,
) -> float:
    by_class = [[unit(centre) for centre in centres] for centres in weights["weights"]]
    logits: list[Row] = []
    for label, row in zip(case.y, case.z, strict=True):
        logits.append([])
        for c, own_centres in enumerate(by_class):
            cosines = [dot(row, centre) for centre in own_centres]
            total = log_sum_exp([s / gamma for s in cosines])
            relaxed = math.fsum(math.exp(s / gamma - total) * s for s in cosines)
            logits[-1].append(scale * (relaxed - margin * (c == label)))
    apart = [
        math.sqrt(2 + 1e-5 - 2 * dot(one, other))
        for own_centres in by_class
        for one, other in itertools.combinations(own_centres, 2)
    ]
    spread = math.fsum(apart) / (len(by_class) * centres * (centres - 1)) if apart else 0.0
    return cross_entropy(case, logits) + regularisation * spread


def to_classes(case: Case, weights: Weights) -> list[Row]:
    """Cosines of each sample to each class."""
    return [[dot(row, unit(weight)) for weight in weights["weights"]] for row in case.z]


def squared_to_classes(case: Case, weights: Weights) -> list[Row]:
    """Squared distances of each sample to each class's proxy."""
    return [[distance(row, unit(weight)) ** 2 for weight in weights["weights"]] for row in case.z]


def cross_entropy(case: Case, logits: list[Row]) -> float:
    return mean([log_sum_exp(row) - row[label] for label, row in zip(case.y, logits, strict=True)])


# --- Losses with a memory, in their warm-up; later steps are in test_cross_batch_memory.py ---


def xbm_contrastive(
    case: Case,
    weights: Weights,
    pos_margin: float = 0.0,
    neg_margin: float = 0.5,
    memory: float = 1.0,
    warmup: float = 1.0,
    weight: float = 1.0,
) -> float:
    return contrastive(case, weights, pos_margin, neg_margin)


def xbm_triplet(
    case: Case,
    weights: Weights,
    margin: float = 0.1,
    distance: str = "plain",
    over: str = "active",
    memory: float = 1.0,
    warmup: float = 1.0,
    weight: float = 1.0,
) -> float:
    return triplet(case, weights, margin, distance, over)


def xbm_margin(
    case: Case,
    weights: Weights,
    margin: float = 0.2,
    beta: float = 1.2,
    memory: float = 1.0,
    warmup: float = 1.0,
    weight: float = 1.0,
) -> float:
    return REFERENCE["margin"](case, {"beta": weights["loss.beta"]}, margin, beta)


def xbm_multi_similarity(
    case: Case,
    weights: Weights,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float = 0.1,
    memory: float = 1.0,
    warmup: float = 1.0,
    weight: float = 1.0,
) -> float:
    return multi_similarity(informative(case, epsilon), weights, alpha, beta, base)


def informative(case: Case, epsilon: float) -> Case:
    """The pairs that the miner of multi-similarity keeps."""
    kept = []
    for a, positives, negatives in case.anchors:
        lowest = min([case.s(a, p) for p in positives], default=math.inf)
        highest = max([case.s(a, n) for n in negatives], default=-math.inf)
        kept.append(
            (
                [p for p in positives if case.s(a, p) < highest + epsilon],
                [n for n in negatives if case.s(a, n) > lowest - epsilon],
            )
        )
    return replace(case, positives=[p for p, _ in kept], negatives=[n for _, n in kept])


REFERENCE: dict[str, Callable[..., float]] = {
    "angular": angular,
    "angular_n_pairs": angular_n_pairs,
    "angular_raw": angular_raw,
    "arcface": arcface,
    "circle": circle,
    "circle_class": circle_class,
    "contrastive": contrastive,
    "cosface": cosface,
    "dreml": dreml,
    "fastap": fastap,
    "histogram": histogram,
    "lifted": lifted,
    "lifted_generalized": lifted_generalized,
    "margin": margin,
    "margin_per_class": margin_per_class,
    "multi_similarity": multi_similarity,
    "n_pairs": n_pairs,
    "n_pairs_symmetric": n_pairs_symmetric,
    "normalized_softmax": normalized_softmax,
    "nt_xent": nt_xent,
    "prototypical": prototypical,
    "proxy_anchor": proxy_anchor,
    "proxy_nca": proxy_nca,
    "proxy_nca_strict": proxy_nca_strict,
    "proxy_softmax": proxy_softmax,
    "proxy_triplet": proxy_triplet,
    "quadruplet": quadruplet,
    "ranked_list": ranked_list,
    "smooth_ap": smooth_ap,
    "snr_contrastive": snr_contrastive,
    "snr_triplet": snr_triplet,
    "soft_triple": soft_triple,
    "sphereface": sphereface,
    "structured_clustering": structured_clustering,
    "supcon": supcon,
    "triplet": triplet,
    "triplet_mean": triplet_mean,
    "triplet_squared": triplet_squared,
    "tuplet_margin": tuplet_margin,
    "xbm_contrastive": xbm_contrastive,
    "xbm_margin": xbm_margin,
    "xbm_multi_similarity": xbm_multi_similarity,
    "xbm_triplet": xbm_triplet,
}

CONSTANTS: dict[str, Callable[..., Table]] = {
    "circle": circle_constants,
    "circle_class": circle_class_constants,
    "ranked_list": ranked_list_constants,
}
"""What an equation declares to carry no gradient; its reference takes it as `constants`."""


# --- Numbers ---


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def unit(row: Row) -> Row:
    norm = math.sqrt(dot(row, row))
    return [x / norm for x in row]


def distance(a: Row, b: Row) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def variance(row: Row) -> float:
    centre = mean(row)
    return mean([(x - centre) ** 2 for x in row])


def angle(cosine: float) -> float:
    return math.acos(min(max(cosine, -1.0), 1.0))


def above_zero(x: float) -> float:
    return max(x, 0.0)


def mean(terms: Sequence[float]) -> float:
    return math.fsum(terms) / len(terms) if terms else 0.0


def mean_above_zero(terms: Iterable[float]) -> float:
    return mean([term for term in terms if term > 0])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def log_sum_exp(exponents: Sequence[float]) -> float:
    largest = max(exponents, default=-math.inf)
    return (
        largest + math.log(math.fsum(math.exp(x - largest) for x in exponents))
        if largest > -math.inf
        else largest
    )


def log1p_sum_exp(exponents: Sequence[float]) -> float:
    """log(1 + sum of e^x)."""
    return log_sum_exp([0.0, *exponents])


def soft_histogram(values: Sequence[float], low: float, high: float, bins: int) -> Row:
    """How many values lie at each node, one between two nodes being shared by them in proportion to
    its nearness.
    """
    step = (high - low) / bins
    nodes = [low + step * node for node in range(bins + 1)]
    return [
        math.fsum(above_zero(1 - abs(value - node) / step) for value in values) for node in nodes
    ]
