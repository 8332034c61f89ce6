"""Pairs and triplets that a table lists, in the columns `positive` and `negative`.

Their cells name other rows by their paths. A row with k positives and k negatives gives k triplets:
the row with the first positive and the first negative, and so on. A row with positives or negatives
alone gives a pair with each.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.data.relations import Relations

if TYPE_CHECKING:
    from assay.data.sources.table import ImageTable

BETWEEN_NAMES = ";"
"""Mark between several names in a cell."""


class _Named(NamedTuple):
    """A row, and the rows that it names."""

    row: int
    positives: list[int]
    negatives: list[int]


def read_relations(table: "ImageTable", ids: Sequence[str]) -> Relations | None:
    """Return the pairs or triplets of rows that the table names; None where it names none."""
    rows = {name: row for row, name in enumerate(ids)}
    named = [
        _Named(row, *(_named_rows(table, row, role, rows) for role in ("positive", "negative")))
        for row in range(len(ids))
    ]
    single = [one for one in named if bool(one.positives) != bool(one.negatives)]
    both = [one for one in named if one.positives and one.negatives]
    if single and both:
        roles = ("positive", "negative") if single[0].positives else ("negative", "positive")
        raise table.wrong(
            single[0].row,
            f"names a {roles[0]} and no {roles[1]}, and row {table.numbers[both[0].row]} names"
            " both; a table has triplets, where each row that names any names both, or pairs, where"
            f" no row does: name a {roles[1]} too, or empty the cell",
        )
    if both:
        return _triplets(table, both)
    return _pairs(table, single) if single else None


def _named_rows(table: "ImageTable", row: int, role: str, rows: Mapping[str, int]) -> list[int]:
    """Return the rows that a cell names by their paths."""
    if role not in table.columns:
        return []
    cells = [cell.strip() for cell in table.columns[role][row].split(BETWEEN_NAMES)]
    found = []
    for cell in filter(None, cells):
        other = rows.get(table.name_of(table.file_of(cell)))
        if other is None:
            raise table.wrong(
                row,
                f"has {cell!a} as its {role}, which is the path of no row; write the path of"
                f" another row, or several with {BETWEEN_NAMES} between them, or rename the column"
                " if it is something else",
            )
        if other == row:
            raise table.wrong(
                row, f"has itself, {cell!a}, as its {role}; write the path of another row"
            )
        found.append(other)
    return found


def _pairs(table: "ImageTable", named: Sequence[_Named]) -> Relations:
    found: list[tuple[int, int, int]] = []
    first: dict[frozenset[int], tuple[int, int]] = {}
    for row, positives, negatives in named:
        same = int(bool(positives))
        for other in positives or negatives:
            before, as_before = first.setdefault(frozenset((row, other)), (row, same))
            if same != as_before:
                roles = ("positive", "negative") if same else ("negative", "positive")
                raise table.wrong(
                    row,
                    f"has {table.columns['path'][other]!a} as its {roles[0]}, and row"
                    f" {table.numbers[before]} has the same two images as {roles[1]}; remove one of"
                    " the two",
                )
            found.append((row, other, same))
    return Relations("pairs", np.array(found, dtype=np.int64))


def _triplets(table: "ImageTable", named: Sequence[_Named]) -> Relations:
    found: list[tuple[int, int, int]] = []
    for row, positives, negatives in named:
        if len(positives) != len(negatives):
            raise table.wrong(
                row,
                f"names {len(positives)} positives and {len(negatives)} negatives; the first"
                " positive goes with the first negative, and so on, so name as many of each (a name"
                " may stand there twice)",
            )
        for positive, negative in zip(positives, negatives, strict=True):
            if positive == negative:
                name = table.columns["path"][positive]
                raise table.wrong(
                    row,
                    f"has {name!a} as positive and as its negative; name another as one of them",
                )
            found.append((row, positive, negative))
    return Relations("triplets", np.array(found, dtype=np.int64))
