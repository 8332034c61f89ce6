"""Bits packed into bytes, as -1 and 1 in products. Shapes: N, Q, R rows, D bits, B bytes."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from assay.neighbours.vectors import Vectors

BYTES = np.arange(256, dtype=np.uint8)[:, None]
SIGNS = torch.from_numpy(2 * np.unpackbits(BYTES, axis=1).view(np.int8) - 1).view(torch.int64)[:, 0]
"""The bits of each byte as -1 and 1, the highest first: eight numbers of one byte as one of eight,
so that they are looked up together.
"""


def pack_bits(vectors: Vectors) -> Vectors:
    """Return the bits z > 0 of vectors, packed into bytes; rows of uint8 are packed already.

    The last byte is filled up with zeros, which differ in no pair.

    >>> pack_bits(Vectors([[0.5, -2, 0, 3], [-1, -1, -1, 1]])).read(slice(0, 2), None)
    tensor([[144],
            [ 16]], dtype=torch.uint8)
    """
    if vectors.is_packed:
        return vectors
    packed = np.empty((len(vectors), -(-vectors.dim // 8)), dtype=np.uint8)
    for rows, block in vectors.blocks(None):
        packed[rows] = np.packbits((block > 0).cpu().numpy(), axis=1)
    return Vectors(torch.from_numpy(packed).to(vectors.device))


def pack_both(queries: Vectors, references: Vectors) -> tuple[Vectors, Vectors]:
    """Return the packed bits of both sides; one object if they are one."""
    bits = pack_bits(queries)
    return bits, bits if references is queries else pack_bits(references)


def signs(packed_NB: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bits as -1 and 1 (N, 8 B).

    >>> signs(torch.tensor([[129]], dtype=torch.uint8), torch.int8)
    tensor([[ 1, -1, -1, -1, -1, -1, -1,  1]], dtype=torch.int8)
    """
    table = SIGNS.to(packed_NB.device)
    looked_up = table.index_select(0, packed_NB.flatten().int())
    return looked_up.view(packed_NB.shape).view(torch.int8).to(dtype)


def fastest_type(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the type of -1 and 1 whose products are fastest: 8 bits where the processor has them.

    Otherwise it is `dtype`: products of 8 bits would be computed one by one.
    """
    return torch.int8 if device.type == "cpu" and _multiplies_bytes() else dtype


@cache
def _multiplies_bytes() -> bool:
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def multiply(left_QD: Tensor, right_RD: Tensor, out_QR: Tensor) -> None:
    """Write products into `out_QR`; those of 8 bits are added up in 32 bits, which is exact."""
    if left_QD.dtype == torch.int8:
        out_QR.copy_(torch._int_mm(left_QD, right_RD.T))
    else:
        torch.mm(left_QD, right_RD.T, out=out_QR)
