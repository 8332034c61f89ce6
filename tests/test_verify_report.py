"""`assay verify` renders the report again: what was added, altered or hidden there is named, and a
report that is older than its store or was interrupted is incomplete and no accusation.
"""

import json
import re
import shutil

import pytest
from matplotlib.figure import Figure

import assay as package
from assay.hashing import pretty
from assay.protocols import customise, protocols
from assay.records.ledger import LOOKS
from assay.records.merge import merge
from assay.records.reported import Extent, Reported
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import write, write_report
from assay.report.figures import draw
from assay.verify.figures import ingredients
from assay.verify.report import check_report
from miniature import MINI, make_features

METHODS = ("triplet", "normalized_softmax")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("verify_report")
    data = f"features:{make_features(root / 'mini.npz')}"
    small = customise(protocols["quick"], MINI)
    package.bench(data, METHODS, small, root / "store", engine="inline")
    return root / "store"


@pytest.fixture(scope="module")
def drawn():
    """A figure as matplotlib writes it, where the reports of this file have a stand-in."""
    shown = Figure()
    shown.subplots().plot([0, 1], [0, 1])
    return draw(shown, "svg").decode()


@pytest.fixture
def store(made, tmp_path):
    return Store(shutil.copytree(made, tmp_path / "store"))


def problems(store):
    return [f"{one.what}: {one.problem}" for one in check_report(store) if one.problem]


def notes(store):
    return {one.what: one.note for one in check_report(store) if one.note}


def incomplete(store):
    return [one.note for one in check_report(store) if one.incomplete]


def page_of(store):
    return store.root / "report" / "index.html"


def on_page(old, new):
    """Replace the first such text on the page."""

    def change(store):
        text = page_of(store).read_text()
        assert old in text
        page_of(store).write_text(text.replace(old, new, 1))

    return change


def made_of(store):
    return Reported.read(store.root / "report" / "report.json")


def edit_made_of(store, change):
    path = store.root / "report" / "report.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(pretty(document))


def written_with(**versions):
    return lambda store: edit_made_of(store, lambda said: said["versions"].update(versions))


def figure(store, ending):
    return next((store.root / "report" / "figures").glob(f"*-intervals.{ending}"))


def move_a_point(text):
    """Another digit in the first path of a figure."""
    return re.sub(r'd="M ?(\d+)', lambda found: f'd="M {int(found[1]) + 7}', text, count=1)


def moved_on_the_page(store):
    text = page_of(store).read_text()
    start = text.index("<svg")
    page_of(store).write_text(text[:start] + move_a_point(text[start:]))


def moved_in_the_file(store):
    path = figure(store, "svg")
    path.write_text(move_a_point(path.read_text()))


def touched(store):
    path = figure(store, "png")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


ROW = "<tr><td>ours</td><td>1</td><td>99.9</td></tr>"

FORGED = {
    "a row added to a table": (on_page("</table>", f"{ROW}</table>"), "it says 'ours' where"),
    "a row hidden": (on_page("<td>triplet</td>", "<td hidden>triplet</td>"), "index.html: it says"),
    "a sentence added": (on_page("</article>", "<p>Ours wins.</p></article>"), "'Ours wins.'"),
    "a word altered": (on_page("fair test", "fair contest"), "fair contest"),
    "a script": (on_page("</head>", "<script>x()</script></head>"), "index.html: it says 'x()'"),
    "a style": (on_page("td.best {", "td.best { display: none;"), "index.html: it says"),
    "a comment": (on_page("<main>", "<main><!--> <p>x</p> -->"), "index.html: it says"),
    "a link": (on_page('href="tables/', 'href="other/'), "index.html: it says"),
    "spaces": (on_page("<main>", "<main> "), "its markup is another than that of `assay report`"),
    "a figure on the page": (moved_on_the_page, "its figures are not those that the studies give"),
    "a figure more": (
        on_page("</article>", "<svg><path d='M 0'/></svg></article>"),
        "its figures are not those that the studies give",
    ),
    "a figure's SVG": (moved_in_the_file, "-intervals.svg: does not say what the studies say"),
    "a figure's PNG": (touched, "-intervals.png: does not say what the studies say"),
    "a figure removed": (lambda store: figure(store, "svg").unlink(), "svg: is missing"),
    "a figure from elsewhere": (
        lambda store: (store.root / "report" / "figures" / "best-ranks.png").write_bytes(b""),
        "figure best-ranks.png: no study here gives this figure",
    ),
    "the page removed": (lambda store: page_of(store).unlink(), "index.html: is missing"),
    "the page a folder": (
        lambda store: (page_of(store).unlink(), page_of(store).mkdir()),
        "report/index.html: ",
    ),
    "more lines covered than there are": (
        lambda store: edit_made_of(
            store, lambda said: said["extent"]["studies"].update({store.studies()[0]: 999})
        ),
        "report.json has 999 lines of study",
    ),
    "a study covered that is not there": (
        lambda store: edit_made_of(
            store, lambda said: said["extent"]["studies"].update({"0" * 64: 1})
        ),
        "report.json has 1 lines of study 000000000000, the store has none",
    ),
    "a bench that is not there": (
        lambda store: edit_made_of(
            store, lambda said: said["extent"]["benches"].append("0" * 64)
        ),
        "report.json has bench 000000000000, which is not in the store",
    ),
    "nothing covered": (
        lambda store: edit_made_of(store, lambda said: said["extent"]["studies"].clear()),
        "report.json covers no study",
    ),
    "times made up": (
        lambda store: edit_made_of(
            store,
            lambda said: said["times"].update({key: [1, 600.0] for key in said["times"]}),
        ),
        "report/index.html: it says",
    ),
    "garbage": (
        lambda store: (store.root / "report" / "report.json").write_text("[]"),
        "report made again: ",
    ),
}  # fmt: skip


