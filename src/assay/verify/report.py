"""Checks of the report: rendered again, its tables, figures and page come out as they are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

from assay.files import read_bytes
from assay.records.codec import BadRecord
from assay.records.reported import REPORTED, Extent, Reported, decided_since
from assay.records.store import Store
from assay.records.study import study_records
from assay.report.write import COST, DRAWN_BY, LAID_OUT_BY, PAGE, own_files, render_report, versions
from assay.verify.figures import ingredients
from assay.verify.finding import Finding, of_error, outcome

AGAIN = "`assay report` writes it again"
FIGURE = re.compile(r"<svg\b.*?</svg>", re.DOTALL)

SHOWN = 60
"""Letters of a difference that a message shows."""


def check_report(store: Store) -> Iterator[Finding]:
    """Yield a finding for each table, each figure and the page of the report.

    Yield others where the report is not whole, is older than the store, or shares its folder with
    other files.
    """
    folder = store.root / "report"
    if not folder.is_dir():
        yield _no_report(store)
        return
    if not (folder / REPORTED).exists():
        note = (
            f"{REPORTED}, which is written last, is not there: writing the report was interrupted,"
            f" or an earlier Assay wrote it, so nothing in its folder was checked; {AGAIN}"
        )
        yield Finding("report", note=note, incomplete=True)
        return
    try:
        made_of = Reported.read(folder / REPORTED)
        _check_extent(store, made_of.extent)
        expected = render_report(store, made_of)
        if not expected:
            raise BadRecord(f"{REPORTED} covers no study")
    except Exception as error:  # whatever rendering raises is no accusation
        yield of_error("report made again", error)
        return
    if later := _later(store, made_of.extent):
        yield Finding("report", note=f"older than the store: {later}; {AGAIN}", incomplete=True)
    yield from _compare(folder, expected, made_of.versions)


def _no_report(store: Store) -> Finding:
    """Return the finding of a store without a report: a bench whose studies have ended has written
    one, and `assay merge`, which posts no progress, has not.
    """
    due = store.progress.exists() and all(record.ended for record in study_records(store))
    found = "missing" if due else "there is none yet"
    return Finding("report", note=f"{found}; {AGAIN.removesuffix(' again')}", incomplete=due)


def _check_extent(store: Store, extent: Extent) -> None:
    """Raise `BadRecord` where the report was made of what the store does not have."""
    now = Extent.of(store)
    for key, count in extent.studies.items():
        if not 0 <= count <= now.studies.get(key, -1):
            raise BadRecord(
                f"{REPORTED} has {count} lines of study {key[:12]}, the store has"
                f" {now.studies.get(key, 'none')}"
            )
    for hash_ in sorted({*extent.benches} - {*now.benches}):
        raise BadRecord(f"{REPORTED} has bench {hash_[:12]}, which is not in the store")


def _later(store: Store, extent: Extent) -> str:
    """Return in words what happened in the store after its report was written."""
    known = extent.studies
    studies = [
        key for key in store.studies() if key not in known or decided_since(store, key, known[key])
    ]
    benches = {*store.benches()} - {*extent.benches}
    steps = f"of {len(studies)} studies it does not cover all steps" if studies else ""
    announced = f"{len(benches)} benches were announced since" if benches else ""
    return " and ".join(filter(None, (steps, announced)))


def _compare(
    folder: Path, expected: Mapping[str, str | bytes], written_by: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a finding for each file of the report."""
    there = {path.relative_to(folder).as_posix() for path in own_files(folder)}
    here = versions()
    redrawn = _unlike(written_by, here, DRAWN_BY)
    relaid = _unlike(written_by, here, LAID_OUT_BY)
    other_assay = _unlike(written_by, here, ("assay", "source"))
    for name in sorted({*expected, *there} - {PAGE}):
        kind = "figure" if name.startswith("figures/") else "table"
        compared = kind == "table" or not redrawn
        check = partial(_file_problems, folder / name, expected.get(name), compared=compared)
        yield _by(other_assay, outcome(check, Finding(f"{kind} {_called(name)}")))
    page = expected[PAGE]
    assert isinstance(page, str), "a page is a text"
    check = partial(_page_problems, folder / PAGE, page, figures=not redrawn, markup=not relaid)
    yield _by(other_assay, outcome(check, Finding(f"report/{PAGE}")))
    if redrawn:
        note = (
            f"drawn elsewhere with {redrawn}, so their curves are not compared; tables and text"
            " are. `assay report` draws them again"
        )
        trusted = "that the figures of the report show what the studies say"
        yield Finding("figures of the report", note=note, trusted=trusted)
    strangers = sorted(
        name
        for path in folder.rglob("*")
        if not path.is_dir() and (name := path.relative_to(folder).as_posix()) not in there
        if name not in expected and name != REPORTED and not f"/{name}".count("/.")
    )
    if strangers:
        shown = ", ".join(strangers[:3]) + (
            f" and {len(strangers) - 3} more" * (len(strangers) > 3)
        )
        yield Finding("files in report/", note=f"not written by `assay report`: {shown}")


