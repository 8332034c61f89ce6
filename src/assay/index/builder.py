"""The ways to write an index: bring it up to date, remove images, move its root."""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.data.given import Given
from assay.errors import BadInput
from assay.index.encoder import AS_GIVEN, as_given, check_model, loaded_model, print_of
from assay.index.kept_model import keep_calibration, keep_model
from assay.index.manifest import (
    PENDING,
    DamagedIndex,
    IndexedModel,
    Manifest,
    Precision,
)
from assay.index.metadata import read_metadata
from assay.index.pending import Embedded, embed_missing
from assay.index.planning import Plan, stored_vectors
from assay.index.samples import SamplesToIndex, find_to_index
from assay.index.settings import backends_for, make_backend, settings_of
from assay.index.versions import Change, Present, no_rows, no_vectors, place_version, writing
from assay.progress import Progress, silent
from assay.protocols import Similarity
from assay.space import Value
from assay.version import __version__

if TYPE_CHECKING:
    from assay.embedder import Embedder


@dataclass(frozen=True)
class Wanted:
    """How an index is to be; None: as it is, or the default.

    Args:
        backend: name of the back end; exact by default.
        settings: settings of the back end.
        precision: float32 (the default) or float16; the back end `bits` stores bits.
        metadata: a table with further columns of metadata.
        label: the column with the class of an image.
        root: the folder that names of images are relative to.
        prune: whether images that are gone are removed; below the folder that is given, if that is
            a part of the root.
        rebuild: whether all is embedded again, for another model too.
        skip_broken: whether files that cannot be read are left out.
        weights_file: weights of a trunk by name, instead of its own.
    """

    backend: str | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    precision: Precision | None = None
    metadata: Path | None = None
    label: str | None = None
    root: Path | None = None
    prune: bool = False
    rebuild: bool = False
    skip_broken: bool = False
    weights_file: str | None = None


@dataclass(frozen=True)
class Written:
    """What was done to an index.

    Args:
        manifest: the version that is the present one now.
        added: images with new names.
        changed: images with known names and new content.
        removed: images that cannot be found any more.
        described: other images whose metadata changed.
        unchanged: other images that were given.
        gone: images in the index that were not given; they stay.
        embedded: images that went through the network.
        resumed: images that an interrupted update had embedded.
        is_new: whether there is a new version.
        notes: what a reader should know, in words.
    """

    manifest: Manifest
    added: int = 0
    changed: int = 0
    removed: int = 0
    described: int = 0
    unchanged: int = 0
    gone: int = 0
    embedded: int = 0
    resumed: int = 0
    is_new: bool = True
    notes: tuple[str, ...] = ()


# --- the three ways -------------------------------------------------------------------------------


def update(
    out: Path,
    model: "str | Path | Embedder",
    images: Given,
    wanted: Wanted,
    *,
    device: str = "auto",
    progress: Progress = silent,
) -> Written:
    """Make an index of images, or bring one up to date.

    Args:
        out: folder of the index.
        model: a model folder, the name of a trunk, a loaded model, or `as_is`.
        images: see `assay.index.samples.find_to_index`.
        wanted: how the index is to be.
        device: auto, cpu or cuda.
        progress: called with the stage, the steps done and their total.
    """
    with writing(out) as root:
        present, lost = _readable(root, wanted.rebuild)
        embedder, samples = _model_and_samples(model, images, wanted, present, device, progress)
        if present is not None and not wanted.rebuild:
            check_model(root, present.manifest, embedder)
        base = _base(embedder, samples, wanted, present)
        words, notes = _words(samples, wanted)
        _check_label(wanted.label, words)
        if wanted.rebuild and present is not None and not wanted.prune:
            _check_covers(present, samples)
        kept = None if wanted.rebuild else present
        plan = Plan.of(samples, words, kept, prune=wanted.prune)
        _check_numbered(out, samples, plan, wanted)
        embedded = Embedded(root / PENDING / base.model.print[:16], embedder.dim)
        looks = embed_missing(embedder, samples, plan.to_embed, embedded, progress)
        change = Change(
            dead=plan.dead,
            vectors=stored_vectors(plan, embedded, kept, base),
            entries=plan.entries,
            words=plan.words,
        )
        same = present is not None and _is_same(base, present.manifest)
        manifest = None if present is None else present.manifest
        is_new = manifest is None or not (change.is_nothing and same) or wanted.rebuild
        keep_model(root, embedder, base.model.print)
        if is_new:
            manifest = place_version(root, base, kept, change, progress)
        assert manifest is not None
        calibrated = keep_calibration(root, embedder, manifest)
        shutil.rmtree(root / PENDING, ignore_errors=True)
        return Written(
            manifest,
            added=len(plan.entries) - plan.changed,
            changed=plan.changed,
            removed=plan.removed,
            described=len(plan.words),
            unchanged=plan.unchanged,
            gone=plan.gone,
            embedded=embedded.computed,
            resumed=embedded.resumed,
            is_new=is_new,
            notes=(*lost, *samples.given.notes, *notes, *looks, *_zeros(change, base), *calibrated),
        )


