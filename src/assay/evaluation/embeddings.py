"""Embeddings of samples: computed by a model, kept in a file, and cut into parts to be searched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.data import Dataset
from assay.data.arrays import check_vectors, decode_labels, pack_arrays, read_arrays
from assay.data.dataset import Half, Labels, first_test_class
from assay.data.given import Given, GivenSamples, find_samples
from assay.data.load import SKIP
from assay.data.origin import FeaturesOrigin
from assay.embedder import Embedder, load
from assay.errors import BadInput
from assay.evaluation.evaluated_model import EmbeddedPart, samples_of_final
from assay.evaluation.look import LookedAt, Looker, looking
from assay.features import FrozenTrunk, embed_features
from assay.files import write_atomically
from assay.hashing import canonical
from assay.neighbours import Vectors
from assay.npz import read_npy
from assay.progress import Progress, silent
from assay.protocols import Similarity
from assay.records.halves import prints_of
from assay.run.finished import FinishedRun

OPTIONAL_ARRAYS = {
    "query": ("b", "booleans"),
    "gallery": ("b", "booleans"),
    "ids": ("iuU", "integers or strings"),
    "trained_on": ("b", "booleans"),
}
"""Arrays that an .npz may hold beside z and y: numpy's letters for their kinds, and the kinds in
words.
"""

NEEDING_A_DIRECTION = ("cosine", "dot")
"""Similarities by which a vector of zeros is 0 to all others."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Embeddings:
    """Embeddings with what is known of their samples.

    Args:
        z: embeddings (N, D); an .npy is memory-mapped.
        y: labels (N,), if known.
        ids: names of the samples (N,), if known.
        query: mask (N,) of the samples that are looked up at the test; None: all.
        gallery: mask (N,) of the samples that queries are looked up in; None: all.
        classes: names of the classes that the numbers in `y` stand for, in class order.
        trainval: number of classes of the official trainval half, where the data have one.
        pretrained_on: the data that the model was pretrained on, if known.
        trained_on: mask (N,) of the samples that the model was trained on; None: of none known.
        origin: the trunk whose features they are, if known.
        similarity: how the embeddings are compared.
        called: name of the embeddings in messages.
        notes: sentences that a reader should know: what was left out when the samples were read,
            where a look at a test half was recorded.
    """

    z: Array
    y: Array | None = None
    ids: Array | None = None
    query: Array | None = None
    gallery: Array | None = None
    classes: Array | None = None
    trainval: Array | None = None
    pretrained_on: Array | str | None = None
    trained_on: Array | None = None
    origin: FeaturesOrigin | None = None
    similarity: Similarity = "cosine"
    called: str = "the embeddings"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.z)

    def save(self, path: str | Path) -> None:
        """Write the arrays as an .npz, which `features:` and `assay evaluate` read."""
        names = "z", "y", "classes", "ids", "query", "gallery", "trainval"
        seen = "pretrained_on", "trained_on"
        found = {name: getattr(self, name) for name in (*names, *seen)}
        arrays = {name: array for name, array in found.items() if array is not None}
        arrays |= {"origin": np.array(canonical(self.origin.to_json()))} if self.origin else {}
        write_atomically(Path(path), pack_arrays(arrays))

    @property
    def can_be_benched(self) -> bool:
        """Whether there are classes, and the model was trained on none that a bench would test."""
        if self.classes is None or self.y is None:
            return False
        official = None if self.trainval is None else int(self.trainval)
        tested = self.y >= first_test_class(len(self.classes), official)
        return self.trained_on is None or not self.trained_on[tested].any()

    def whole(self) -> EmbeddedPart:
        """Return all rows as one part, with their own labels."""
        assert self.y is not None
        return self._part(
            "all", np.arange(len(self.z)), self.y, self.ids, [self.query, self.gallery]
        )

    def check_rows(self, dataset: Dataset, data: str) -> None:
        """Raise `BadInput` unless there is a row for each sample of the data set named `data`."""
        if len(self.z) != len(dataset):
            raise BadInput(
                f"{self.called} has {len(self.z)} rows, {data} has {len(dataset)} samples; row i"
                f" must be sample i, in the order in which `assay data splits {data}` lists them"
            )

    def parts(self, half: Half, chosen: Mapping[str, Labels]) -> Iterator[EmbeddedPart]:
        """Yield the chosen rows of a half by their names; row i must be sample i of its data set.

        Labels, ids and, at the test, roles are those of the data.
        """
        labels, ids = np.array(half.class_names)[half.y], np.array(half.ids)
        for name, rows in chosen.items():
            roles = [None if mask is None else mask[rows] for mask in (half.query, half.gallery)]
            yield self._part(name, half.places[rows], labels[rows], ids[rows], roles)

    def seen_in_words(self, rows: Labels) -> list[str]:
        """Return a note on those of the rows that the model was trained on, where there are any.

        Raise `BadInput` where it was trained on all of them.
        """
        seen = 0 if self.trained_on is None else int(self.trained_on[rows].sum())
        if seen == len(rows):
            raise BadInput(
                f"{self.called}: the model behind these vectors was trained on all {seen} samples"
                " to score: a score would say nothing of unseen classes; give vectors of other data"
            )
        if not seen:
            return []
        return [
            f"the model behind these vectors was trained on {seen} of the {len(rows)} samples;"
            " their scores are not those of unseen classes"
        ]

    def zeros_in_words(self, rows: Labels, similarity: str) -> list[str]:
        """Return a note on those of the rows that hold zeros only, where there are any and the
        similarity needs a direction.
        """
        if similarity not in NEEDING_A_DIRECTION:
            return []
        ordered = np.sort(rows)
        places = Vectors(self.z, chosen=torch.from_numpy(ordered)).zeros()
        if not places:
            return []
        return [
            f"{self.called}: {len(places)} of {len(rows)} rows of z hold zeros only, the first is"
            f" row {ordered[places[0]]}; by {similarity} such a row is no nearer to one sample than"
            " to another, and it is scored so"
        ]

    def _part(
        self,
        name: str,
        rows: Labels,
        y: Array,
        ids: Array | None,
        roles: Sequence[Array | None],
    ) -> EmbeddedPart:
        """Return these rows, with labels, ids, and masks of queries and gallery."""
        query, gallery = roles
        used = slice(None) if query is None or gallery is None else query | gallery
        self._check_finite(rows[used])
        named = None if ids is None else ids.tolist()
        return EmbeddedPart(name, self.z[_as_slice(rows)], y, named, query, gallery)

    def _check_finite(self, rows: Labels) -> None:
        """Raise `BadInput` with the number of a bad row in the file, which later checks lack."""
        bad = Vectors(self.z, chosen=torch.from_numpy(rows)).not_finite()
        if bad:
            others = (
                f" (and {len(bad) - 1} other row{'s' * (len(bad) > 2)})" if len(bad) > 1 else ""
            )
            raise BadInput(
                f"{self.called}: row {bad[0]} of z{others} is NaN or infinite; fix or remove it"
            )


