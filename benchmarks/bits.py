"""Neighbours of packed bits by Hamming distance against those of numbers, as ratios in one run.

python benchmarks/bits.py [--queries 1000] [--references 100000] [--threads 1] [--rounds 5]

Codes of 2,048 bits, as proxy_softmax has them (Zhai and Wu 2019, arxiv.org/abs/1811.12649), the 20
nearest of each query. Times are the best of several rounds in which all take turns, so that other
work on the machine meets all of them. Before, the neighbours of the packed bits are compared with
the order of their products as -1 and 1 in single precision, which are exact: distances and places
of ties must be the same.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from turns import best_of

from assay.neighbours import nearest

K, BITS, SHORT = 20, 2048, 64
PART = 100
"""Queries whose whole rows of products are sorted at once."""


@dataclass(frozen=True)
class Search:
    """What is searched."""

    queries: Tensor
    references: Tensor
    similarity: str

    def run(self) -> None:
        """Find the neighbours and throw them away."""
        nearest(self.queries, self.references, K, similarity=self.similarity)


def normal(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def pack(z: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits((z > 0).numpy(), axis=1))


def check(queries: Tensor, references: Tensor) -> None:
    """Raise unless the packed bits have the neighbours of products of -1 and 1, ties by index."""
    found = nearest(pack(queries), pack(references), K, similarity="hamming")
    signs = torch.where(references > 0, 1.0, -1.0)
    for start in range(0, len(queries), PART):
        rows = slice(start, start + PART)
        products = torch.where(queries[rows] > 0, 1.0, -1.0) @ signs.T
        order = products.sort(dim=1, descending=True, stable=True).indices[:, :K]
        if not torch.equal(found[rows], order):
            raise AssertionError(f"other neighbours among queries {start} to {start + PART - 1}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--references", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)

    long = normal(asked.queries, BITS, 0), normal(asked.references, BITS, 1)
    short = normal(asked.queries, SHORT, 2), normal(asked.references, SHORT, 3)
    codes, short_codes = [pack(side) for side in long], [pack(side) for side in short]
    searches = {
        f"{BITS:,} bits, packed": Search(codes[0], codes[1], "hamming"),
        f"{BITS:,} numbers, Hamming distance of their bits": Search(*long, "hamming"),
        f"{BITS:,} numbers, cosine": Search(*long, "cosine"),
        f"{SHORT} numbers, cosine": Search(*short, "cosine"),
        f"{SHORT} bits, packed": Search(short_codes[0], short_codes[1], "hamming"),
    }
    check(*long)
    times = best_of({name: search.run for name, search in searches.items()}, asked.rounds)
    bits = times[next(iter(searches))]
    must = {f"{BITS:,} numbers, cosine": "at least 3"}
    what = (
        f"{asked.queries:,} queries in {asked.references:,} references, {asked.threads} thread(s)"
    )
    print(f"| {what} | seconds | time, bits = 1 | must be | bytes of a reference | MB of all |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, search in searches.items():
        size = search.references.shape[1] * search.references.element_size()
        cells = f"{times[name]:.2f}", f"{times[name] / bits:.2f}", must.get(name, "")
        memory = f"{size:,}", f"{size * asked.references / 1e6:,.1f}"
        print(f"| {' | '.join((name, *cells, *memory))} |", flush=True)


if __name__ == "__main__":
    main()
