"""What the documentation shows is what happens: Python blocks are run, commands too (benches in
miniature).
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from assay.methods import methods
from assay.protocols import customise, protocols
from assay.samplers import samplers
from assay.study.sweep import read_values
from assay.trunks import find
from conftest import registries_restored
from loops import for_each
from miniature import MINI, make_folder, resolved
from options import set_options, with_last_settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    return [
        (page, block)
        for page in PAGES
        for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    ]


def files(page):
    """Return the blocks that open with the name of a file, `# mine.py`: they are that file for all
    of their page.
    """
    found = [
        (re.match(r"# (\w+\.py)\n", block), block) for of, block in blocks("python") if of == page
    ]
    return {match[1]: block for match, block in found if match}


def furnish(root, page):
    """Make everything that the blocks and commands of a page name.

    A calibration needs ten classes that its model has not seen.
    """
    make_folder(root / "birds", *([60] if page.name == "search.md" else []))
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(16), 4)
    np.savez(root / "clip.npz", z=draw.normal(size=(len(y), 8)), y=y)
    for name, block in files(page).items():
        (root / name).write_text(block)


COMMANDS = [
    (page, line.partition("#")[0].strip())
    for page, block in blocks("sh")
    for line in block.replace("\\\n", " ").splitlines()
]
ASSAY = [(page, command) for page, command in COMMANDS if command.startswith("assay ")]


ON_THE_READERS_DISK = "/data/"
FROM_SCRATCH = (
    "trunk=conv", "weights=none", "frozen=nothing", "stored=auto", "shrink_batch=true",
    "reproductions=1", "epochs=1",
)  # fmt: skip
"""Settings with which a protocol for large trunks and large data runs on a few small images."""


def in_miniature(command):
    """The command's words; a bench gets a small budget, and other data than its own only where that
    would take minutes or they are on the reader's disk.
    """
    words = shlex.split(command)[1:]
    if words[0] not in ("bench", "sweep"):
        return words
    own = ()
    if ON_THE_READERS_DISK in " ".join(words):
        words[words.index("--data") + 1] = "folder:birds"
        own = FROM_SCRATCH
        if "--vary trunk=" in command:
            own = (*own, "size=32")  # the least of the large trunks
        if "--protocol revisiting/" in command:
            own = (*own, "trials=0")
        if "--vary" in words:  # a report of all sweeps of a page would take longer than their runs
            words += ["--out", words[words.index("--vary") + 1].partition("=")[0]]
    if "--data" not in words:
        words += ["--data", "folder:birds"]
    small = [setting for setting in MINI if not setting.startswith(("trials", "startup"))]
    if "--engine" in words:
        place = words.index("--engine")
        del words[place : place + 2]
    words += ["--engine", "inline"]  # to start a process takes longer than to run these
    return with_last_settings([*words, *set_options(("trials=1", "startup=0", *small, *own))])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_and_commands_of_a_page_work(assay, monkeypatch, tmp_path, page):
    """Blocks of Python first, then commands, which may use what the ones before them have left."""
    furnish(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for of, block in blocks("python"):
        if of == page:
            with registries_restored(tmp_path):
                exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
    for of, command in ASSAY:
        if of == page:
            if command.startswith("assay serve "):
                check_service(shlex.split(command)[1:])
                continue
            with registries_restored(tmp_path):
                code, out, err = assay(*in_miniature(command))
            assert code == 0, f"{command}: {err}"
            assert out, command


def check_service(words):
    """Start the service as the page says, on a free port; ask it, and end it."""
    command = [sys.executable, "-m", "assay", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        try:
            address = re.search(r"http://\S+", service.stdout.readline())[0]
            health = httpx.get(f"{address.rstrip('/')}/api/health", timeout=30)
            page = httpx.get(address, timeout=30)
        finally:
            service.terminate()
        assert (health.status_code, page.status_code) == (200, 200), (health.text, page.text)
        assert service.wait(timeout=30) == 0


def test_every_sweep_on_the_page_of_protocols_fits_cub_as_it_is_written():
    """A fold of CUB trains on 75 classes. A command in miniature has smaller batches."""
    shown = [shlex.split(command) for page, command in ASSAY if page.name == "protocols.md"]
    sweeps = [words for words in shown if words[1] == "sweep" and "cub:/data/cub" in words]
    fields = set()
    for words in sweeps:
        said = dict(zip(words[2::2], words[3::2], strict=True))
        field, values = read_values(said["--vary"])
        fields.add((said["--protocol"], field))
        for value in values:
            swept = resolved(customise(protocols[said["--protocol"]], [f"{field}={value}"]))
            assert find(swept.trunk)
            assert swept.sampler in samplers
            for name in said["--methods"].split(","):
                assert swept.batch_for(methods[name].batch, 75), (field, value)
    assert fields == {
        *(("unbiased/inception-bn", field) for field in ("dim", "batch")),
        *(
            ("revisiting/cub", field)
            for field in (
                "sampler", "batch", "batch.embedding", "dim", "optimiser.weight_decay",
                "augment.area", "augment.flip", "trunk",
            )
        ),
    }  # fmt: skip


@pytest.mark.slow
def test_the_page_of_forgeries_lists_the_tests_that_there_are():
    writer, page = ROOT / "tools" / "forgeries_page.py", ROOT / "docs" / "forgeries.md"
    done = subprocess.run([sys.executable, writer], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout != page.read_text(encoding="utf-8"):
        pytest.fail("docs/forgeries.md is not what the tests say; run: make docs")


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
