r"""`revisiting/{cub,cars,sop,any}`: Revisiting Training Strategies and Generalization Performance
in Deep Metric Learning.

Roth, Milbich, Sinha, Gupta, Ommer and Cohen, 2020, arxiv.org/abs/2002.08473.

    assay bench --data cub:/data/cub --protocol revisiting/cub \
        --methods contrastive,triplet,margin_distance_weighted,arcface

Version 2 adds the published parameters of the methods with rho-regularisation (`rho_contrastive`,
`rho_triplet`, `rho_margin`, `rho_margin_near`, `rho_snr`) to those of version 1.

Cost: nothing is searched, and 5 reproductions of 4 folds are 20 runs per method. docs/protocols.md
estimates the GPU-hours, and has the scores to expect.
"""

from collections.abc import Mapping
from dataclasses import replace

from assay.protocols.batch import Batch
from assay.protocols.protocol import Augment, Optimiser, Protocol
from assay.space import Parameters

GIVEN: Mapping[str, Parameters] = {
    "contrastive": {"pos_margin": 0, "neg_margin": 1},
    "triplet": {"margin": 0.2, "distance": "squared", "over": "all"},
    "triplet_semihard": {"margin": 0.2},
    "quadruplet": {"margin": 0.2, "pair_margin": 0.2},
    "margin_distance_weighted": {"margin": 0.2, "beta": 1.2, "weights_lr": 5e-4},
    "margin_distance_weighted_near": {"margin": 0.2, "weights_lr": 5e-4},
    "multi_similarity_mined": {"alpha": 2, "beta": 40, "base": 0.5, "epsilon": 0.1},
    "lifted_generalized": {"margin": 1},
    "angular": {"alpha": 45},
    "histogram": {"bins": 64},
    "arcface": {"margin": 28.6, "scale": 16, "weights_lr": 5e-4},
    "soft_triple": {
        "centres": 2,
        "scale": 8,
        "gamma": 0.1,
        "margin": 0.01,
        "regularisation": 0.2,
        "weights_lr": 1e-5,
    },
    "normalized_softmax": {"temperature": 0.05, "weights_lr": 1e-5},
    "proxy_nca_strict": {"scale": 9, "weights_lr": 5e-4},
}
"""The study's parameters, and the learning rates of the methods' own weights as in its public code.
"""

GIVEN_ON_SOP: Mapping[str, Parameters] = {
    **GIVEN,
    "histogram": {"bins": 10},
    "normalized_softmax": {"temperature": 0.05, "weights_lr": 2e-3},
}

DEPARTURES = (
    (
        "the checkpoint is chosen by MAP@R on class-disjoint validation folds, where the study's"
        " figures are maxima over epochs on the test half; a model therefore trains on three"
        " quarters of the training classes"
    ),
    (
        "each reproduction is four models, one for each fold, reported concatenated and separated;"
        " the study's figures are of one"
    ),
    "crops are taken from the image scaled to 256 on its short side, not from the original",
    (
        "a batch holds 56 different classes with 2 different images each; the study draws both with"
        " replacement"
    ),
    "methods that the study gives no parameters run with their defaults",
    (
        "contrastive, triplet and quadruplet take all pairs or triplets of a batch; the study draws"
        " them by distance, those of triplet also at random and by two kinds of hardness"
    ),
    (
        "gamma of soft_triple divides the similarities to centres as in its paper; the study's"
        " code, as first published, multiplies by it"
    ),
    (
        "ArcFace's margin is on the own class alone as in its paper; the study's code, as first"
        " published, shifts all logits alike"
    ),
    (
        "a method's own weights start from N(0, 1/D); the study's start uniform or as each method's"
        " authors had them"
    ),
    (
        "the study's mAP@C is given as map_at_r: theirs counts the query as one of its class's C"
        " images, looks at C neighbours and divides by C; ours looks at C - 1 and divides by that,"
        " so it is higher for small classes"
    ),
    "NMI and F1 come from a k-means with several seeded starts",
)

CUB = Protocol(
    name="revisiting/cub.v1",
    trunk="resnet50",
    weights="pretrained",
    frozen="batchnorm",
    size=224,
    resize="short",
    stored=256,
    dim=128,
    augment=Augment(area=(0.08, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5, rotation=0.0, shear=0.0),
    folds=4,
    batch=Batch(embedding=(56, 2), classification=(56, 2)),
    optimiser=Optimiser(lr=1e-5, weight_decay=4e-4, kind="adam", decay_own=False),
    iterations=None,
    epochs=150,
    validate_every=1,
    patience=150,
    trials=0,
    reproductions=5,
    metrics=("recall_at_1", "recall_at_2", "recall_at_4", "nmi", "f1", "map_at_r"),
    training_metrics=("pi_ratio", "spectral_decay"),
    given=GIVEN,
    departures=DEPARTURES,
    about="revisiting study (2020), CUB-200-2011",
)

CARS = replace(
    CUB,
    name="revisiting/cars.v1",
    about="revisiting study (2020), Cars196",
)

SOP = replace(
    CUB,
    name="revisiting/sop.v1",
    given=GIVEN_ON_SOP,
    departures=(
        *DEPARTURES,
        "150 epochs as on the other data sets; the study's public scripts train 100 on this one",
    ),
    about="revisiting study (2020), Online Products",
)

ANY = replace(
    CUB,
    name="revisiting/any.v1",
    departures=(
        *DEPARTURES,
        "on data that the study did not use, parameters are those for CUB and Cars",
    ),
    about="revisiting study (2020), your own data",
)


SWAPS_OF_TWO = (
    "a batch has two images of each class, so that a swap of rho pushes an anchor's only positive"
    " away and pulls nothing, as in the study's code; its paper swaps for a third image"
)


def _with_rho(first: Protocol, swaps: Mapping[str, float]) -> Protocol:
    """Return version 2 of a protocol: with the published parameters of rho-regularisation too.

    `swaps` are the probabilities of a swap, by method.
    """
    margin = {"margin": 0.2, "weights_lr": 5e-4}
    own: Mapping[str, Parameters] = {
        "rho_contrastive": {"pos_margin": 0, "neg_margin": 1},
        "rho_triplet": {"margin": 0.2, "distance": "squared", "over": "all"},
        "rho_margin": {**margin, "beta": 1.2},
        "rho_margin_near": margin,
        "rho_snr": {"margin": 0.2, "regularisation": 0.005},
    }
    given = {name: {**own[name], "swap_probability": swaps[name]} for name in own}
    return replace(
        first,
        name=first.name.replace(".v1", ".v2"),
        given={**first.given, **given},
        departures=(*first.departures, SWAPS_OF_TWO),
        about=first.about.replace("revisiting study", "revisiting, rho"),
    )


RHO_ON_CUB = {
    "rho_contrastive": 0.4,
    "rho_triplet": 0.4,
    "rho_margin": 0.35,
    "rho_margin_near": 0.4,
    "rho_snr": 0.3,
}
"""Probabilities of a swap that the study reports for CUB; on Cars and on Online Products they are
the same for all methods.
"""

CUB_V2 = _with_rho(CUB, RHO_ON_CUB)
CARS_V2 = _with_rho(CARS, dict.fromkeys(RHO_ON_CUB, 0.35))
SOP_V2 = _with_rho(SOP, dict.fromkeys(RHO_ON_CUB, 0.15))
ANY_V2 = _with_rho(ANY, RHO_ON_CUB)
