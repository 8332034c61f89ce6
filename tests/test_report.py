"""Tables and page: right numbers, equal conditions only, no network, plain words."""

import csv
import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import numpy as np
import pytest

import assay
from assay.protocols import customise, protocols
from assay.records.origin import GivenParameters, SelectedBy, SweepPoint
from assay.records.store import Store
from assay.records.study import study_records
from assay.report import figures
from assay.report.figures import draw, intervals
from assay.stats import t_interval
from assay.tables import Comparison, Sweep, comparisons, render, sentence, summary, tables_of
from miniature import MINI, make_features
from records import simulate


def methods_that_differ(count, seed=0):
    draw = np.random.default_rng(seed)
    shared = draw.normal(0, 0.01, count)
    return {
        "good": (0.6 + shared + draw.normal(0, 0.001, count)).tolist(),
        "bad": (0.4 + shared + draw.normal(0, 0.001, count)).tolist(),
        "twin": (0.4 + shared + draw.normal(0, 0.001, count)).tolist(),
    }


def comparison(count):
    return Comparison(
        tuple(simulate(name, scores) for name, scores in methods_that_differ(count).items())
    )


def table(found, name):
    return next(table for table in tables_of(found) if table.name == name)


def test_a_table_refuses_two_protocols_data_sets_test_halves_or_environments():
    one = simulate("a", [0.1, 0.2])
    for other in (
        {"protocol": "g" * 64},
        {"trainval": "u" * 64},
        {"test": "x" * 64},
        {"torch": "2.12"},
    ):
        with pytest.raises(ValueError, match="a table holds one"):
            Comparison((one, simulate("b", [0.1, 0.2], **other)))
    assert Comparison((one, simulate("b", [0.1, 0.2]))).methods == ["a", "b"]


def test_scores_are_means_with_t_intervals():
    found = comparison(10)
    rows = list(csv.DictReader(StringIO(render(table(found, "scores"), "csv"))))
    row = next(
        row
        for row in rows
        if (row["method"], row["setting"], row["metric"]) == ("good", "separated", "map_at_r")
    )
    expected = t_interval(methods_that_differ(10)["good"])
    assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (
        expected.mean,
        expected.low,
        expected.high,
    )
    assert row["units"] == "10"
    assert f"{100 * expected.mean:.2f} ± {100 * expected.half:.2f}" in render(
        table(found, "scores"), "md"
    )


def test_the_best_of_each_column_is_bold_where_a_method_is_settled_worse():
    markdown = render(table(comparison(10), "scores"), "md")
    assert markdown.count("**") == 12
    assert all("**" not in line for line in markdown.splitlines() if not line.startswith("| good"))


def test_where_nothing_is_settled_nothing_is_bold():
    same = {name: scores for name, scores in methods_that_differ(3).items() if name != "good"}
    found = Comparison(tuple(simulate(name, scores) for name, scores in same.items()))
    assert table(found, "scores").best == frozenset()
    assert [row[1] for row in table(found, "scores").rows] == ["1", "1"]


def test_a_method_and_its_like_are_undecided_with_few_reproductions_and_share_a_rank():
    found = comparison(3)
    words = [sentence(found, difference) for difference in found.differences("separated")]
    takes = (
        r"\d+ reproductions of each would find a difference of 1 point 4 times in 5 \(--set"
        r" reproductions=\d+\)"
    )
    once = ", at the parameters that one search found"
    undecided = rf"(bad|twin) and (bad|twin): undecided \(-\d\.\d to \d\.\d\){once}; {takes}"
    assert any(re.fullmatch(undecided, line) for line in words)
    assert any(
        re.fullmatch(
            rf"good is better than bad by (19|20)\.\d points \(\d+\.\d to \d+\.\d\){once}", line
        )
        for line in words
    )
    assert summary(found) == words
    assert [row[:2] for row in table(found, "scores").rows] == [
        ["good", "1"],
        ["bad", "2"],
        ["twin", "2"],
    ]


def test_a_difference_is_always_named_with_the_better_method_first():
    assert all(
        difference.interval.mean >= 0 for difference in comparison(10).differences("separated")
    )


def test_latex_escapes_what_latex_would_read():
    tex = render(table(Comparison((simulate("multi_similarity", [0.1, 0.2]),)), "scores"), "tex")
    assert r"multi\_similarity" in tex
    assert r"$\pm$" in tex
    assert "±" not in tex
    assert tex.count(r"\multicolumn{3}{c}") == 2


