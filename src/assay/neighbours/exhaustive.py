"""The last resort: all pairs exactly, for queries with more ties than places.

Shapes: Q queries, R references, U distinct references.
"""

import torch
from torch import Tensor

from assay.hashing import digest_bytes
from assay.neighbours.order import exact_scores
from assay.neighbours.similarity import VectorSimilarity, WhichCount, standing
from assay.neighbours.vectors import Vectors


def exhaustive(
    compared: VectorSimilarity,
    ids: Tensor,
    k: int,
    exclude: Tensor | None,
    counts: WhichCount | None,
) -> Tensor:
    """Return the k nearest (Q, k) of the queries `ids`, -1 where fewer count.

    Equal references are compared once.
    """
    first_U, place_R = _distinct(compared.references)
    columns_R = torch.arange(len(place_R), device=ids.device)
    found = torch.empty(len(ids), k, dtype=torch.long, device=ids.device)
    for number, query in enumerate(ids):
        score_R = exact_scores(compared, query.expand(len(first_U)), first_U)[place_R]
        stands_R = standing(query, columns_R, None if exclude is None else exclude[query], counts)
        found[number] = _best(score_R.masked_fill(~stands_R, -torch.inf), k)
    return found


def _best(score_R: Tensor, k: int) -> Tensor:
    """Return indices of the k largest, ties by lower index, without sorting all."""
    least = score_R.topk(k).values[-1]
    certain = (score_R > least).nonzero()[:, 0]
    tied = (score_R == least).nonzero()[: k - len(certain), 0]
    chosen = torch.cat([certain, tied]).sort().values
    order = score_R[chosen].argsort(descending=True, stable=True)
    best = chosen[order]
    return best.masked_fill(torch.isneginf(score_R[best]), -1)


def _distinct(vectors: Vectors) -> tuple[Tensor, Tensor]:
    """Return the index of the first of each distinct row, and each row's place among these."""
    first: list[int] = []
    place = torch.empty(len(vectors), dtype=torch.long)
    seen: dict[str, int] = {}
    for rows, block in vectors.blocks(None):
        for index, row in enumerate(
            block.cpu().contiguous().view(torch.uint8).numpy(), start=rows.start
        ):
            place[index] = seen.setdefault(digest_bytes(row.tobytes()), len(first))
            if place[index] == len(first):
                first.append(index)
    return torch.tensor(first, device=vectors.device), place.to(vectors.device)
