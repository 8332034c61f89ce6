"""Rho-regularisation: losses on triplets in which some negatives are of the anchor's class."""

from assay.losses.contrastive import Contrastive
from assay.losses.loss import Method, methods
from assay.losses.margin import MarginPerClass
from assay.losses.snr_contrastive import SNRTriplet
from assay.losses.triplet import Triplet
from assay.space import Real, Space

SWAPS = Space(swap_probability=Real(0, 0.6, natural="low"))

methods.add(
    Method(
        "rho_contrastive",
        Contrastive,
        miner="rho",
        space=methods["contrastive"].space | SWAPS,
        own_departures=(
            (
                "each mean is over the different pairs of the triplets with a non-zero term; that"
                " of Roth et al. (2020, arxiv.org/abs/2002.08473) includes zeros"
            ),
        ),
        about="contrastive that also pushes some samples of the same class apart",
    ),
    Method(
        "rho_triplet",
        Triplet,
        miner="rho",
        space=methods["triplet"].space | SWAPS,
        about="triplet that also pushes some samples of the same class apart",
    ),
    Method(
        "rho_margin",
        MarginPerClass,
        miner="rho",
        space=methods["margin_per_class"].space | SWAPS,
        about="margin per class that also pushes some samples of the same class apart",
    ),
    Method(
        "rho_margin_near",
        MarginPerClass,
        miner="rho",
        fixed={"beta": 0.6},
        space=methods["margin_distance_weighted_near"].space | SWAPS,
        own_departures=methods["margin_distance_weighted_near"].own_departures,
        about="margin from 0.6 per class that also pushes some samples of the same class apart",
    ),
    Method(
        "rho_snr",
        SNRTriplet,
        miner="rho",
        space=Space(
            margin=Real(0, 2, natural="low"),
            regularisation=Real(0, 1, natural="low"),
        )
        | SWAPS,
        about="a triplet of signal-to-noise ratios that also pushes some of the same class apart",
    ),
)
