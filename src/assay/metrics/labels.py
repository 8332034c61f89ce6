"""Labels of any kind as class numbers.

Labels are compared in their own type: ids above 2^24 must not merge by rounding.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

AnyLabels = ArrayLike | Tensor | Sequence[Hashable]


@dataclass(frozen=True)
class Classes:
    """Labels by class number, and the class numbers of each list that was numbered."""

    names: list[Any]
    numbers: list[NDArray[np.int64]]


def number_classes(*lists: AnyLabels) -> Classes:
    """Number the classes of one or several lists of labels together, by equality in their own type.

    Classes of arrays of numbers or words come in the order of their values, others in the order of
    their first sample.

    >>> number_classes(["owl", "kite"], ["kite"])
    Classes(names=['owl', 'kite'], numbers=[array([0, 1]), array([1])])
    """
    arrays = [_as_array(labels) for labels in lists]
    if _can_be_sorted_together(arrays):
        values, numbers = np.unique(np.concatenate(arrays), return_inverse=True)
        names = values.tolist()
    else:
        names, numbers = _by_equality([label for array in arrays for label in array.tolist()])
    return Classes(
        names, np.split(numbers.reshape(-1), np.cumsum([len(array) for array in arrays])[:-1])
    )


def _can_be_sorted_together(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether one type holds all labels without rounding any.

    Unsigned and signed integers may have no such type.
    """
    kinds = {array.dtype.kind for array in arrays}
    whole = kinds <= set("iub") and np.result_type(*arrays).kind in "iub"
    return whole or (len(kinds) == 1 and kinds <= set("fUSM"))


def _as_array(labels: AnyLabels) -> NDArray[Any]:
    if isinstance(labels, Tensor):
        array = labels.detach().cpu().numpy()
    elif isinstance(labels, list | tuple):
        array = _from_list(labels)
    else:
        array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels have shape (N,), got {array.shape}")
    for index, label in enumerate(array.tolist() if array.dtype.kind == "O" else []):
        _check(index, label)
    missing = (
        np.isnan(array)
        if array.dtype.kind == "f"
        else np.isnat(array)
        if array.dtype.kind == "M"
        else np.zeros(1, bool)
    )
    if missing.any():
        raise ValueError(
            _MISSING.format(int(missing.argmax()), "NaN" if array.dtype.kind == "f" else "NaT")
        )
    return array


_MISSING = "label {} is {}, which equals no label; leave such samples out"


def _check(index: int, label: object) -> None:
    try:
        hash(label)
    except TypeError:
        raise ValueError(
            f"label {index} is {label!r}, which cannot be compared: labels must be hashable"
        ) from None
    try:
        same = bool(label == label)
    except TypeError:  # pandas.NA equals nothing and says so
        same = False
    if not same:
        raise ValueError(
            _MISSING.format(index, "NaN" if isinstance(label, float | np.floating) else label)
        )


def _from_list(labels: Sequence[Any]) -> NDArray[Any]:
    """Return an array in which whole numbers stay exact and tuples stay labels.

    A tensor with a single number becomes that number.
    """
    plain = [
        label.item() if isinstance(label, Tensor) and label.ndim == 0 else label for label in labels
    ]
    if (
        plain
        and all(type(label) is int for label in plain)
        and -(2**63) <= min(plain) <= max(plain) < 2**63
    ):
        return np.array(plain, dtype=np.int64)
    array = np.empty(len(plain), dtype=object)
    array[:] = plain
    return array


def _by_equality(labels: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return classes in the order of their first sample, and each sample's number."""
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(label, len(numbers)) for label in labels]
    return list(numbers), np.array(found, dtype=np.int64)
