"""`tools/walk.py` names the functions that a command runs through."""

import importlib.util
import sys
from pathlib import Path

WALK = Path(__file__).parents[1] / "tools" / "walk.py"
OUTER = """
from walked.inner import Thing
REGISTERED = Thing(1).twice()  # during the import

def main():
    return [Thing(number).twice() for number in range(3)]
"""
INNER = """
class Thing:
    def __init__(self, number):
        self.number = number

    def twice(self):
        return 2 * self.number
"""


def test_functions_are_listed_in_order_of_their_first_call_without_those_of_imports(
    tmp_path, monkeypatch
):
    spec = importlib.util.spec_from_file_location("walk", WALK)
    walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walk)
    package = tmp_path / "walked"
    package.mkdir()
    for name, text in (("__init__", ""), ("outer", OUTER), ("inner", INNER)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with walk.Walk(package) as walked:
        importlib.import_module("walked.outer").main()
    assert list(walked.calls.items()) == [
        (("outer.py", "main"), 1),
        (("inner.py", "Thing.__init__"), 3),
        (("inner.py", "Thing.twice"), 3),
    ]
    assert dict(walked.files) == {"outer.py": 1, "inner.py": 6}
    assert walked.leaving == 6
    for name in ("walked", "walked.outer", "walked.inner"):
        del sys.modules[name]