def test_an_honest_report_passes(store):
    findings = list(check_report(store))
    assert len(findings) > 20
    assert [one for one in findings if one.problem or one.note] == []


@pytest.mark.forgery("verify", what="of the report: {}")
@pytest.mark.parametrize("name", FORGED)
def test_what_was_done_to_a_report_is_found(store, name):
    forge, words = FORGED[name]
    forge(store)
    found = problems(store)
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    "error", [OverflowError("too large"), ValueError("x"), AssertionError("x"), TypeError("x")]
)
def test_what_rendering_raises_is_said_and_is_no_accusation_and_no_traceback(
    store, monkeypatch, error
):
    def render(*_):
        raise error

    monkeypatch.setattr("assay.verify.report.render_report", render)
    (found,) = check_report(store)
    assert found.unchecked and not found.problem
    assert found.note.startswith(f"could not be checked: {type(error).__name__}: {error}")


# --- written elsewhere ----------------------------------------------------------------------------


@pytest.mark.forgery("nothing", what="a figure altered, and report.json naming other versions")
def test_figures_drawn_with_other_versions_are_taken_on_trust_and_the_text_is_not(store):
    written_with(matplotlib="3.0")(store)
    moved_on_the_page(store)
    moved_in_the_file(store)
    touched(store)
    assert problems(store) == []
    note = notes(store)["figures of the report"]
    assert note.startswith("drawn elsewhere with matplotlib 3.0 (")
    assert "so their curves are not compared; tables and text are" in note
    assert [one.trusted for one in check_report(store) if one.trusted] == [
        "that the figures of the report show what the studies say"
    ]
    on_page("</table>", f"{ROW}</table>")(store)
    assert any("it says 'ours' where" in problem for problem in problems(store))


HIDDEN = {
    "an element": ("</svg>", "<foreignObject><p>Ours wins.</p></foreignObject></svg>"),
    "a script after a slash": ("<svg", '<svg/onload="x()" '),
    "a style sheet": ("<path", "<style>main {display: none}</style><path"),
}
ALSO_HIDDEN = {
    "a script": ("</svg>", '<g onload="x()"></g></svg>'),
    "a rule for the page": ("butt}", 'butt} main {display: none} body::before {content: "Ours."}'),
    "an end in capitals": ("</svg>", "</SVG>Ours wins.</svg>"),
    "an end of a paragraph": ("</svg>", "</p>Ours wins.</svg>"),
    "no end": ("</svg>", "<g></svg>"),
    "text": ("</svg>", "<g>Ours wins.</g></svg>"),
    "a comment": ("</svg>", "<!--> <p>Ours wins.</p> --></svg>"),
    "a declaration": ("</svg>", "<!DOCTYPE x></svg>"),
    "characters": ("</svg>", "<![CDATA[Ours wins.]]></svg>"),
    "an instruction": ("</svg>", "<?xml-stylesheet href='x'?></svg>"),
    "a link": ("</svg>", '<use xlink:href="https://ours.example/#x"/></svg>'),
    "an address": ("</svg>", '<path style="fill: url(//ours.example)"/></svg>'),
    "a place": ("<svg", '<svg style="position: fixed"'),
    "a place of a curve": ("<path", '<path style="position: fixed"'),
}


@pytest.mark.forgery("verify", what="a figure not compared, of other versions: {} hidden in it")
@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_is_hidden_in_a_figure_that_is_not_compared(store, name):
    written_with(matplotlib="3.0")(store)
    on_page(*HIDDEN[name])(store)
    path = figure(store, "svg")
    path.write_text(path.read_text().replace(*HIDDEN[name], 1))
    found = [one for one in problems(store) if "holds what none of `assay report` does" in one]
    assert [one.split(":")[0] for one in found] == [f"figure {path.name}", "report/index.html"]