def _called(name: str) -> str:
    """Return what findings call a file of the report: its name, of a table of costs with folder."""
    return name if name.startswith(f"{COST}/") else Path(name).name


def _unlike(written_by: Mapping[str, str], here: Mapping[str, str], names: Sequence[str]) -> str:
    """Return in words which of the versions that wrote the report are others here."""
    return ", ".join(
        f"{name} {written_by.get(name, 'unknown')[:12]} ({here[name][:12]} here)"
        for name in names
        if written_by.get(name) != here[name]
    )


def _by(other_assay: str, finding: Finding) -> Finding:
    """Return the finding; a difference is no problem where another Assay wrote the report."""
    if not (finding.problem and other_assay):
        return finding
    note = f"written by another Assay ({other_assay}): {finding.problem}"
    trusted = "that the report of another Assay says what the studies say"
    return Finding(finding.what, note=note, incomplete=True, trusted=trusted)


def _file_problems(path: Path, expected: str | bytes | None, *, compared: bool) -> Iterator[str]:
    """Yield what is wrong with a table or a figure; None is expected of one too many."""
    if expected is None:
        kind = "figure" if path.parent.name == "figures" else "table"
        yield f"no study here gives this {kind}"
        return
    if not path.exists():
        yield f"is missing; {AGAIN}"
        return
    found, due = read_bytes(path), expected.encode() if isinstance(expected, str) else expected
    if found == due:
        return
    if compared:
        yield f"does not say what the studies say; find out why, then {AGAIN}"
    elif path.suffix == ".svg":
        texts = [one.decode(errors="replace") for one in (found, due)]
        yield from _foreign(texts[:1], texts[1:])


def _page_problems(path: Path, expected: str, *, figures: bool, markup: bool) -> Iterator[str]:
    """Yield the first of what the page has that the studies do not give.

    `figures` and `markup` say whether those must be the same bytes; text and elements must be the
    same in any case.
    """
    if not path.exists():
        yield f"is missing; {AGAIN}"
        return
    found, remedy = read_bytes(path).decode(errors="replace"), f"; find out why, then {AGAIN}"
    rest, own_rest = FIGURE.sub("", found), FIGURE.sub("", expected)
    drawn, own_drawn = FIGURE.findall(found), FIGURE.findall(expected)
    if difference := _first_difference(rest, own_rest):
        yield difference + remedy
    elif markup and rest != own_rest:
        yield f"its markup is another than that of `assay report`{remedy}"
    elif figures and drawn != own_drawn:
        yield f"its figures are not those that the studies give{remedy}"
    elif len(drawn) != len(own_drawn):
        yield f"it has {len(drawn)} figures, the studies give {len(own_drawn)}{remedy}"
    elif found != expected:
        yield from _foreign(drawn, own_drawn)


def _foreign(figures: Sequence[str], expected: Sequence[str]) -> Iterator[str]:
    """Yield what SVGs that are not compared hold, no drawing and in none of the studies' SVGs."""
    if foreign := sorted(ingredients(figures) - ingredients(expected)):
        yield (
            f"a figure holds what none of `assay report` does ({foreign[0][:SHOWN]}); find out"
            f" why, then {AGAIN}"
        )


def _first_difference(found: str, expected: str) -> str:
    """Return where two pages differ in text or elements, as far as a reader would notice."""
    ours, theirs = _Page(found).parts, _Page(expected).parts
    if ours == theirs:
        return ""
    pairs = zip([*ours, ""], [*theirs, ""], strict=False)
    start = next(number for number, (one, other) in enumerate(pairs) if one != other)
    texts = [
        next((part for part in parts[start:] if not part.startswith("<")), "nothing")
        for parts in (ours, theirs)
    ]
    if texts[0] == texts[1]:
        texts = [parts[start] if start < len(parts) else "nothing" for parts in (ours, theirs)]
    return f"it says {texts[0][:SHOWN]!r} where the studies give {texts[1][:SHOWN]!r}"


class _Page(HTMLParser):
    """Elements and text of a page in order; spaces are single, as a browser shows them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the beginning of an element with its attributes."""
        self.parts.append(f"<{tag} {attrs}>")

    def handle_endtag(self, tag: str) -> None:
        """Keep the end of an element."""
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        """Keep text."""
        if text := " ".join(data.split()):
            self.parts.append(text)

    def handle_comment(self, data: str) -> None:
        """Keep a comment, which browsers may not take for one."""
        self.parts.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        """Keep a declaration."""
        self.parts.append(f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        """Keep a declaration that HTML does not have."""
        self.parts.append(f"<!{data}>")

    def handle_pi(self, data: str) -> None:
        """Keep a processing instruction."""
        self.parts.append(f"<?{data}>")
