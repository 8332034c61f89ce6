"""Distance distribution matching (DDM). Shapes: P pool, T candidates, B batch, D dims, H bins."""

import numpy as np
import torch
from torch import Tensor

from assay.bank import Bank
from assay.samplers.candidates import plan_nearest
from assay.samplers.revisiting import REVISITING
from assay.samplers.sampler import Indices, cites, fixed_pattern, plans, samplers

BINS = 50
"""Bins of a histogram, from the least to the largest distance in the pool."""


@samplers("ddm")
@cites(REVISITING)
@plans("kept")
@fixed_pattern
def ddm(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Indices:
    """Plan C different classes a batch, M images of each, whose distances to each other are
    distributed most as in a pool.

    Of 10 random batches from a pool of 512 images, the one is kept whose histogram of pairwise
    distances is nearest to the pool's: by the Wasserstein distance between where the mass of the
    histograms lies. The study's code takes the distance between the heights of the bins, at which
    two histograms far apart may be equal, adds differences of mean and deviation, and may draw a
    class twice.

    Rows of the bank that a step has replaced are of augmented images and training mode, the others
    of neither. Where batch normalisation learns or outputs are dropped, the two kinds lie apart,
    and images that were not drawn yet may not be drawn for long; the study freezes it.
    """
    return plan_nearest(bank, batch, count, draw, compare_distances)


def compare_distances(z_PD: Tensor, candidates_TB: Tensor) -> Tensor:
    """Return the Wasserstein distance (T,) from the pairwise distances of each candidate to those
    of the pool, in histograms of 50 bins over the pool's range.
    """
    distance_PP = torch.cdist(z_PD, z_PD)
    high, low = distance_PP.max(), distance_PP.fill_diagonal_(torch.inf).min()
    width = (high - low) / BINS
    bin_PP = ((distance_PP - low) / width.clamp(min=1e-300)).clamp(max=BINS - 1).long()
    pool_H = _histogram(bin_PP)
    found = [_histogram(bin_PP[places][:, places]) for places in candidates_TB]
    return wasserstein(torch.stack(found), pool_H) * width


def _histogram(bin_NN: Tensor) -> Tensor:
    """Return the share of pairs of different samples in each bin."""
    count_H = torch.bincount(bin_NN.ravel(), minlength=BINS)
    count_H -= torch.bincount(bin_NN.diagonal(), minlength=BINS)
    return count_H.double() / count_H.sum().clamp(min=1)


def wasserstein(first_H: Tensor, second_H: Tensor) -> Tensor:
    """Return how far mass must move to turn one histogram into the other, in bins: the sum over
    borders of bins of the mass that crosses them.

    >>> left, right = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0, 0, 1.0])
    >>> wasserstein(left, right)
    tensor(3.)
    """
    return (first_H - second_H).cumsum(-1).abs().sum(-1)
