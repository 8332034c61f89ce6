"""The model card of an export: what the model is, from what it was made, and how good it is.

Every sentence comes from the card of the model folder, the record of the export or the store that
the model lies in; what none of them knows is called unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from assay.embedder import Embedder
from assay.errors import BadInput
from assay.index.export.record import (
    EXAMPLE,
    GRAPH,
    PREPROCESSING,
    Agreement,
    Export,
    Preprocessing,
)
from assay.model import count_numbers
from assay.protocols import RANDOM_WEIGHTS
from assay.records.codec import BadRecord
from assay.records.lines import Scores
from assay.records.run import ModelCard, ScoreInterval
from assay.records.store import Store
from assay.records.study import study_records
from assay.stats import t_interval
from assay.trunks.licences import licence_of
from assay.trunks.weights import check_kept, resolve_weights

METRICS = {"precision_at_1": "P@1 (R@1)", "r_precision": "R-precision", "map_at_r": "MAP@R"}
"""Scores of a card, and what tables call them."""

MOST_CLASSES = 20
"""Classes that are named."""


def model_card(embedder: Embedder, export: Export, about: Preprocessing, size: int) -> str:
    """Return the model card of an export as Markdown; `size` is that of the graph in bytes."""
    card = _card_of(embedder)
    sections = {
        "": _what_it_is(embedder, export, about),
        "Training": _training(card),
        "Scores": _scores(embedder, card),
        "Weights of the trunk": _weights(embedder, card),
        "Use": _use(about),
        "Check against torch": _check(export, about, size),
        "Limits": _limits(embedder, card),
    }
    parts = [f"# {Path(export.name).name}"]
    for title, lines in sections.items():
        parts += [f"## {title}"] * bool(title) + ["\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _card_of(embedder: Embedder) -> ModelCard | None:
    """Return the card of a model that Assay trained; None for any other model."""
    try:
        return ModelCard.from_json(embedder.card, embedder.called)
    except BadRecord:
        return None


def _what_it_is(embedder: Embedder, export: Export, about: Preprocessing) -> Iterator[str]:
    architecture = embedder.model.architecture
    wide = "numbers" if about.takes == "vectors" else "channels"
    yield (
        f"`{GRAPH}` embeds {about.takes} of {about.inputs} {wide} as vectors of {about.dim}"
        f" numbers, compared by {about.similarity}. It was exported by Assay"
        f" {export.versions['assay-dml']}."
    )
    yield ""
    if about.takes == "images":
        yield f"- Trunk: {export.trunk}, pooling {architecture.pooling}"
    if architecture.dim:
        normed = ", on standardised features" if architecture.layer_norm else ""
        yield f"- Head: linear, {architecture.dim} outputs{normed}"
    else:
        yield "- Head: none; the features of the trunk are the embedding"
    if architecture.parts:
        yield f"- Parts of the head: {', '.join(map(str, architecture.parts))}"
    yield f"- Parameters: {count_numbers(embedder.model):,}"
    yield f"- SHA-256 of its weights and architecture: `{export.print}`"


def _training(card: ModelCard | None) -> Iterator[str]:
    if card is None:
        yield "Its card names no training by Assay."
        return
    parameters = ", ".join(f"{name}={value}" for name, value in card.parameters.items())
    yield f"- Method: {card.method}; parameters: {parameters or 'none'}"
    yield f"- Data: {card.data} (fingerprint of trainval `{card.trainval}`)"
    yield f"- Trained on {_classes(card.classes)}"
    if card.final is not None:
        yield f"- On all classes, the test half too, for {card.final.epochs} epochs"
    elif card.fold is not None:
        yield f"- Fold {card.fold} of {card.folds} was held out, and chose the checkpoint"
    yield f"- Protocol: {card.protocol}; seed {card.seed}"
    if card.study is not None:
        yield f"- Study: `{card.study}`, preregistration `{card.preregistration}`"


def _classes(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_CLASSES])
    rest = len(names) - MOST_CLASSES
    return f"{len(names)} classes: {shown}{f' and {rest} more' if rest > 0 else ''}"


# --- Scores ---


def _scores(embedder: Embedder, card: ModelCard | None) -> Iterator[str]:
    if card is None or not (card.final or card.test or card.validation):
        yield "Its card has no scores. `assay evaluate` measures them on data of your own."
        return
    if card.final is not None:
        yield f"{card.final.note}\n"
        yield from _table(card.final.scores)
        return
    found = scores_of_study(embedder, card)
    if found:
        yield "Test scores of single models of the study that this model comes from:\n"
        yield from _table(found)
        yield ""
    own = (card.test or {}).get("separated")
    if own:
        yield (
            "Test scores of the reproduction that this model is one of, mean over its models:"
            f" {_named(own)}."
        )
    if card.validation:
        yield (
            "Validation scores of this model, by which its checkpoint was chosen, so that they are"
            f" too good: {_named(card.validation)}."
        )


def scores_of_study(embedder: Embedder, card: ModelCard) -> dict[str, ScoreInterval]:
    """Return the test scores of the study that a model comes from, by metric.

    Nothing where the model does not lie in the store of the study, or the store cannot be read.
    """
    folder = embedder.folder.resolve() if embedder.folder else None
    if folder is None or card.study is None or folder.parent.name != "models":
        return {}
    with suppress(BadInput, OSError):
        for record in study_records(Store(folder.parents[1])):
            if record.key == card.study and record.complete:
                found = {name: t_interval(record.units("separated", name)) for name in METRICS}
                return {name: ScoreInterval(**vars(one)) for name, one in found.items()}
    return {}


def _table(scores: Mapping[str, ScoreInterval]) -> Iterator[str]:
    yield "| metric | mean, percent | 95% interval | values |"
    yield "| --- | ---: | --- | ---: |"
    for name, called in METRICS.items():
        if name not in scores:
            continue
        found = scores[name]
        ends = (
            "none, from one value"
            if found.low is None or found.high is None
            else f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        )
        yield f"| {called} | {100 * found.mean:.1f} | {ends} | {found.n} |"


def _named(scores: Scores) -> str:
    return ", ".join(
        f"{called} {100 * scores[name]:.1f}%" for name, called in METRICS.items() if name in scores
    )


# --- Where the weights come from ---


def _weights(embedder: Embedder, card: ModelCard | None) -> Iterator[str]:
    about = embedder.card
    digest, seen = about.get("weights"), about.get("pretrained_on")
    trunk = embedder.model.architecture.trunk
    if embedder.takes == "vectors":
        made_by = card.features if card else None
        yield "The model takes vectors, so it has no trunk of its own."
        yield (
            f"The vectors that it was trained on were made by: {made_by}."
            if made_by
            else "What made the vectors that it takes is not recorded."
        )
        if seen:
            yield f"That model was pretrained on: {seen}."
    elif digest is None:
        yield "What the trunk began with is not recorded, and so its licence is unknown."
    elif digest == RANDOM_WEIGHTS:
        yield "The trunk began with random weights, so there is no licence of others to keep to."
    else:
        source = _source(trunk, digest)
        yield f"- Pretrained on: {seen or 'unknown'}"
        yield f"- SHA-256 of the weights that it began with: `{digest}`"
        yield f"- Source: {source or 'unknown, they are not in the cache of the machine'}"
        if source is None:
            yield f"- Licence: unknown; of the own weights of {trunk} it is: {licence_of(trunk)}"
        elif source.startswith("file "):
            yield "- Licence: unknown: see the publisher of that file"
        else:
            yield f"- Licence: {licence_of(trunk)}"


def _source(trunk: str, digest: str) -> str | None:
    """Return where weights came from, as the cache of this machine knows; None: it does not."""
    try:
        check_kept(trunk, digest)
        found = resolve_weights(trunk, digest)
    except BadInput:
        return None
    return None if found is None else found.source


# --- Use ---


def _use(about: Preprocessing) -> Iterator[str]:
    if about.takes == "images":
        yield f"`python {EXAMPLE} a.jpg b.jpg` embeds images with numpy, Pillow and onnxruntime."
    yield (
        f"Input `{about.input_name}`: {about.input_type} {about.input_shape}. Output"
        f" `{about.output_name}`: {about.output_type} (batch, {about.dim}). `{PREPROCESSING}` has"
        " the same for programs."
    )
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(about.steps, 1))


def _check(export: Export, about: Preprocessing, size: int) -> Iterator[str]:
    batches = f"{', '.join(map(str, export.batches[:-1]))} and {export.batches[-1]}"
    unit = "" if about.similarity == "cosine" else " of the mean length of a vector"
    yield (
        f"Before it was written, its embeddings were compared with those of torch"
        f" {export.versions['torch']} on {export.samples} samples ({export.checked_on}), {batches}"
        f" at a time. With weights of float32, two numbers differ by at most"
        f" {export.float32.difference:.1g}{unit}."
    )
    yield f"A sample takes one thread {_times(export.float32)} on the machine of the export."
    if export.int8 is None:
        return
    found = export.int8
    yield ""
    yield (
        f"**The large weights of `{GRAPH}` have 8 bits.** The file has {size:,} bytes,"
        f" {export.float32_bytes / size:.1f} times fewer than with float32. On the same samples its"
        f" embeddings have a cosine to torch's of {found.least_cosine:.4f} at least and"
        f" {found.mean_cosine:.4f} on average, and {100 * found.same_nearest:.0f}% of the samples"
        f" keep their nearest other sample. A sample takes one thread {_times(found)}."
    )


def _times(found: Agreement) -> str:
    """Return how long a sample takes, compared with torch."""
    return f"{1 / found.speed:.2f} times as long as torch"


def _limits(embedder: Embedder, card: ModelCard | None) -> Iterator[str]:
    if embedder.takes == "images":
        yield "- It sees of an image what is left after the steps above: small things may be lost."
    if card is not None:
        yield (
            "- It was trained on the classes above. How well it separates others is known as far as"
            " the scores say."
        )
    if embedder.card.get("pretrained_on"):
        yield (
            "- Images that it is scored on may be among those that the trunk was pretrained on; the"
            " seal of Assay does not cover them."
        )
    yield (
        "- A similarity has no meaning by itself: `assay calibrate` finds a threshold on your data."
    )
