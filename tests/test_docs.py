"""What the documentation shows is what happens: Python blocks are run, commands too (benches in
miniature).
"""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from loops import for_each
from miniature import MINI, make_folder

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    return [
        (page, block)
        for page in PAGES
        for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    ]


def named(found):
    return {
        "argvalues": found,
        "ids": [f"{page.name}-{number}" for number, (page, _) in enumerate(found)],
    }


def files(page):
    """Blocks that open with the name of a file, `# mine.py`, are that file for everything else on
    their page.
    """
    found = [
        (re.match(r"# (\w+\.py)\n", block), block) for of, block in blocks("python") if of == page
    ]
    return {match[1]: block for match, block in found if match}


@pytest.fixture(scope="module")
def workplaces(tmp_path_factory):
    """Make a folder for each page with everything that its blocks and commands name."""
    return {page: furnish(tmp_path_factory.mktemp(page.stem), page) for page in PAGES}


def furnish(root, page):
    make_folder(root / "birds")
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(16), 4)
    np.savez(root / "clip.npz", z=draw.normal(size=(len(y), 8)), y=y)
    for name, block in files(page).items():
        (root / name).write_text(block)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), **named(blocks("python")))
@pytest.mark.usefixtures("as_before")
def test_python_blocks_run(monkeypatch, workplaces, page, block):
    monkeypatch.chdir(workplaces[page])
    monkeypatch.syspath_prepend(workplaces[page])
    exec(compile(block, page.name, "exec"), {"__name__": "__main__"})


COMMANDS = [
    (page, line.partition("#")[0].strip())
    for page, block in blocks("sh")
    for line in block.splitlines()
]
ASSAY = [(page, command) for page, command in COMMANDS if command.startswith("assay ")]


def in_miniature(command):
    """The command's words; a bench gets a small budget, and other data than its own only where that
    would take minutes.
    """
    words = shlex.split(command)[1:]
    if words[0] not in ("bench", "sweep"):
        return words
    if "--data" not in words:
        words += ["--data", "folder:birds"]
    small = [setting for setting in MINI if not setting.startswith(("trials", "startup"))]
    words += ["--engine", "inline"]  # to start a process takes longer than to run these
    return words + [
        part for setting in ("trials=1", "startup=0", *small) for part in ("--set", setting)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command"), ASSAY, ids=[f"{page.name}-{command}" for page, command in ASSAY]
)
@pytest.mark.usefixtures("as_before")
def test_commands_work(assay, monkeypatch, workplaces, page, command):
    monkeypatch.chdir(workplaces[page])
    code, out, err = assay(*in_miniature(command))
    assert code == 0, err
    assert out


def test_a_method_of_ones_own_is_benched_against_contrastive_on_glyphs():
    shown = [
        command
        for page, command in ASSAY
        if page.name == "add_a_method.md" and " bench " in command
    ]
    assert any(
        "--import mine.py" in command and "contrastive" in command and "--data glyphs" in command
        for command in shown
    )


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {command.split()[1] for _, command in COMMANDS if command.startswith("make ")}
    assert wanted
    assert wanted <= targets


@for_each("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