def remove(out: Path, ids: Sequence[str], progress: Progress = silent) -> Written:
    """Remove images from an index by their ids; all of them, or none where one is not there."""
    with writing(out, new=False) as root:
        present = _present(root)
        rows = {id_: row for row, id_, _ in present.images}
        unknown = [id_ for id_ in ids if id_ not in rows]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise BadInput(
                f"{out} has no image with the id {unknown[0]!r}{more}; nothing was removed. `assay"
                f" search {out} QUERY` shows ids as --json"
            )
        dead = np.array(sorted({rows[id_] for id_ in ids}), dtype=np.int64)
        change = Change(dead, no_vectors(present))
        manifest = place_version(root, present.manifest, present, change, progress)
        return Written(manifest, removed=len(dead))


def move_root(out: Path, folder: Path, progress: Progress = silent) -> Written:
    """Say where the images of an index are now; nothing is read or embedded."""
    with writing(out, new=False) as root:
        present = _present(root)
        if present.manifest.root is None:
            raise BadInput(
                f"{out} was not made of files, so it has no folder that could have moved; leave out"
                " --root"
            )
        if not folder.is_dir():
            raise BadInput(f"--root {folder}: there is no such folder")
        new = folder.expanduser().resolve()
        there = sum((new / id_).exists() for _, id_, _ in present.images)
        if not there:
            first = present.images[0][1] if present.images else "any image"
            raise BadInput(
                f"--root {folder}: none of the images of {out} is there, not even {first}; give the"
                " folder that their names are relative to"
            )
        missing = len(present.images) - there
        notes = (f"{missing:,} of {len(present.images):,} images are not there",) if missing else ()
        base = replace(present.manifest, root=str(new))
        manifest = place_version(
            root, base, present, Change(no_rows(), no_vectors(present)), progress
        )
        return Written(manifest, unchanged=len(present.images), notes=notes)


# --- update ---------------------------------------------------------------------------------------


def _readable(root: Path, rebuild: bool) -> tuple[Present | None, tuple[str, ...]]:
    """Return the present version; with `rebuild` none where it is damaged, and a note on that."""
    try:
        return Present.read(root), ()
    except DamagedIndex as error:
        if not rebuild:
            raise
        return None, (f"the index was damaged and is made again of the images given: {error}",)


def _check_numbered(out: Path, samples: SamplesToIndex, plan: Plan, wanted: Wanted) -> None:
    """Raise `BadInput` where rows that have only numbers for names would replace other rows."""
    if plan.changed and samples.numbered and not wanted.prune:
        raise BadInput(
            f"{samples.given.called} has no ids, so its rows are named by their numbers, and"
            f" {plan.changed:,} of them are other vectors than those of {out}; give ids"
            " (np.savez(..., ids=...)) to add them, or --prune to put them in their place"
        )


def _zeros(change: Change, base: Manifest) -> list[str]:
    """Return a note on new vectors of zeros, which have no direction that could be compared."""
    if base.similarity != "cosine" or not len(change.vectors):
        return []
    count = int((~change.vectors.any(axis=1)).sum())
    if not count:
        return []
    return [
        f"{count:,} of {len(change.vectors):,} vectors hold zeros only: by cosine they are no more"
        " similar to one image than to another"
    ]


def _check_covers(present: Present, samples: SamplesToIndex) -> None:
    """Raise `BadInput` where a rebuild would lose images that were not given."""
    lost = {id_ for _, id_, _ in present.images} - set(samples.ids)
    if lost:
        raise BadInput(
            f"{present.root} has {len(lost):,} images that are not among those given, such as"
            f" {min(lost)}; give all images to --rebuild, or pass --prune to let these go"
        )


def _check_label(label: str | None, words: Sequence[Mapping[str, str]]) -> None:
    """Raise `BadInput` where no image has a word in the column that is to say its class."""
    if label is not None and not any(label in own for own in words):
        known = sorted({column for own in words for column in own})
        raise BadInput(
            f"--label {label}: no image has a word in such a column (there are"
            f" {', '.join(known) or 'none'})"
        )


def _words(
    samples: SamplesToIndex, wanted: Wanted
) -> tuple[Sequence[Mapping[str, str]], Sequence[str]]:
    """Return the metadata of each sample, and what is to be said about it."""
    if wanted.metadata is None:
        return samples.words, ()
    table, notes = read_metadata(wanted.metadata, samples.ids, root=samples.root)
    taken = {column for own in table.values() for column in own} & set(samples.columns)
    if taken:
        raise BadInput(
            f"{wanted.metadata} has the column {min(taken)}, which the images have by themselves;"
            " give it another name"
        )
    pairs = zip(samples.ids, samples.words, strict=True)
    return [{**own, **table.get(id_, {})} for id_, own in pairs], notes