def _as_slice(rows: Labels) -> slice | Labels:
    """Return a slice where the rows are neighbours: it leaves a memory-mapped file on the disk."""
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


# --- from a file ----------------------------------------------------------------------------------


def read_embeddings(path: Path, labels: Path | None, *, needs_labels: bool) -> Embeddings:
    """Read an .npz, or an .npy with its labels in another .npy; nothing is unpickled."""
    called = str(path)
    if path.suffix.lower() == ".npz":
        needed = ["z", "y"] if needs_labels else ["z"]
        arrays = read_arrays(path, called, needed, list(OPTIONAL_ARRAYS))
    else:
        arrays = {"z": _read_array(path, mapped=True)}
        arrays |= {} if labels is None else {"y": _read_array(labels, mapped=False)}
    check_vectors(arrays["z"], called)
    rows = len(arrays["z"])
    for name, (kinds, wanted) in OPTIONAL_ARRAYS.items():
        found = arrays.get(name)
        if found is not None and (found.dtype.kind not in kinds or found.shape != (rows,)):
            raise BadInput(
                f"{path}: {name} is {found.dtype} of shape {found.shape}; it must be {wanted} of"
                f" shape ({rows},)"
            )
    if "y" in arrays:
        arrays["y"] = decode_labels(arrays["y"], rows, str(labels or path))
    return Embeddings(**arrays, called=called)  # type: ignore[arg-type]


def _read_array(path: Path, *, mapped: bool) -> Array:
    try:
        return read_npy(path, mapped=mapped)
    except ValueError as error:
        raise BadInput(
            f"{path} cannot be read as an .npy of a plain array: {error}. Write it again with"
            " np.save(path, array)"
        ) from None


# --- by a model -----------------------------------------------------------------------------------


