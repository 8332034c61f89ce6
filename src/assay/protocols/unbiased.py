r"""`unbiased/{inception-bn,resnet50}`: Unbiased Evaluation of Deep Metric Learning Algorithms.

Fehervari, Ravichandran and Appalaraju, 2019, arxiv.org/abs/1911.12528.

    assay bench --data cub:/data/cub --protocol unbiased/inception-bn \
        --methods triplet_semihard,n_pairs,proxy_nca_strict
    assay sweep --data cub:/data/cub --protocol unbiased/inception-bn \
        --vary dim=16,32,64,128,256,512,1024,2048

Version 1 compares the embeddings of all methods by the cosine. Version 2 uses Euclidean distance,
without normalising, for the methods that the paper marks as having no normalised last layer and
whose losses here see raw outputs; and it has no settings for methods that Assay did not have then.
Version 3 has all twelve methods with the settings of each: RMSprop for structured_clustering, 2,048
bits compared by Hamming distance for proxy_softmax, 144 numbers for dreml (12 members of 12 at its
defaults), and Euclidean distance for prototypical too. All search once: their intervals hold at the
parameters that one search found.

Cost: 25 trials and 10 reproductions of 4 folds are 140 runs per method. docs/protocols.md estimates
the GPU-hours, and has the scores to expect.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from assay.protocols.batch import Batch
from assay.protocols.protocol import Augment, Optimiser, Protocol, SettingValue
from assay.space import Real, Space

CROP = (224 / 256) ** 2
"""Share of an image of 256 x 256 that a crop of 224 x 224 keeps."""

EXCEPTIONS: Mapping[str, Mapping[str, SettingValue]] = {
    "structured_clustering": {"optimiser.kind": "rmsprop"},
    "proxy_softmax": {"dim": 2048},
    "dreml": {"dim": 144},
}
"""Other settings of version 1 for three methods. They are part of the published fingerprints."""

RAW = ("triplet_semihard_squared", "n_pairs", "n_pairs_symmetric", "angular_raw")
"""Methods that have no normalised last layer in the paper (table 1), in the form whose loss sees
raw outputs.
"""

RMSPROP = (
    "RMSprop, for structured_clustering, has a constant smoothing of 0.99 and a momentum of 0.9;"
    " the public code lowers its smoothing from epoch to epoch"
)

BY_COSINE = (
    "all methods are compared by the cosine; the paper and its public code compare by Euclidean"
    " distance, and do not normalise the outputs of triplet_semihard_squared, lifted, n_pairs,"
    " angular_raw and prototypical, for which the order of neighbours is another one (version 2"
    " follows the paper in this)"
)

BY_DISTANCE = (
    "lifted, which the paper does not normalise, trains on unit vectors as in the reality check's"
    " library, and is compared by their cosine"
)

DEPARTURES = (
    (
        "parameters and checkpoints are chosen by MAP@R on class-disjoint validation folds, not by"
        " R@1 on the test half"
    ),
    (
        "the learning rate of the network is searched from 1e-6 to 1e-3 for every method and stays"
        " constant; the paper has one for each method and lowers it in steps"
    ),
    (
        "a method's own parameters are searched too, in 25 trials of 4 folds each, not tuned by"
        " hand on the test half"
    ),
    (
        "an epoch is 200 iterations for every method, at most 60, and training stops after 10"
        " without gain; the paper's methods differ in length"
    ),
    (
        "batches are 120 images for every method, 24 classes x 5 or 60 x 2; those of the public"
        " code are 32 to 180, some of them shuffled images"
    ),
    (
        "methods that compare with class weights train on 60 classes x 2, as a fold of CUB or Cars"
        " has fewer than 120 classes; the public code shuffles all images"
    ),
    (
        "a crop is 224 x 224 as the paper says; the public code also scales crops of 8% to 100% of"
        " an image's area"
    ),
    (
        "weight decay is 1e-5 for every method; the public code has 5e-4 for proxies and DREML and"
        " 1e-4 for proxy_softmax"
    ),
    (
        "Adam has its usual epsilon of 1e-8; the public code has 1e-7, for proxies 1e-2, and clips"
        " the gradients of some methods"
    ),
    (
        "trunk and head have one learning rate; the public code lowers that of ResNet50's"
        " convolutions a hundredfold in places"
    ),
    RMSPROP,
    (
        "each reproduction is four models, one for each fold, trained on three quarters of the"
        " training classes and reported concatenated and separated; reproductions exclude the trial"
        " that was selected"
    ),
)

INCEPTION_BN = Protocol(
    name="unbiased/inception-bn.v1",
    trunk="bn_inception",
    weights="pretrained",
    frozen="nothing",
    size=224,
    resize="stretch",
    stored=256,
    dim=64,
    augment=Augment(area=(CROP, CROP), aspect=(1.0, 1.0), flip=0.5, rotation=0.0, shear=0.0),
    folds=4,
    batch=Batch(embedding=(24, 5), classification=(60, 2)),
    optimiser=Optimiser(lr=1e-4, weight_decay=1e-5, kind="adam"),
    iterations=200,
    epochs=60,
    validate_every=1,
    patience=10,
    search="bayesian",
    trials=25,
    reproductions=10,
    metrics=("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "recall_at_16", "nmi"),
    space=Space(lr=Real(1e-6, 1e-3, log=True)),
    exceptions=EXCEPTIONS,
    departures=(
        *DEPARTURES,
        BY_COSINE,
        "the weights of BN-Inception are those that the reality check used, not MXNet's",
    ),
    about="unbiased evaluation (2019), Inception-BN",
)

RESNET50 = replace(
    INCEPTION_BN,
    name="unbiased/resnet50.v1",
    trunk="resnet50",
    exceptions={**EXCEPTIONS, "dreml": {"trunk": "resnet18", "dim": 144}},
    departures=(
        *DEPARTURES,
        BY_COSINE,
        "ResNet50 is the first version, torchvision's, not MXNet's second",
    ),
    about="unbiased evaluation (2019), ResNet50",
)


def _by_distance(first: Protocol, trunk: str) -> Protocol:
    """Return version 2 of a protocol: by Euclidean distance for the methods of `RAW`, and without
    settings for methods that do not exist.
    """
    departures = tuple(
        BY_DISTANCE if text == BY_COSINE else text for text in first.departures if text != RMSPROP
    )
    exceptions = {method: {"similarity": "euclidean"} for method in RAW}
    name, about = first.name.replace(".v1", ".v2"), f"unbiased (2019) by distance, {trunk}"
    return replace(first, name=name, exceptions=exceptions, departures=departures, about=about)


OWN: Mapping[str, Mapping[str, SettingValue]] = {
    **{
        name: {"similarity": "euclidean"}
        for name in (*RAW, "n_pairs_copies", "angular_n_pairs", "prototypical")
    },
    "structured_clustering": {"optimiser.kind": "rmsprop"},
    "proxy_softmax": {"dim": 2048, "similarity": "hamming"},
    "dreml": {"dim": 144},
}
"""Other settings of version 3 for single methods."""

OF_SINGLE_METHODS = (
    RMSPROP,
    (
        "proxy_softmax is compared by the Hamming distance of 2,048 bits, and its clusters for NMI"
        " are of these bits; its trunk waits for an epoch of 200 iterations instead of a pass"
    ),
    (
        "the members of dreml share their trunk, and their width is searched: 12 members of 12"
        " numbers at the defaults, as many as 144 numbers hold otherwise; the paper trains 48"
        " networks of 12 numbers"
    ),
    (
        "episodes of prototypical have 12 classes with 5 images as support and 5 as queries, 120"
        " images as all batches; the paper and its public code have others"
    ),
)


def _of_all_twelve(second: Protocol, trunk: str, own: Mapping[str, Any]) -> Protocol:
    """Return version 3 of a protocol: with the settings of all twelve methods."""
    return replace(
        second,
        name=second.name.replace(".v2", ".v3"),
        exceptions=own,
        departures=(*second.departures, *OF_SINGLE_METHODS),
        about=f"unbiased (2019), all twelve, {trunk}",
    )


INCEPTION_BN_V2 = _by_distance(INCEPTION_BN, "Inception-BN")
RESNET50_V2 = _by_distance(RESNET50, "ResNet50")
INCEPTION_BN_V3 = _of_all_twelve(INCEPTION_BN_V2, "Inception-BN", OWN)
RESNET50_V3 = _of_all_twelve(
    RESNET50_V2, "ResNet50", {**OWN, "dreml": {"trunk": "resnet18", "dim": 144}}
)
