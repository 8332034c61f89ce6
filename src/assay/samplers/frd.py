"""Frechet distance matching (FRD). Shapes: P pool, T candidates, B batch, D dims, K at most D."""

import numpy as np
import torch
from torch import Tensor

from assay.bank import Bank
from assay.samplers.candidates import plan_nearest
from assay.samplers.revisiting import REVISITING
from assay.samplers.sampler import Indices, cites, fixed_pattern, plans, samplers


@samplers("frd")
@cites(REVISITING)
@plans("kept")
@fixed_pattern
def frd(bank: Bank, batch: tuple[int, int], count: int, draw: np.random.Generator) -> Indices:
    """Plan C different classes a batch, M images of each, whose embeddings have a mean and a
    covariance most as those of a pool.

    Of 10 random batches from a pool of 512 images, the one is kept whose Frechet distance to the
    pool is least.

    Rows of the bank that a step has replaced are of augmented images and training mode, the others
    of neither. Where batch normalisation learns or outputs are dropped, the two kinds lie apart,
    and images that were not drawn yet may not be drawn for long; the study freezes it.
    """
    return plan_nearest(bank, batch, count, draw, frechet)


def frechet(z_PD: Tensor, candidates_TB: Tensor) -> Tensor:
    """Return the Frechet distance (T,) between each candidate and the pool.

    |mu_1 - mu_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2)); the trace of the root is the sum of the
    singular values of A_1 A_2^T, where C = A^T A, A the centred rows / sqrt(n - 1). It is real and
    exact where a covariance has no full rank.
    """
    pool_mean_D, pool_PD = _centre(z_PD)
    mean_TD, own_TBD = _centre(z_PD[candidates_TB])
    root_KD = torch.linalg.qr(pool_PD, mode="r").R  # R^T R = C_2, with fewer rows than A_2
    product_TBK = own_TBD @ root_KD.T
    own_T, pool = own_TBD.square().sum((1, 2)), pool_PD.square().sum()
    gap_T = (mean_TD - pool_mean_D).square().sum(1)
    return gap_T + own_T + pool - 2 * _nuclear_norm(product_TBK)


def _centre(z_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of rows, and the centred rows (B, D) / sqrt(B - 1)."""
    mean_1D = z_BD.mean(-2, keepdim=True)
    return mean_1D.squeeze(-2), (z_BD - mean_1D) / max(z_BD.shape[-2] - 1, 1) ** 0.5


def _nuclear_norm(matrix_TBK: Tensor) -> Tensor:
    """Return the sum of the singular values of each matrix.

    They are roots of the eigenvalues of its smaller product with itself, which in double precision
    is exact enough and several times as fast as an SVD.
    """
    tall = matrix_TBK.shape[1] > matrix_TBK.shape[2]
    square = matrix_TBK.mT @ matrix_TBK if tall else matrix_TBK @ matrix_TBK.mT
    squared_TK: Tensor = torch.linalg.eigvalsh(square)
    return squared_TK.clamp(min=0).sqrt().sum(-1)
