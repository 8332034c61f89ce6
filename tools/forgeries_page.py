"""Write docs/forgeries.md from the tests: `python tools/forgeries_page.py > docs/forgeries.md`."""

import io
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PREFACE = """\
# Forgeries that are tried, and what finds each

<!-- Generated from the tests by `make docs`. To change this page, mark a test with
`@pytest.mark.forgery(finder, what=...)`. -->

Each row is a test. It plants the forgery into an honest store, or between two commands, and asserts
that it is found and how it is named. `verify` needs the store alone, `verify --data` the data too,
`verify --rerun` trains a run again, `verify --anchor` needs a hash that was published before.
"The command" means that the command which meets the forgery refuses it. "Nothing" is a forgery that
no check finds: the test holds the limit, and [verification.md](verification.md) names it.
"""

FINDERS = (
    "the command",
    "verify",
    "verify --complete",
    "verify --data",
    "verify --rerun",
    "verify --anchor",
    "a recorded look",
    "nothing",
)
"""What finds forgeries, in the order of the page."""


class Collected:
    """The tests that pytest finds with the marker."""

    def __init__(self) -> None:
        self.items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the tests that were found."""
        self.items = session.items


def collect() -> Sequence[pytest.Item]:
    """Return every test with the marker, slow ones too; none of them runs."""
    collected = Collected()
    options = ["--collect-only", "-q", "-m", "forgery", "-p", "no:cacheprovider", "-p", "no:xdist"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = pytest.main([*options, str(ROOT / "tests")], plugins=[collected])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(said.getvalue())
    return collected.items


def row(item: pytest.Item) -> tuple[str, str, str]:
    """Return what finds the forgery of a test, what was forged, and the name of the test."""
    marker = item.get_closest_marker("forgery")
    assert marker is not None
    (finder,), what = marker.args, marker.kwargs["what"]
    if finder not in FINDERS:
        raise ValueError(f"{item.nodeid}: give one of {', '.join(FINDERS)}, not {finder!r}")
    _, _, case = item.name.partition("[")
    file = Path(item.path).name
    function = getattr(item, "originalname", item.name)
    return finder, what.format(case.removesuffix("]")), f"`{file}`: {_words(function)}"


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def markdown() -> str:
    """Return the page."""
    rows = [row(item) for item in collect()]
    counts = Counter(finder for finder, _, _ in rows)
    found = ", ".join(f"{counts[one]} by {_code(one)}" for one in FINDERS if counts[one])
    lines = [PREFACE, f"{len(rows)} forgeries: {found}.", ""]
    for finder in FINDERS:
        if counts[finder]:
            lines += [f"## {_heading(finder)}", "", "| what was forged | test |", "| --- | --- |"]
            lines += [f"| {what} | {test} |" for one, what, test in rows if one == finder]
            lines += [""]
    return "\n".join(lines)


def _code(finder: str) -> str:
    return f"`{finder}`" if finder.startswith("verify") else finder


def _heading(finder: str) -> str:
    return "Found by nothing" if finder == "nothing" else f"Found by {_code(finder)}"


if __name__ == "__main__":
    print(markdown(), end="")