def test_chosen_parameters_are_flagged_on_an_edge():
    edges = {"margin": {"end": "low", "bound": 0.0, "natural": True}}
    natural = table(Comparison((simulate("a", [0.1, 0.2], edges=edges),)), "parameters")
    assert natural.rows[0][-1] == "at the low end, natural"
    edges = {"margin": {"end": "high", "bound": 2.0, "natural": False}}
    tight = table(Comparison((simulate("a", [0.1, 0.2], edges=edges),)), "parameters")
    assert tight.rows[0][-1] == "at the high end"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two benches in one store: two protocols, so two comparisons."""
    root = tmp_path_factory.mktemp("report")
    make_features(root / "mini.npz")
    for settings in (MINI, (*MINI, "dim=4")):
        protocol = customise(protocols["quick"], settings)
        assay.bench(
            f"features:{root / 'mini.npz'}",
            ["contrastive", "triplet", "pretrained"],
            protocol,
            root / "store",
            engine="inline",
        )
    return Store(root / "store")


class Page(HTMLParser):
    """Tags opened, and everything that a browser would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.fetched, self.headings = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.fetched += [
            value
            for name, value in attributes
            if name in ("src", "srcset") or (tag == "link" and name == "href")
        ]

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data.strip())


def test_two_protocols_stand_in_two_sections(store):
    page = Page((store.root / "report" / "index.html").read_text())
    assert page.open.count("article") == 2
    assert len(comparisons(store)) == 2
    assert all(len(found.records) == 4 for found in comparisons(store))


def test_the_page_fetches_nothing(store):
    text = (store.root / "report" / "index.html").read_text()
    page = Page(text)
    assert page.fetched == []
    assert "script" not in page.open
    assert "@import" not in text
    assert "url(http" not in text


def test_every_link_of_the_page_leads_to_a_file(store):
    text = (store.root / "report" / "index.html").read_text()
    links = [link for link in re.findall(r'href="([^"#]+)"', text) if not link.startswith("http")]
    assert len(links) > 20
    assert all((store.root / "report" / link).is_file() for link in links)


def test_the_page_says_what_was_announced(store):
    text = (store.root / "report" / "index.html").read_text()
    for record in study_records(store):
        assert record.preregistration in text
        assert record.announced.protocol.fingerprint in text
        assert record.announced.data.trainval in text
        assert record.seal.test in text
    assert "hinges are not squared" in text
    assert "undecided" in text
    assert "at the parameters that one search found" in text


def test_figures_are_the_same_bytes_when_drawn_again(store):
    from assay.report import write_report

    before = {path: path.read_bytes() for path in (store.root / "report" / "figures").iterdir()}
    assert {path.suffix for path in before} == {".svg", ".png"}
    write_report(store)
    assert {
        path: path.read_bytes() for path in (store.root / "report" / "figures").iterdir()
    } == before


@pytest.mark.forgery("verify", what="a figure of the report")
def test_verify_draws_the_figures_again_and_finds_one_that_was_altered(store):
    from assay.verify.report import check_report

    assert [one for one in check_report(store) if one.problem or one.note] == []
    drawn = next((store.root / "report" / "figures").glob("*-intervals.svg"))
    page = store.root / "report" / "index.html"
    for path, words in (
        (drawn, f"figure {drawn.name}: does not say what the studies say"),
        (page, "report/index.html: its figures are not those that the studies give"),
    ):
        text = path.read_text()
        moved = re.sub(r'(<path d="M )(\d+)', lambda m: f"{m[1]}{int(m[2]) + 3}", text, count=1)
        assert moved != text
        path.write_text(moved)
        (found,) = [one for one in check_report(store) if one.problem]
        assert f"{found.what}: {found.problem}".startswith(words)
        path.write_text(text)


def test_a_report_removes_its_own_old_tables_and_nothing_else(store):
    from assay.report import write_report

    report = store.root / "report"
    (report / "figures" / "mine.png").write_bytes(b"dear")
    (report / "tables" / "notes").mkdir()
    (report / "tables" / "old-scores.csv").write_text("stale")
    write_report(store)
    assert (report / "figures" / "mine.png").exists()
    assert (report / "tables" / "notes").is_dir()
    assert not (report / "tables" / "old-scores.csv").exists()
    (report / "tables" / "notes").rmdir()


