"""What the documentation shows is what happens: Python blocks are run, commands too (benches in miniature)."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from miniature import MINI, make_folder

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    return [
        (f"{page.name}-{number}", block)
        for page in PAGES
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL))
    ]


def named(found):
    return {"argvalues": [block for _, block in found], "ids": [name for name, _ in found]}


@pytest.mark.parametrize("block", **named(blocks("python")))
def test_python_blocks_run(block, tmp_path):
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COMMANDS = [line.partition("#")[0].strip() for _, block in blocks("sh") for line in block.splitlines()]
ASSAY = [command for command in COMMANDS if command.startswith("assay ")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with everything that the documentation's commands name."""
    root = tmp_path_factory.mktemp("docs")
    make_folder(root / "birds")
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(16), 4)
    np.savez(root / "clip.npz", z=draw.normal(size=(len(y), 8)), y=y)
    mine = next(block for _, block in blocks("python") if block.startswith("# mine.py"))
    (root / "mine.py").write_text(mine)
    return root


def in_miniature(command):
    """The command's words; a bench gets a small budget, and other data than its own only where that would take minutes."""
    words = [sys.executable, "-m", *shlex.split(command)]
    if words[3] != "bench":
        return words
    if "--data" not in words:
        words += ["--data", "folder:birds"]
    small = [setting for setting in MINI if not setting.startswith(("trials", "startup"))]
    return words + [part for setting in ("trials=1", "startup=0", *small) for part in ("--set", setting)]


@pytest.mark.parametrize("command", ASSAY)
def test_commands_work(workplace, command):
    done = subprocess.run(in_miniature(command), cwd=workplace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert wanted
    assert wanted <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
