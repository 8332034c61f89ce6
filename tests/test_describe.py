"""Every method described in full, and docs/methods.md in step with the code."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from assay.losses.loss import Compares
from assay.methods import (
    Loss,
    Method,
    Real,
    Space,
    defaults,
    describe,
    losses,
    methods,
    methods_by_year,
    miners,
)
from assay.protocols import BatchKind, protocols
from assay.samplers import samplers
from loops import for_each

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGE, WRITER = ROOT / "docs" / "methods.md", ROOT / "tools" / "methods_page.py"
OWN = [name for name in methods if methods.origin(name).startswith("assay.")]
TRAINED = [name for name in OWN if methods[name].loss is not None]
every_method = for_each("name", OWN)
every_trained_method = for_each("name", TRAINED)
every_miner = for_each(
    "name", [name for name in miners if miners.origin(name).startswith("assay.")]
)


# --- descriptions ---------------------------------------------------------------------------------


@every_trained_method
def test_a_method_is_described_in_full(name):
    described = describe(methods[name])
    assert losses[described["loss"]] is methods[name].loss
    assert described["about"]
    assert described["summary"].endswith(".")
    assert described["equation"]
    assert described["batch"] in get_args(BatchKind)
    assert described["compares"] in ("pairs", "triplets", "either", "batch", "classes", "anything")
    assert {"title", "year", "url", "equation"} == set(described["paper"])
    assert re.fullmatch(r"[^\s()\[\]]+", described["paper"]["url"])
    assert not described["paper"]["url"].startswith("http")


@every_method
def test_defaults_are_those_of_trial_0(name):
    assert describe(methods[name])["defaults"] == defaults(methods[name], protocols["quick"])


@every_method
def test_every_argument_has_a_meaning_and_every_searched_parameter_is_one(name):
    arguments = describe(methods[name])["arguments"]
    assert set(methods[name].space) | set(methods[name].fixed) <= set(arguments)
    assert [
        argument for argument, said in arguments.items() if not said["meaning"].endswith(".")
    ] == []


@every_trained_method
def test_a_method_searches_the_learning_rate_of_its_weights_if_it_has_some(name):
    loss = methods[name].loss()
    loss.setup(dim=4, classes=3)
    described = describe(methods[name])
    assert ("weights_lr" in described["space"]) == (len(list(loss.parameters())) > 0)
    assert described["defaults"].get("weights_lr", 3e-3) == 3e-3


@every_method
def test_a_docstring_names_the_arguments_that_there_are(name):
    loss, miner = methods[name].loss, methods[name].miner
    for part in (part for part in (loss, miner and miners[miner]) if part):
        named = re.findall(
            r"^ {8}(\w+):", (part.__doc__ or "").partition("Args:\n")[2], re.MULTILINE
        )
        assert set(named) <= set(describe(methods[name])["arguments"])


def test_a_miner_is_given_with_its_rule():
    assert describe(methods["triplet_semihard"])["miner"] == {
        "name": "semihard",
        "rule": "Each positive pair with the nearest negative that is farther than the positive.",
    }


def test_departures_are_those_of_the_loss_of_the_method_and_of_the_miner():
    assert describe(methods["triplet_semihard"])["departures"] == [
        "distances are not squared",
        (
            "no margin bounds the negative from above; where none is farther than the positive, the"
            " farthest is taken"
        ),
    ]
    assert describe(methods["triplet_sampled"])["departures"][-1].startswith("N/3 random triplets")


@pytest.mark.parametrize("name", ["as_is", "pretrained", "untrained"])
def test_a_baseline_is_described_as_what_is_not_trained(name):
    described = describe(methods[name])
    for absent in ("loss", "compares", "batch", "miner", "paper"):
        assert described[absent] is None
    for empty in ("space", "defaults", "arguments", "equation"):
        assert not described[empty]


class Silent(Loss):
    def __init__(
        self, *, scale: float = 1.0, shape=(2, 3), limit: float = float("inf"), needed: float
    ) -> None:
        super().__init__()


def test_a_stranger_that_says_little_is_described_all_the_same():
    described = describe(
        Method(
            "silent", Silent, space=Space(scale=Real(0, 2), needed=Real(0, 1), unknown=Real(0, 1))
        )
    )
    assert described["loss"] == "Silent"
    assert (described["summary"], described["equation"], described["paper"]) == ("", "", None)
    assert described["defaults"] == {"scale": 1.0, "needed": None, "unknown": None}
    assert (
        described["arguments"]["shape"]["default"],
        described["arguments"]["limit"]["default"],
    ) == ("(2, 3)", "inf")
    json.dumps(described, allow_nan=False)


class Wordy(Loss):
    """A first sentence that goes on
    in a second line.

    Eq. 1:  a
                + b

    and a second paragraph.

    Args:
        one: in two
            lines.
        other: in one: with a colon.

    Attributes:
        third: which is no argument.
    """

    def __init__(self, *, one: int = 1, other: int = 2, third: int = 3) -> None:
        super().__init__()


def test_a_docstring_is_read_to_the_letter():
    described = describe(Method("wordy", Wordy, space=Space()))
    assert described["summary"] == "A first sentence that goes on in a second line."
    assert described["equation"] == "Eq. 1:  a\n            + b\n\nand a second paragraph."
    assert {name: said["meaning"] for name, said in described["arguments"].items()} == {
        "one": "in two lines.",
        "other": "in one: with a colon.",
        "third": "",
    }


def test_methods_stand_in_the_order_of_their_years_and_families_stay_together():
    ordered = [method for method in methods_by_year() if method.name in OWN]
    years = [method.paper.year for method in ordered[3:]]
    assert [method.name for method in ordered[:3]] == ["as_is", "pretrained", "untrained"]
    assert years == sorted(years)
    names = [method.name for method in ordered]
    for before, after in [
        ("margin", "margin_per_class"),
        ("margin_per_class", "margin_distance_weighted"),
    ]:
        assert names.index(after) == names.index(before) + 1


# --- the command line -----------------------------------------------------------------------------


def test_the_list_for_programs_is_the_full_description(assay):
    code, out, _ = assay("list", "methods", "--json")
    assert code == 0
    assert {one["name"]: one for one in json.loads(out)} == {
        name: describe(methods[name]) for name in methods
    }


@pytest.mark.parametrize(
    "kind",
    ["methods", "losses", "miners", "samplers", "trunks", "datasets", "protocols", "metrics"],
)
def test_a_list_for_people_fits_a_terminal_of_100_columns(assay, kind):
    code, out, _ = assay("list", kind)
    assert code == 0
    assert [line for line in out.splitlines() if len(line) > 100] == []


def test_the_list_for_people_says_of_each_method_what_it_is_made_of(assay):
    _, out, _ = assay("list", "methods")
    lines = out.splitlines()
    row = next(
        number for number, line in enumerate(lines) if line.startswith("multi_similarity_mined ")
    )
    assert lines[row].split(maxsplit=4)[1:] == [
        "2019",
        "embedding",
        "multi_similarity",
        "alpha, base, beta, epsilon",
    ]
    assert lines[row + 1].strip() == methods["multi_similarity_mined"].about


def test_the_list_of_samplers_says_where_they_are_from_and_which_bank_they_need(assay):
    rows = {row["name"]: row for row in json.loads(assay("list", "samplers", "--json")[1])}
    assert rows["episodes"]["paper"] == {
        "title": "Prototypical Networks for Few-shot Learning",
        "year": 2017,
        "url": "arxiv.org/abs/1703.05175",
        "equation": "",
    }
    assert (rows["episodes"]["bank"], rows["frd"]["bank"]) == (None, "kept")
    line = next(line for line in assay("list", "samplers")[1].splitlines() if "ddm" in line)
    assert line.split()[:4] == ["ddm", "2020", "arxiv.org/abs/2002.08473", "kept"]


def test_a_sampler_of_a_stranger_is_listed_without_a_paper(assay, as_before, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from assay.methods import samplers\n"
        '@samplers("mine")\ndef mine(y, batch, seed):\n    """Draw nothing."""\n'
    )
    words = ["list", "samplers", "--import", tmp_path / "mine.py"]
    rows = {row["name"]: row for row in json.loads(assay(*words, "--json")[1])}
    expected = {"name": "mine", "paper": None, "bank": None, "about": "Draw nothing."}
    assert rows["mine"] == {**expected, "rule": "", "fixed_pattern": False}
    line = next(line for line in assay(*words)[1].splitlines() if line.startswith("mine"))
    assert line.split() == ["mine", "Draw", "nothing."]


def test_long_names_of_strangers_do_not_break_the_list(assay, tmp_path):
    name = "a_very_long_name_" * 5
    (tmp_path / "mine.py").write_text(
        "from assay.methods import Loss, Method, Space, losses, methods\n"
        f"@losses({name!r})\nclass Mine(Loss):\n    pass\n"
        f"methods.add(Method({name!r}, Mine, space=Space()))\n"
    )
    try:
        for kind in ("methods", "losses"):
            code, out, err = assay("list", kind, "--import", tmp_path / "mine.py")
            assert (code, err) == (0, "")
            assert name in out
    finally:
        methods.forget(methods.origin(name))
        losses.forget(losses.origin(name))


# --- the page -------------------------------------------------------------------------------------


def test_the_page_is_what_the_code_says():
    done = subprocess.run([sys.executable, WRITER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout != PAGE.read_text(encoding="utf-8"):
        pytest.fail("docs/methods.md is not what the code says; run: make docs")


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def prose(page):
    """What Markdown reads: neither blocks, nor code, nor the comment."""
    return re.sub(r"```.*?```|`[^`\n]*`|<!--.*?-->", "", page, flags=re.DOTALL)


@every_method
def test_a_method_has_one_section_with_its_equation(page, name):
    (section,) = re.findall(rf"^### {name}\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    described = describe(methods[name])
    assert described["equation"] in section
    assert all(f"| `{parameter}` |" in section for parameter in described["arguments"])
    assert not described["paper"] or f"](https://{described['paper']['url']})" in section


def test_the_readme_counts_what_there_is():
    """Words and numbers of its sentence on methods."""
    told = README.read_text(encoding="utf-8")
    found = re.search(r"(\d+) methods of (\d+) losses, (\d+) miners and (\d+)\s+samplers", told)
    trained = [name for name, method in methods.items() if not method.baseline]
    assert [int(number) for number in found.groups()] == [
        len(part) for part in (trained, losses, miners, samplers)
    ]


@for_each("name", list(samplers))
def test_a_sampler_has_one_section(page, name):
    assert page.count(f"\n### {name} (sampler)\n") == 1


@every_miner
def test_a_miner_has_one_section(page, name):
    assert page.count(f"\n### {name} (miner)\n") == 1


def test_every_kind_of_comparison_has_its_group():
    groups = runpy.run_path(str(WRITER))["GROUPS"]
    without_a_loss = ("nothing", "features")
    assert sorted(kind for kinds in groups.values() for kind in kinds) == sorted(
        (*get_args(Compares), *without_a_loss)
    )


def test_links_within_the_page_lead_somewhere(page, prose):
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(anchors) == len(set(anchors))
    wanted = re.findall(r"\]\(#([^)]*)\)", prose)
    assert wanted
    assert set(wanted) <= set(anchors)


def test_nothing_in_prose_is_mistaken_for_markup(prose):
    without_links = re.sub(r"\[[^\]\n]*\]\([^)\n]*\)", "", prose)
    without_titles = re.sub(r"\*\*[^*\n]+\*\*|\*[^*]+\*", "", without_links)
    headless = re.sub(r"^#.*$", "", without_titles, flags=re.MULTILINE)
    assert [line for line in headless.splitlines() if re.search(r"[\[\]*_<>]", line)] == []


def test_every_row_of_a_table_has_as_many_cells_as_its_head(page):
    tables = re.findall(
        r"(?:^\|.*\|\n)+", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE
    )
    assert len(tables) > len(TRAINED)
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
