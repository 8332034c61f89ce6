"""`assay search`: the images of an index that are most similar to a query."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.options import (
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    SkipBrokenOption,
    check_free,
)
from assay.cli.show import note, print_json, print_table, visible
from assay.errors import BadInput

if TYPE_CHECKING:
    from assay.data.given import GivenSamples
    from assay.index import Asked, Found, Index, Vote


class RuntimeName(StrEnum):
    """The library that embeds queries."""

    torch = "torch"
    onnx = "onnx"


def search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")],
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="An image, a folder of images, kind:path or an .npz of vectors; or ID with --id.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", "--count", min=1, help="Matches of a query.")] = 10,
    page: Annotated[
        int, typer.Option(min=1, help="Page 2 holds the next K matches, and so on.")
    ] = 1,
    by_id: Annotated[
        bool, typer.Option("--id", help="QUERY is the id of an image in the index.")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="COLUMN=VALUE",
            help="Only images with this word; one column several times means any of its words.",
        ),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            "--min-precision",
            min=0.0,
            max=1.0,
            help="Only matches of which this share is right; needs `assay calibrate`.",
        ),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Only matches with at least this score.")
    ] = None,
    classify: Annotated[
        bool,
        typer.Option("--classify", help="Let the matches vote on the class of the query."),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(metavar="F.png", help="Draw queries and matches there."),
    ] = None,
    runtime: Annotated[
        RuntimeName, typer.Option(help="What embeds the query; onnx after `assay export`.")
    ] = RuntimeName.torch,
    device: DeviceOption = Device.auto,
    skip_broken: SkipBrokenOption = False,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Find the images of INDEX that are most similar to QUERY.

    A score is the cosine of two embeddings, or minus their distance. It says how sure a match is
    only once the index is calibrated: see `assay calibrate`.

    Example: assay search photos.index query.jpg -k 5
    """
    from assay.cli.progress import follow
    from assay.index import Index, draw_sheet, parse_where

    check_free("--sheet", sheet, force)
    if classify and (by_id or page != 1):
        raise BadInput("--classify goes with neither --id nor --page; leave these out")
    options: dict[str, Any] = {
        "where": parse_where(where or ()),
        "min_score": min_score,
        "min_precision": min_precision,
    }
    votes: list[Vote] | None = None
    asked: Callable[[str], Asked]
    with Index.open(index, device=device, runtime=runtime.value) as opened, follow() as progress:
        if by_id:
            asked = _asked_by_id(opened)
            found = [opened.search_like(query, k, **options, skip=k * (page - 1))]
        else:
            given = opened.find_queries(query, progress, skip_broken=skip_broken)
            for text in given.notes:
                note(visible(text))
            asked = _asked_by_file(opened, given)
            if classify:
                pairs = opened.classify(given, k, **options, progress=progress)
                found, votes = [one for one, _ in pairs], [one for _, one in pairs]
            else:
                options["skip"] = k * (page - 1)
                found = opened.search_many(given, k, **options, progress=progress)
        if sheet is not None:
            for text in draw_sheet(found, sheet, opened, asked, label=opened.manifest.label):
                note(visible(text))
        if json:
            print_json(_document(opened, found, votes))
        else:
            named = not by_id and Path(query).is_dir()
            _print_found(opened, found, votes, options, named=named)
            _note_on_moved(opened, found)
    if sheet is not None and not json:
        print(f"sheet: {sheet}")


def _asked_by_id(opened: "Index") -> "Callable[[str], Asked]":
    """Return what a sheet shows of queries that are images of the index."""
    from assay.index import Asked

    def asked(name: str) -> "Asked":
        entry = opened.entry(name)
        label = opened.manifest.label
        known = None if entry is None or label is None else entry.words.get(label)
        return Asked(opened.file_of(name), known)

    return asked


