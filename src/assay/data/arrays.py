"""Files of plain arrays (.npz): read without unpickling anything, and checked."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInput
from assay.npz import read_npz


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return the content of an .npz with these arrays."""
    packed = BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def read_arrays(
    path: Path, called: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz by name, nothing unpickled; `BadInput` names the file as it is
    `called`.
    """
    try:
        arrays, has = read_npz(path, [*needed, *optional])
    except ValueError as error:
        raise BadInput(
            f"{called} cannot be read as an .npz of plain arrays: {error}. Write it again with"
            " np.savez(path, z=..., y=...)"
        ) from None
    if not has:
        raise BadInput(
            f"{called} is an .npz without a single array; save it with np.savez(path, z=..., y=...)"
        )
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise BadInput(
            f"{called} has no array {missing[0]!r} (it has {', '.join(has)}); save it with"
            " np.savez(path, z=..., y=...)"
        )
    return arrays


def check_vectors(z: NDArray[Any], called: str) -> None:
    """Raise `BadInput`, naming the file as it is `called`, unless `z` is real numbers (N, D)."""
    if (
        z.ndim != 2
        or z.shape[1] == 0
        or not np.issubdtype(z.dtype, np.number)
        or np.issubdtype(z.dtype, np.complexfloating)
    ):
        raise BadInput(
            f"{called}: z is {z.dtype} of shape {z.shape}; it must be real numbers of shape (N, D)"
        )


def decode_labels(y: NDArray[Any], rows: int, called: str) -> NDArray[Any]:
    """Return labels as integers or words; `BadInput` unless there is one for each row of z."""
    if y.shape != (rows,):
        raise BadInput(
            f"{called}: y has shape {y.shape}; z has {rows} rows, so y must have shape ({rows},)"
        )
    if y.dtype.kind not in "iuSU":
        raise BadInput(f"{called}: y is {y.dtype}; labels are integers or strings")
    return decode_words("y", y, called)


def decode_words(name: str, values: NDArray[Any], called: str) -> NDArray[Any]:
    """Return bytes as the words they spell, anything else as it is; `BadInput` where they are not
    UTF-8, or have a NUL byte.
    """
    kind = "label" if name == "y" else "name"
    try:
        words: NDArray[Any] = (
            np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        )
        if words.dtype.kind == "U":
            np.char.encode(words, "utf-8")
    except UnicodeError:
        raise BadInput(
            f"{called}: a {kind} of {name} is not UTF-8; save {kind}s as text or integers"
        ) from None
    for row, word in enumerate(words.tolist() if words.dtype.kind == "U" else []):
        if "\0" in word:
            raise BadInput(
                f"{called}: row {row} of {name} has a NUL byte in the {kind} {word!a}; remove it"
            )
    return words