@pytest.mark.forgery("verify", what="a figure not compared, of other versions: {} hidden in it")
@pytest.mark.parametrize("name", ALSO_HIDDEN)
def test_whatever_a_browser_would_show_or_run_is_an_ingredient_of_a_figure(drawn, name):
    old, new = ALSO_HIDDEN[name]
    assert old in drawn
    assert ingredients([drawn.replace(old, new, 1)]) - ingredients([drawn])


def drawn_by_another_matplotlib(content):
    """The same figure with other elements, attributes, properties and text as text."""
    for old, new in {
        b"butt}": b"butt; paint-order: stroke}",
        b"<path ": b'<path vector-effect="none" ',
        b"</svg>": b'<g><text x="1" style="font: 9px sans-serif">MAP@R</text></g></svg>',
    }.items():
        assert old in content
        content = content.replace(old, new)
    return content


@pytest.mark.parametrize("name", ["matplotlib", "numpy"])
def test_an_honest_report_that_another_version_drew_is_accused_of_nothing(
    store, drawn, monkeypatch, name
):
    def draws(svg):
        monkeypatch.setattr(write, "draw", lambda figure, form: svg if form == "svg" else svg[::-1])

    here = write.versions()
    draws(drawn_by_another_matplotlib(drawn.encode()))
    write_report(store)
    draws(drawn.encode())
    assert any(problem.startswith("figure ") for problem in problems(store))
    monkeypatch.setattr("assay.verify.report.versions", lambda: here | {name: "99.0"})
    assert problems(store) == []
    assert f"drawn elsewhere with {name} " in notes(store)["figures of the report"]
    assert [one.trusted for one in check_report(store) if one.trusted] == [
        "that the figures of the report show what the studies say"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("butt}", "butt} <script>x()</script> * {}"),
        ("butt}", "butt; fill: <script>x()</script>}"),
        ("butt}", "butt; display: none}"),
        ("butt}", "butt; fill: url(//ours.example)}"),
        ("</svg>", "<text><title><script>x()</script></title></text></svg>"),
        ("</svg>", '<text class="verdict">Ours wins.</text></svg>'),
        ("</svg>", '<p>Ours <text x="0">wins.</text></p></svg>'),
    ],
)
def test_what_may_be_drawn_anew_lets_nothing_else_in(drawn, old, new):
    assert ingredients([drawn.replace(old, new, 1)]) - ingredients([drawn])


def test_other_curves_and_colours_are_no_other_ingredients(drawn):
    other = move_a_point(drawn).replace("#ffffff", "#123456")
    assert "#123456" in other
    assert ingredients([other]) == ingredients([drawn])


@pytest.mark.forgery("verify", what="a figure more on a page, which names other versions")
def test_no_figure_is_added_to_a_page_whose_figures_are_not_compared(store):
    written_with(matplotlib="3.0")(store)
    on_page("</svg>", "</svg><svg></svg>")(store)
    assert any(" figures, the studies give " in problem for problem in problems(store))


def test_a_page_of_another_template_engine_may_have_other_spaces_and_no_other_text(store):
    written_with(jinja2="3.0")(store)
    on_page("<main>", "<main>  ")(store)
    assert problems(store) == []
    on_page("fair test", "fair contest")(store)
    assert len(problems(store)) == 1


@pytest.mark.forgery(
    "verify --complete", what="a report altered, and report.json naming another Assay"
)
def test_what_differs_in_a_report_of_another_assay_is_named_and_accuses_nobody(store):
    written_with(source="0" * 64)(store)
    assert problems(store) == []
    assert not any(one.incomplete for one in check_report(store))
    on_page("fair test", "fair contest")(store)
    assert problems(store) == []
    (page,) = [one for one in check_report(store) if one.incomplete]
    assert page.what == "report/index.html"
    assert page.note.startswith("written by another Assay (source 000000000000 (")
    assert "fair contest" in page.note and page.note.endswith("`assay report` writes it again")
    assert page.trusted == "that the report of another Assay says what the studies say"


# --- older than the store -------------------------------------------------------------------------


def render_as_of(store, extent):
    """What a forger does who would rather show less: the report of an earlier time."""
    shown = Reported(extent, made_of(store).times, made_of(store).versions)
    shutil.rmtree(store.root / "report")
    for name, content in write.render_report(store, shown).items():
        path = store.root / "report" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (store.root / "report" / "report.json").write_text(pretty(shown.to_json()))


@pytest.mark.forgery("verify --complete", what="a report that leaves out a study")
def test_a_report_that_leaves_out_a_study_is_incomplete(store):
    whole = Extent.of(store)
    left_out = next(one.key for one in study_records(store) if one.method == "triplet")
    studies = {key: count for key, count in whole.studies.items() if key != left_out}
    render_as_of(store, Extent(studies, whole.benches))
    assert "<td>triplet</td>" not in page_of(store).read_text()
    assert problems(store) == []
    assert incomplete(store) == [
        "older than the store: of 1 studies it does not cover all steps; `assay report` writes it"
        " again"
    ]