def _asked_by_file(opened: "Index", given: "GivenSamples") -> "Callable[[str], Asked]":
    """Return what a sheet shows of queries that were given: their files, and classes if known."""
    from assay.index import Asked, names_of

    names = names_of(given)
    files = dict(zip(names, given.files, strict=False))
    label = opened.manifest.label
    known = set() if label is None else {word for word, _ in opened.catalog.words_of(label, -1)}
    given_classes = (given.words.get(name) for name in (label or "", "class", "folder"))
    classes = next((one for one in given_classes if one and known.intersection(one)), ())
    words = {name: one for name, one in zip(names, classes, strict=False) if one in known}
    return lambda name: Asked(files.get(name), words.get(name))


def _in_words(vote: "Vote") -> str:
    """Return a vote in words."""
    if vote.label is None:
        return f"class: unknown ({vote.why})"
    runner_up = (
        f"; next: {vote.runner_up} with {vote.runner_up_share:.0%}" if vote.runner_up else ""
    )
    return f"class: {vote.label} ({vote.share:.0%} of the vote{runner_up})"


def _document(
    opened: "Index", found: Sequence["Found"], votes: "Sequence[Vote] | None"
) -> dict[str, Any]:
    """Return what was found, for programs."""
    return {
        "index": str(opened.root),
        "version": opened.manifest.version,
        "similarity": opened.manifest.similarity,
        "queries": [
            {
                "query": one.query,
                "matches": [
                    {
                        "rank": match.rank,
                        "id": match.id,
                        "score": match.score,
                        "confidence": match.confidence,
                        "words": match.words,
                        "path": None if match.path is None else str(match.path),
                    }
                    for match in one.matches
                ],
                **({} if votes is None else {"vote": votes[place]}),
            }
            for place, one in enumerate(found)
        ],
    }


def _note_on_moved(opened: "Index", found: Sequence["Found"]) -> None:
    """Say where the files of matches are not where the index has them."""
    paths = [match.path for one in found for match in one.matches if match.path is not None]
    gone = [path for path in paths if not path.exists()]
    if gone:
        note(
            visible(
                f"{len(gone):,} of {len(paths):,} files are not there, such as {gone[0]}; if the"
                f" images have moved: assay index --out {opened.root} --root DIR"
            )
        )


def _why_nothing(opened: "Index", options: dict[str, Any]) -> str:
    """Return why a search found nothing, where its options say so."""
    where = options["where"]
    filters = " and ".join(f"{column}={' or '.join(words)}" for column, words in where.items())
    if where and not opened.count(where):
        return f"nothing found: no image has {filters}"
    if options.get("skip", 0) >= opened.count(where):
        return f"nothing found: there are {opened.count(where):,} images, all on earlier pages"
    if options["min_precision"] is not None or options["min_score"] is not None:
        return "nothing found: no image is similar enough"
    return "nothing found"


def _print_found(
    opened: "Index",
    found: Sequence["Found"],
    votes: "Sequence[Vote] | None",
    options: dict[str, Any],
    *,
    named: bool,
) -> None:
    """Print a table for each query: rank, score, confidence where there is one, and the path.

    `named`: the name of the query is printed, also of a single one.
    """
    columns = [name for name in opened.catalog.columns if name != "folder"]
    sure = any(match.confidence is not None for one in found for match in one.matches)
    for place, one in enumerate(found):
        if named or len(found) > 1:
            print(f"{'' if place == 0 else chr(10)}{visible(one.query)}")
        if votes is not None:
            print(visible(_in_words(votes[place])))
        if not one.matches:
            print(visible(_why_nothing(opened, options)))
            continue
        rows = [
            [
                str(match.rank),
                f"{match.score:.4f}",
                *([f"{match.confidence:.2f}"] if sure else []),
                *(visible(match.words.get(name, "")) for name in columns),
                visible(str(match.path or match.id)),
            ]
            for match in one.matches
        ]
        heads = ["", "score", *(["confidence"] if sure else []), *columns, "image"]
        print_table(heads, rows, right=range(2 + sure))
    if sure and opened.gallery is not None:
        print(
            f"confidence: for a query that is compared with {opened.gallery.images:,} images,"
            f" {opened.gallery.same:.3g} of which show what it shows"
        )
    elif opened.calibration is not None and not sure and any(one.matches for one in found):
        note(
            "no confidence is given: the index has no class for most of its images; say how many"
            f" show the same thing with `assay calibrate {opened.root} --data DATA --same N`"
        )
