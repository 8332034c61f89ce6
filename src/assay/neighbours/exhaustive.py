"""The last resort: all pairs exactly, for queries with more ties than places. Shapes: Q queries, R references, U distinct."""

import torch
from torch import Tensor

from assay.canonical import digest_bytes
from assay.neighbours.comparison import Comparison, Counts
from assay.neighbours.order import PAIRS
from assay.neighbours.vectors import Vectors, tiles


def exhaustive(compared: Comparison, ids: Tensor, k: int, exclude: Tensor | None, counts: Counts | None) -> Tensor:
    """The k nearest (Q, k) of the queries `ids`, -1 where fewer count; equal references are compared once."""
    first_U, place_R = _distinct(compared.references)
    found = torch.empty(len(ids), k, dtype=torch.long, device=ids.device)
    for number, query in enumerate(ids):
        score_R = _scores(compared, query, first_U)[place_R]
        if exclude is not None and int(exclude[query]) >= 0:
            score_R[exclude[query]] = -torch.inf
        if counts is not None:
            score_R.masked_fill_(~counts(query, torch.arange(len(place_R), device=ids.device)), -torch.inf)
        found[number] = _best(score_R, k)
    return found


def _scores(compared: Comparison, query: Tensor, references: Tensor) -> Tensor:
    scores = torch.empty(len(references), dtype=torch.float64, device=references.device)
    for part in tiles(len(references), max(1, PAIRS // compared.references.dim)):
        scores[part] = compared.exact(query.expand(len(references[part])), references[part])
    return scores


def _best(score_R: Tensor, k: int) -> Tensor:
    """Indices of the k largest, ties by lower index, without sorting all."""
    least = score_R.topk(k).values[-1]
    certain = (score_R > least).nonzero()[:, 0]
    tied = (score_R == least).nonzero()[: k - len(certain), 0]
    chosen = torch.cat([certain, tied]).sort().values
    order = score_R[chosen].argsort(descending=True, stable=True)
    best = chosen[order]
    return best.masked_fill(torch.isneginf(score_R[best]), -1)


def _distinct(vectors: Vectors) -> tuple[Tensor, Tensor]:
    """Index of the first of each distinct row, and for each row the place of its equal among those."""
    first: list[int] = []
    place = torch.empty(len(vectors), dtype=torch.long)
    seen: dict[str, int] = {}
    for rows, block in vectors.blocks(None):
        for index, row in enumerate(block.cpu().contiguous().view(torch.uint8).numpy(), start=rows.start):
            place[index] = seen.setdefault(digest_bytes(row.tobytes()), len(first))
            if place[index] == len(first):
                first.append(index)
    return torch.tensor(first, device=vectors.device), place.to(vectors.device)