def embed(
    model: str | Path | Embedder,
    images: Given,
    *,
    device: str = "auto",
    weights_file: str | Path | None = None,
    skip_broken: bool = False,
    progress: Progress = silent,
) -> Embeddings:
    """Embed images, or a whole data set with its labels and official split.

    Args:
        model: a model folder, a pretrained trunk by its name (`lite0`, any name of timm's), or a
            model that `assay.load` has loaded.
        images: the path of an image, a folder of images or of class folders, `kind:path` of `assay
            list datasets`, a `Dataset`, Pillow's image, uint8 pixels (height, width, 3) or (N,
            height, width, 3), a list of paths, images or pixels, or rows of features (N, width).
        device: auto, cpu or cuda.
        weights_file: weights of a trunk given by its name, instead of its own.
        skip_broken: leave out files that cannot be read, which are refused otherwise.
        progress: called with the stage, the steps done and their total.

    >>> import assay
    >>> found = assay.embed("lite0", [np.zeros((40, 40, 3), dtype=np.uint8)])
    >>> found.z.shape
    (1, 1280)
    """
    if isinstance(model, Embedder) and weights_file is not None:
        raise BadInput(f"the model is loaded and has its weights; leave out {weights_file}")
    loaded = model if isinstance(model, Embedder) else load(model, device, 3, weights_file)
    inputs = loaded.model.architecture.inputs
    given = find_samples(
        images, loaded.takes, inputs, progress, skip_broken=skip_broken, remedy=SKIP
    )
    if not isinstance(model, Embedder) and loaded.folder is None and given.inputs != inputs:
        loaded = load(model, device, given.inputs, weights_file)  # a trunk for grey images, say
    looker, marks = looker_of("assay embed", loaded), _trained_on(loaded, given)
    with looking(looker, looked_at(looker, given)) as look:
        z, origin = _embed(loaded, given, progress)
        looks = look.record({}, loaded.similarity)
    seen = {"pretrained_on": _seen_by(loaded, given), "trained_on": marks}
    return Embeddings(
        z,
        **(given.arrays | seen),
        origin=origin,
        similarity=loaded.similarity,
        notes=(*given.notes, *looks, *_trained_in_words(marks)),
    )


def _embed(
    embedder: Embedder, given: GivenSamples, progress: Progress
) -> tuple[Array, FeaturesOrigin | None]:
    """Return the embeddings of the samples, and their origin if they are features of a trunk.

    Features of a frozen trunk are shared by the cache.
    """
    embedder.check(given)
    model, device = embedder.model, embedder.device
    trunk = FrozenTrunk.of(model, embedder.card.get("weights"), device.type)
    halves = () if trunk is None else given.halves()
    if trunk is None or not halves:
        return embedder.embed_given(given, progress), None
    parts = [embed_features(model, trunk.features(half, progress), device) for half in halves]
    z = np.empty((given.count, parts[0].shape[1]), dtype=np.float32)
    for half, part in zip(halves, parts, strict=True):
        z[half.places] = part.numpy()
    if model.architecture.dim or model.architecture.layer_norm or embedder.folder:
        return z, None
    return z, trunk.origin(z, halves[0], given.source)


def _seen_by(embedder: Embedder, given: GivenSamples) -> str | None:
    """Return in words the data that trunk and head of a model have seen, where that may matter.

    A model of all classes has seen every class of its data, any other those of its card.
    """
    card = embedder.card
    before = card.get("pretrained_on") or given.arrays.get("pretrained_on")
    if card.get("final") is not None:
        classes = "all classes"
    elif card.get("classes") and "data" in card:
        count = len(card["classes"])
        classes = f"{count} class{'es' * (count != 1)}"
    else:
        return before
    seen = f"{classes} of {card['data']}"
    return f"{before}, then {seen}" if before else seen


def _trained_in_words(marks: Array | None) -> list[str]:
    if marks is None:
        return []
    return [
        f"the model was trained on {int(marks.sum())} of the {len(marks)} samples, which the file"
        " marks in trained_on: their scores are not those of unseen classes"
    ]


def _trained_on(embedder: Embedder, given: GivenSamples) -> Array | None:
    """Return marks of the samples that the model, or the one before it, was trained on; None where
    none are known to be.

    Samples are known by their content where the model is one of all classes, else by the trainval
    half of their data set, of which they must then hold exactly the same samples.
    """
    card = embedder.card
    before = given.arrays.get("trained_on")
    marks = np.zeros(given.count, dtype=np.bool_) if before is None else before.copy()
    if samples := samples_of_final(embedder.folder, card):
        marks |= np.array([hash_ in samples for hash_ in given.contents()])
    halves = given.halves() if card.get("trainval") else ()
    if halves and halves[0].fingerprint in (card["trainval"], card.get("images")):
        for half in halves:
            classes = np.isin(half.class_names, card.get("classes") or ())
            marks[half.places] |= classes[half.y]
    return marks if marks.any() else None


def looker_of(command: str, embedder: Embedder) -> Looker:
    """Return what looks at samples where a command embeds them."""
    folder, card = embedder.folder, embedder.card
    if folder is None:
        return Looker(f"{command} {embedder.called}")
    looker = Looker.of_folder(
        f"{command} {embedder.called}",
        folder,
        lambda: FinishedRun.of_model(folder, embedder.model),
    )
    return replace(looker, images=card.get("images") or "", features=card.get("trainval") or "")


def looked_at(looker: Looker, given: GivenSamples) -> LookedAt:
    """Return what is looked at where samples are embedded.

    Of a model that was trained on features, their images are known by the trainval half.
    """
    at = LookedAt(given.called, prints_of(given.contents()))
    halves = given.halves() if looker.images else ()
    if not halves or halves[0].fingerprint != looker.images:
        return at
    return replace(at, trainval=looker.images, tested=len(halves[1].y))