def test_a_name_with_markup_in_it_is_shown_and_not_obeyed(store, tmp_path):
    features = tmp_path / "<script>alert(1)</script>" / "..&amp;.npz"
    features.parent.mkdir(parents=True)
    features.write_bytes((store.root.parent / "mini.npz").read_bytes())
    done = assay.bench(
        f"features:{features}",
        ["pretrained"],
        customise(protocols["quick"], MINI),
        tmp_path / "store",
        engine="inline",
    )
    text = done.report.read_text()
    assert "features:..&amp;amp;.npz" in text
    assert "script" not in Page(text).open


# --- names that a format would read as its own ---

ODD = ["a$b$", "x$_{$", "\\alpha", "_hidden", "a|b", "[x](y)", "*z*", "<b>q", "50% & #~^`", 'q",r']
"""Names that matplotlib, Markdown, LaTeX, HTML or CSV would read."""


@pytest.fixture(scope="module")
def odd():
    return Comparison(
        tuple(simulate(name, [0.1 + 0.01 * place, 0.2]) for place, name in enumerate(ODD))
    )


def test_figures_draw_names_letter_by_letter(odd):
    """The second name is no formula: where formulas are read, drawing it raises."""
    drawn = draw(intervals(odd), "svg").decode()
    assert [name in html.unescape(drawn) for name in ODD] == [True] * len(ODD)
    assert draw(intervals(odd), "png").startswith(b"\x89PNG")


def test_every_figure_is_made_without_formulas():
    for make in (
        figures.intervals, figures.over_the_years, figures.where_from, figures.price_of_peeking,
        figures.critical_difference_diagram, figures.sweep_figure,
    ):  # fmt: skip
        assert make.__wrapped__.__name__ == make.__name__  # under rc_context(LITERAL)


def test_names_that_begin_with_an_underscore_stand_in_the_legend_of_a_sweep():
    names = ["_hidden", "a$b$"]
    points = []
    for name in names:
        for value in ("4", "8"):
            record = simulate(name, [0.1, 0.2])
            announced = replace(
                record.announced,
                sweep=SweepPoint("dim", value, ("4", "8"), "b" * 64, "quick.v1"),
                given=GivenParameters({}, SelectedBy("b" * 64)),
            )
            points.append(replace(record, announced=announced))
    drawn = draw(figures.sweep_figure(Sweep("dim", "quick.v1", tuple(points)), "map_at_r"), "svg")
    assert all(f"<!-- {name} -->" in drawn.decode() for name in names)


def test_a_table_in_markdown_shows_names_letter_by_letter(odd):
    text = render(table(odd, "scores"), "md")
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in text.splitlines() if "±" in line]
    plain = [re.sub(r"\\([^A-Za-z0-9])", r"\1", cell) for cell in cells]
    assert sorted(plain) == sorted(ODD)  # none is settled to be best, which would be bold
    shown = "\n".join(cells)
    assert "<b>" not in shown.replace("\\<b>", "") and "](" not in shown.replace("\\[x](", "")
    assert not re.search(r"(?<!\\)[$`]", shown)
    assert "multi_similarity" in render(
        table(Comparison((simulate("multi_similarity", [0.1, 0.2]),)), "scores"), "md"
    )


def test_a_table_in_latex_shows_names_letter_by_letter(odd):
    scores = table(odd, "scores")
    text = render(scores, "tex")
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and r"$\pm$" in line]
    assert len(rows) == len(ODD)
    for row in rows:
        assert len(re.split(r"(?<!\\)&", row)) == len(scores.columns)
        assert not row.startswith("[")  # an option of the \\ before
        assert not re.search(r"(?<!\\)[#%_`^~]", row)
    assert r"a\$b\$" in text and r"\textbackslash{}alpha" in text and "{[}x](y)" in text


def test_a_table_in_csv_gives_names_back(odd):
    read = list(csv.DictReader(StringIO(render(table(odd, "scores"), "csv"))))
    assert {row["method"] for row in read} == set(ODD)


@pytest.mark.parametrize("letters", [5, 120, 190, 240, 4000])
def test_files_of_a_section_have_names_that_a_disk_takes(letters):
    names = {"d" * letters, "d" * (letters - 1) + "e"}
    slugs = {
        Comparison((simulate("a", [0.1, 0.2], data=name, trainval="t" * 64),)).slug
        for name in names
    }
    assert len(slugs) == 2
    longest = max(len(table.name) for table in tables_of(comparison(3)))
    assert max(map(len, slugs)) + len("-differences-concatenated.svg") <= 255 - longest
