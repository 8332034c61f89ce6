"""Printing of a survey of a data set for people."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from assay.cli.show import print_table, visible

if TYPE_CHECKING:
    from assay.data.splits import Splitting
    from assay.data.survey import Copies, Problems, Shape, Size, Sizes, Survey

NAMED, COPIES = 10, 4
"""How many examples of each problem are named, and how many copies of a sample."""

BAR, NAME = 40, 40
"""Characters of the longest bar, and of a class's name in a table."""


def print_survey(found: "Survey") -> None:
    """Print kind and size of the data, samples per class, and problems."""
    print(visible(found.name))
    lines = list(_lines(found))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"  {name:{width}}  {visible(value)}")
    _print_histogram(found)
    print("\nproblems")
    for line in list(_problems(found.problems, found.modality)) or ["  none found"]:
        print(line)


def _lines(found: "Survey") -> Iterator[tuple[str, str]]:
    colour = {1: "grey", 3: "colour"}.get(found.inputs, f"{found.inputs} channels")
    vectors = found.modality == "features"
    yield (
        "modality",
        f"vectors of {found.inputs} numbers" if vectors else f"{found.modality}s in {colour}",
    )
    yield "classes", f"{found.classes:,}"
    yield "samples", f"{found.samples:,}"
    if found.sizes is not None:
        yield "image sizes", _size_line(found.sizes)
    if found.roles is not None:
        roles = found.roles
        yield (
            "roles at the test",
            f"{roles.queries:,} queries, {roles.gallery:,} in the gallery, {roles.both:,} both",
        )
        if roles.neither or roles.unanswerable:
            yield (
                "",
                (
                    f"{roles.neither:,} neither; {roles.unanswerable:,} queries have nothing to"
                    " find in the gallery"
                ),
            )
    if found.listed is not None:
        listed = found.listed
        yield listed.kind, f"{listed.count:,}, {listed.in_trainval:,} within trainval"
    if found.metadata:
        yield (
            "metadata",
            ", ".join(
                f"{column} ({words:,} different)" for column, words in found.metadata.items()
            ),
        )
    for note in found.notes:
        yield "note", note


def _size_line(sizes: "Sizes") -> str:
    if sizes.smallest == sizes.largest:
        return f"all {_pixels(sizes.smallest)}"
    often = sizes.commonest[0]
    most = (
        f"; most often {_pixels(often)} ({_many(often.images, 'image', 'images')})"
        if often.images > 1
        else ""
    )
    return (
        f"smallest {_pixels(sizes.smallest)}, median {_pixels(sizes.median)}, largest"
        f" {_pixels(sizes.largest)}{most}"
    )


def _pixels(image: "Size | Shape") -> str:
    return f"{image.width} x {image.height}"


def _print_histogram(found: "Survey") -> None:
    if found.samples_per_class is None:
        return
    spread = found.samples_per_class
    print("\nsamples per class")
    middle = (
        f"25% {spread.first_quartile:,g}   median {spread.median:,g}   75%"
        f" {spread.third_quartile:,g}"
    )
    print(f"  min {spread.least:,}   {middle}   max {spread.most:,}   mean {spread.mean:,.1f}\n")
    block = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    highest = max(bar.classes for bar in found.histogram)
    names = [
        f"{bar.least:,}" if bar.least == bar.most else f"{bar.least:,} to {bar.most:,}"
        for bar in found.histogram
    ]
    width = max(map(len, names))
    for name, bar in zip(names, found.histogram, strict=True):
        blocks = block * -(-BAR * bar.classes // highest)
        print(
            f"  {name:>{width}}  {blocks} {_many(bar.classes, 'class', 'classes')}"
            if blocks
            else f"  {name:>{width}}"
        )


def _problems(problems: "Problems", modality: str) -> Iterator[str]:
    """Yield each problem with its consequence and first examples, the worst first."""
    from assay.data.images import LONGEST
    from assay.data.survey import LONG_SIDE, TINY

    one, several = ("vector", "vectors") if modality == "features" else ("image", "images")
    found: list[tuple[str, str, Sequence[str]]] = [
        (
            f"LEAK: {_many(len(problems.leaks), one, several)} in both trainval and test",
            (
                "models are trained on what they are tested with, so no bench starts without"
                " --allow-leaks: remove one side"
            ),
            [_copies(copies) for copies in problems.leaks],
        ),
        (
            f"{_many(len(problems.unreadable), 'file', 'files')} that cannot be read",
            "no bench starts before they are fixed or removed",
            [unreadable.problem for unreadable in problems.unreadable],
        ),
        (
            f"{_many(len(problems.ambiguous), one, several)} with more than one label",
            (
                "at most one label is right, so no bench starts without --allow-leaks: correct or"
                " remove the others"
            ),
            [_copies(copies) for copies in problems.ambiguous],
        ),
        (
            f"{_many(len(problems.repeats), one, several)} more than once in a class",
            "a copy is always found, so scores are too good: keep one of each",
            [" = ".join(_some(copies.samples)) for copies in problems.repeats],
        ),
        (
            f"{_many(len(problems.near), 'pair', 'pairs')} of {several} that look nearly the same",
            "if they are the same images saved again, treat them as copies",
            [_copies(copies) for copies in problems.near],
        ),
        (
            f"{_many(len(problems.tiny), one, several)} with a short side below {TINY} pixels",
            "there is little to see on them",
            [f"{shape.sample} ({_pixels(shape)})" for shape in problems.tiny],
        ),
        (
            f"{_many(len(problems.long), one, several)} more than {LONG_SIDE} times as long as"
            " wide",
            (
                "a central square shows little of them, and --set resize=short refuses those above"
                f" {LONGEST} times"
            ),
            [f"{shape.sample} ({_pixels(shape)})" for shape in problems.long],
        ),
        (
            f"{_many(len(problems.single), 'class', 'classes')} with one sample",
            "as queries they have nothing to find",
            problems.single,
        ),
    ]
    for what, meaning, which in found:
        if which:
            yield f"  {what}"
            yield f"    {meaning}"
            yield from (f"      {visible(name)}" for name in which[:NAMED])
            if len(which) > NAMED:
                yield f"      and {len(which) - NAMED:,} more, which --json lists"


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _copies(copies: "Copies") -> str:
    named = zip(copies.samples, copies.classes, strict=True)
    return " = ".join(
        _some(
            [
                sample if sample.startswith(f"{label}/") else f"{sample} ({label})"
                for sample, label in named
            ]
        )
    )


def _some(names: Sequence[str]) -> list[str]:
    more = [f"{len(names) - COPIES:,} more"] if len(names) > COPIES else []
    return [*names[:COPIES], *more]


def print_splitting(found: "Splitting") -> None:
    """Print halves and folds, with fingerprints."""
    print(f"\nsplits under {found.protocol}")
    if found.fingerprints is None:
        print("  none can be made")
        return
    columns = ["part", "classes", "samples", "first class", "last class"]
    rows = [
        [
            one.part,
            f"{one.classes:>7,}",
            f"{one.samples:>7,}",
            _short(one.first),
            _short(one.last),
        ]
        for one in found.parts
    ]
    print_table(columns, rows, right=(1, 2))
    halves = (
        "the data set's own"
        if found.official_halves
        else "by class order, the first half for trainval"
    )
    print(f"\n  halves are {halves}; folds are of trainval; no class is in two parts")
    for half, fingerprint in found.fingerprints.items():
        print(f"  fingerprint of {half:8}  {fingerprint}")


def _short(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= NAME else f"{shown[: NAME - 3]}..."
