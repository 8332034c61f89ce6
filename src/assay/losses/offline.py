"""Triplet and contrastive on lists that are mined from all training samples, a pass at a time."""

from assay.losses.contrastive import Contrastive
from assay.losses.loss import Method, methods
from assay.losses.triplet import Triplet

methods.add(
    Method(
        "triplet_offline",
        Triplet,
        miner="listed_triplets",
        sampler="offline_triplets",
        space=methods["triplet"].space,
        own_departures=(
            (
                "a batch of B is B // 3 triplets with semi-hard negatives, mined offline as in"
                " Schroff et al. (2015, arxiv.org/abs/1503.03832), but with a random positive for"
                " each anchor, 1,024 images to look for the negatives of a batch, and no margin"
                " that bounds a negative from above; where none is farther than the positive, the"
                " farthest is taken"
            ),
        ),
        about="triplet on semi-hard triplets, listed once a pass from all training samples",
    ),
    Method(
        "contrastive_offline",
        Contrastive,
        miner="listed_pairs",
        sampler="offline_pairs",
        space=methods["contrastive"].space,
        own_departures=(
            (
                "a batch of B is B // 2 pairs, half of them of one class: the hardest eighth of"
                " random pairs. Simo-Serra et al. (2014, arxiv.org/abs/1412.6537) keep the hardest"
                " of random pairs in each step; here they are compared once a pass"
            ),
        ),
        about="contrastive on the hardest of random pairs, listed once a pass",
    ),
)