@pytest.mark.forgery("verify --complete", what="a report that leaves out an announcement")
def test_a_report_that_leaves_out_an_announcement_is_incomplete(store):
    render_as_of(store, Extent(Extent.of(store).studies, ()))
    assert problems(store) == []
    assert "1 benches were announced since" in incomplete(store)[0]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_report_of_a_bench_under_way_passes_when_the_bench_has_gone_on(store, share):
    whole = Extent.of(store)
    studies = {key: max(1, round(share * count)) for key, count in whole.studies.items()}
    render_as_of(store, Extent(studies, whole.benches))
    assert problems(store) == []
    assert len(incomplete(store)) == 1


def test_later_looks_do_not_make_a_report_incomplete(store):
    from assay.records.ledger import Ledger

    record = study_records(store)[0]
    ledger = Ledger(store.study(record.key) / "ledger.jsonl")
    assert LOOKS
    ledger._append("look", {})
    assert incomplete(store) == []


@pytest.mark.forgery("verify --complete", what="a report that leaves out a peek")
def test_a_report_that_leaves_out_a_peek_is_incomplete(store):
    """It is no step of the study, and has a table of its own."""
    from assay.records.ledger import Ledger

    ledger = Ledger(store.study(study_records(store)[0].key) / "ledger.jsonl")
    ledger._append("peek", {})
    (note,) = incomplete(store)
    assert "of 1 studies it does not cover all steps" in note


def test_the_clock_files_decide_nothing(store):
    for path in store.root.glob("runs/*/*/timing.json"):
        path.write_text("{")
    assert problems(store) == [] and notes(store) == {}


# --- interrupted ----------------------------------------------------------------------------------


def test_wherever_writing_a_report_is_interrupted_it_is_incomplete_and_nothing_is_accused(
    store, monkeypatch
):
    """Of an older state, too, so that old and new files lie side by side."""
    whole = Extent.of(store)
    real, written = write.write_atomically, []
    last = len(write.render_report(store, made_of(store)))
    render_as_of(store, Extent(dict.fromkeys(whole.studies, 3), whole.benches))
    for kill in (0, 1, last // 2, last - 1, last):
        written.clear()

        def interrupted(path, content, kill=kill):
            if len(written) == kill:
                path.parent.mkdir(exist_ok=True)
                (path.parent / ".draft-x").write_bytes(b"")
                raise KeyboardInterrupt
            written.append(path)
            real(path, content)

        monkeypatch.setattr(write, "write_atomically", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_report(store)
        assert problems(store) == []
        assert len(incomplete(store)) == 1 and "was interrupted" in incomplete(store)[0]
    monkeypatch.setattr(write, "write_atomically", real)
    write_report(store)
    assert problems(store) == [] and notes(store) == {}, "no draft is left either"


def test_an_interrupted_report_fails_only_where_completeness_is_asked_for(assay, store):
    (store.root / "report" / "report.json").unlink()
    code, out, _ = assay("verify", store.root)
    assert code == 0 and "INCOMPLETE report: report.json, which is written last" in out
    assert assay("verify", store.root, "--complete")[0] == 1


@pytest.mark.forgery("verify --complete", what="the whole report removed")
def test_a_finished_store_without_a_report_is_incomplete(assay, store):
    shutil.rmtree(store.root / "report")
    assert notes(store) == {"report": "missing; `assay report` writes it"}
    assert problems(store) == [] and len(incomplete(store)) == 1
    assert assay("verify", store.root)[0] == 0
    assert assay("verify", store.root, "--complete")[0] == 1


def cut_a_study(store):
    """Let a study have done no more than its first trial."""
    ledger = store.study(study_records(store)[0].key) / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))


@pytest.mark.parametrize("why", ["under way", "merged"])
def test_a_store_that_is_under_way_or_merged_needs_no_report(store, tmp_path, why):
    if why == "merged":
        merge([store.root], tmp_path / "merged")
        store = Store(tmp_path / "merged")
    else:
        shutil.rmtree(store.root / "report")
        cut_a_study(store)
    assert notes(store) == {"report": "there is none yet; `assay report` writes it"}
    assert problems(store) == incomplete(store) == []


def test_files_that_the_report_did_not_write_are_named(store):
    folder = store.root / "report"
    for name in ("second.html", "figures/mine.png", "deep/er/notes.txt", "tables/old.bak/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"dear")
    assert problems(store) == []
    assert notes(store) == {
        "files in report/": "not written by `assay report`: deep/er/notes.txt, figures/mine.png,"
        " second.html and 1 more"
    }
