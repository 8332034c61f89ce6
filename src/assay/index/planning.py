"""What an update does with each image, by its name and the hash of its content.

| name  | content                    | what is done                                       |
| ----- | -------------------------- | -------------------------------------------------- |
| known | the same                   | nothing; its metadata is replaced where it differs |
| known | another                    | embedded, and the row of the old content given up  |
| new   | that of an image there     | its vector is copied                               |
| new   | new                        | embedded                                           |
| gone  |                            | stays, or is removed with `prune`                  |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.index.backends import Rows
from assay.index.catalog import Entry
from assay.index.manifest import Manifest
from assay.index.pending import Embedded
from assay.index.samples import SamplesToIndex
from assay.index.scoring import prepare
from assay.index.versions import Present

AT_ONCE = 4096
"""Embeddings that are brought into their stored form at once."""


@dataclass(frozen=True)
class Plan:
    """What is to be done with the samples.

    Args:
        new: samples that get a new row.
        sources: for each of them, the row whose vector is copied; -1: it is embedded.
        dead: rows that are given up.
        entries: the images of the new rows.
        words: rows that stay, with their new metadata.
        contents: hash of the content of every sample.
        changed: number of samples with known names and new content.
        unchanged: number of samples that stay as they are.
        gone: number of images that were not given, and stay.
        removed: number of images that were not given, and are removed.
    """

    new: NDArray[np.int64]
    sources: Rows
    dead: Rows
    entries: tuple[Entry, ...]
    words: Mapping[int, Mapping[str, str]]
    contents: tuple[str, ...]
    changed: int
    unchanged: int
    gone: int
    removed: int

    @classmethod
    def of(
        cls,
        samples: SamplesToIndex,
        words: Sequence[Mapping[str, str]],
        present: Present | None,
        *,
        prune: bool,
    ) -> "Plan":
        """Return what is to be done; of the index before where there is one."""
        contents = samples.given.contents()
        images = () if present is None else present.images
        by_id = {id_: (row, content) for row, id_, content in images}
        by_content = {content: row for row, _, content in images}
        new, sources, dead, entries, described = [], [], [], [], {}
        unchanged = 0
        for number, (id_, content) in enumerate(zip(samples.ids, contents, strict=True)):
            row, before = by_id.get(id_, (-1, ""))
            old = {} if present is None or row < 0 else present.words.get(row, {})
            own = {**_others(old, samples.columns), **words[number]}
            if row >= 0 and before == content:
                if own != old:
                    described[row] = own
                else:
                    unchanged += 1
                continue
            if row >= 0:
                dead.append(row)
            new.append(number)
            sources.append(by_content.get(content, -1))
            entries.append(Entry(id_, content, own))
        changed, given = len(dead), set(samples.ids)
        missing = [row for row, id_, _ in images if id_ not in given and _in_scope(id_, samples)]
        if prune:
            dead.extend(missing)
        return cls(
            np.array(new, dtype=np.int64),
            np.array(sources, dtype=np.int64),
            np.array(sorted(dead), dtype=np.int64),
            tuple(entries),
            described,
            tuple(contents),
            changed,
            unchanged,
            0 if prune else len(missing),
            len(missing) if prune else 0,
        )

    @property
    def to_embed(self) -> dict[str, int]:
        """The samples to embed, by their content: copies of one image are embedded once."""
        rows = self.new[self.sources < 0].tolist()
        return {self.contents[row]: row for row in reversed(rows)}


def _others(words: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    return {name: word for name, word in words.items() if name not in columns}


def _in_scope(id_: str, samples: SamplesToIndex) -> bool:
    """Return whether an image would be among the samples if it were still there."""
    return samples.below == "" or id_.startswith(f"{samples.below}/")


def stored_vectors(
    plan: Plan,
    embedded: Embedded,
    present: Present | None,
    base: Manifest,
) -> NDArray[Any]:
    """Return the vectors of the new rows as they are stored."""
    copied = plan.sources >= 0
    rows = np.empty((len(plan.new), base.width), dtype=base.dtype)
    if copied.any():
        assert present is not None
        found = present.vectors.rows[plan.sources[copied]]
        if found.dtype != base.dtype:  # to half precision, which may not hold them
            found = prepare(found, base.similarity, base.dtype.type)
        rows[copied] = found
    fresh = np.flatnonzero(~copied)
    for start in range(0, len(fresh), AT_ONCE):
        part = fresh[start : start + AT_ONCE]
        z = np.stack([embedded[plan.contents[row]] for row in plan.new[part].tolist()])
        half = base.precision == "float16"
        rows[part] = prepare(z, base.similarity, np.float16 if half else np.float32)
    return rows