def _model_and_samples(
    model: "str | Path | Embedder",
    images: Given,
    wanted: Wanted,
    present: Present | None,
    device: str,
    progress: Progress,
) -> "tuple[Embedder, SamplesToIndex]":
    """Return the model, for samples of their width, and the samples."""
    known = None if present is None or wanted.rebuild else present.manifest.root
    if known is not None and wanted.root is not None and wanted.root.resolve() != Path(known):
        raise BadInput(
            f"--root {wanted.root}: the names in this index are relative to {known}; if the images"
            " have moved, give --root without MODEL and IMAGES first; for other names give"
            " --rebuild"
        )
    root = wanted.root if known is None else Path(known)

    def find(takes: Any, inputs: int) -> SamplesToIndex:
        return find_to_index(
            images,
            takes,
            inputs,
            root=root,
            skip_broken=wanted.skip_broken,
            progress=progress,
        )

    if str(model) == AS_GIVEN:
        width = images.shape[-1] if isinstance(images, np.ndarray) else 0
        samples = find("vectors", width)
        if samples.given.kind != "vectors":
            raise BadInput(f"the model {AS_GIVEN} takes vectors, {images} are images; name a model")
        return as_given(samples.given.inputs), samples
    embedder = loaded_model(model, 3, device, wanted.weights_file)
    samples = find(embedder.takes, embedder.inputs)
    if embedder.folder is None and samples.given.inputs != embedder.inputs:
        embedder = loaded_model(model, samples.given.inputs, device, wanted.weights_file)
    embedder.check(samples.given)
    return embedder, samples


def _base(
    embedder: "Embedder", samples: SamplesToIndex, wanted: Wanted, present: Present | None
) -> Manifest:
    """Return the manifest of the new version, except for what its files say."""
    before = None if present is None else present.manifest
    old = before if before is not None and not wanted.rebuild else None
    similarity: Similarity = embedder.similarity
    default = "bits" if similarity == "hamming" else "exact"
    name = wanted.backend or (before.backend if before else default)
    settings = wanted.settings
    if before is not None and name == before.backend and not settings:
        settings = before.settings
    chosen = make_backend(name, settings)
    stored = old.precision if old is not None and old.precision != "bits" else "float32"
    precision: Precision = wanted.precision or stored
    if name == "bits" or similarity == "hamming":
        if wanted.precision is not None:
            raise BadInput(f"--precision {wanted.precision}: bits are stored here; leave it out")
        similarity, precision = "hamming", "bits"
    if similarity not in chosen.similarities:
        raise BadInput(
            f"the back end {name} does not search by {similarity}, the similarity of"
            f" {embedder.called}; choose one of {', '.join(backends_for(similarity))}"
        )
    if old is not None and (old.precision, precision) not in (
        (old.precision, old.precision),
        ("float32", "float16"),
    ):
        raise BadInput(
            f"the index stores {old.precision}, of which no {precision} can be made again; give"
            " --rebuild, which embeds all images again"
        )
    label = wanted.label or (before.label if before else samples.label)
    return Manifest(
        index=before.index if before else secrets.token_hex(8),
        version=before.version if before else 0,
        generation=before.generation if before else 0,
        model=IndexedModel(
            name=str(embedder.folder or embedder.called),
            print=print_of(embedder),
            takes=embedder.takes,
            similarity=embedder.similarity,
            inputs=embedder.inputs,
            dim=embedder.dim,
            about=_about(embedder),
        ),
        images=samples.given.called,
        root=None if samples.root is None else str(samples.root),
        similarity=similarity,
        precision=precision,
        rows=old.rows if old else 0,
        count=old.count if old else 0,
        backend=name,
        settings=settings_of(chosen),
        quality=old.quality if old else None,
        columns=old.columns if old else (),
        label=label,
        written_by=__version__,
        files=old.files if old else {},
    )


def _is_same(base: Manifest, present: Manifest) -> bool:
    """Return whether a version would be like the present one but for its images."""
    names = ("model", "root", "similarity", "precision", "backend", "settings", "label")
    return all(getattr(base, name) == getattr(present, name) for name in names)


def _about(embedder: "Embedder") -> str:
    """Return method and data of a model in words."""
    card = embedder.card
    if "method" in card:
        return f"{card['method']} on {card.get('data', 'unknown data')}"
    if card.get("pretrained_on"):
        return f"pretrained on {card['pretrained_on']}"
    if embedder.card.get("trunk") == AS_GIVEN:
        return "vectors as they were given"
    return "nothing is known of its training"


# --- the others -----------------------------------------------------------------------------------


def _present(root: Path) -> Present:
    found = Present.read(root)
    assert found is not None, "the manifest was read before"
    return found
