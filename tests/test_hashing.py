"""Canonical JSON, the hashes taken of it, and the seeds derived from those."""

import hashlib
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.hashing import canonical, derive, digest, digest_bytes, digest_file, plain, pretty

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@dataclass(frozen=True)
class Inner:
    shape: tuple[int, int]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner


def shuffled_keys(value: Any) -> Any:
    """The same value with the keys of every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled_keys(value[key]) for key in reversed(list(value))}
    return [shuffled_keys(item) for item in value] if isinstance(value, list) else value


@given(value=VALUES)
def test_reading_canonical_json_gives_the_value_back(value: Any) -> None:
    assert json.loads(canonical(value)) == value


@given(value=VALUES)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    assert canonical(shuffled_keys(value)) == canonical(value)


def test_dataclasses_become_objects_and_tuples_become_arrays() -> None:
    assert plain(Outer("o", Inner((8, 4)))) == {"name": "o", "inner": {"shape": [8, 4]}}
    assert (
        canonical({"o": Outer("o", Inner((8, 4)))}) == '{"o":{"inner":{"shape":[8,4]},"name":"o"}}'
    )


def test_pretty_json_is_the_same_text_whatever_the_order_of_keys() -> None:
    assert pretty({"x": 1, "y": (1.5, None, "ü")}) == pretty({"y": [1.5, None, "ü"], "x": 1})
    assert pretty({"b": [1], "a": "ü"}) == '{\n "a": "ü",\n "b": [\n  1\n ]\n}\n'


@given(value=VALUES)
def test_pretty_json_holds_the_same_value(value: Any) -> None:
    assert json.loads(pretty(value)) == json.loads(canonical(value))


def test_a_dataclass_itself_is_no_value() -> None:
    with pytest.raises(TypeError, match="no canonical JSON"):
        canonical(Outer)


def test_text_is_kept_as_it_is_written() -> None:
    assert canonical('Ünïcode, 漢字 "quoted" \n') == '"Ünïcode, 漢字 \\"quoted\\" \\n"'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    for write in (canonical, pretty):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write({"deep": [value]})


@pytest.mark.parametrize(
    "value", [{1, 2}, b"bytes", object(), Path("p"), 1j, np.float32(1), np.int64(1), np.zeros(2)]
)
def test_what_json_cannot_hold_is_refused_by_type(value: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        canonical([value])


def test_a_float_comes_back_to_the_last_bit() -> None:
    for value in (0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -2.5):
        assert json.loads(canonical(value)).hex() == value.hex()


def test_the_digest_is_the_sha256_of_the_canonical_json() -> None:
    assert digest({"b": 1, "a": "ü"}) == hashlib.sha256('{"a":"ü","b":1}'.encode()).hexdigest()


def test_bytes_and_files_have_the_plain_sha256(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert (
        digest_bytes(content)
        == digest_bytes(memoryview(content))
        == digest_file(tmp_path / "f")
        == expected
    )


def test_different_values_have_different_digests() -> None:
    values: list[Any] = [
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        "",
        "0",
        "null",
        [],
        {},
        [[]],
        [{}],
        {"a": []},
        ["a", "b"],
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_two_keys_that_would_become_one_are_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical({1: "a", "1": "b"})


def test_a_seed_is_the_same_in_every_process() -> None:
    code = "from assay.hashing import derive; print(derive('trial', 3, 'fold', 0))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(there.stdout) == derive("trial", 3, "fold", 0)


def test_a_seed_never_changes() -> None:
    assert (
        derive("trial", 0, 1) == int(hashlib.sha256(b"('trial', 0, 1)").hexdigest()[:16], 16) // 2
    )


PARTS = st.none() | st.integers() | st.text()


@given(parts=st.lists(PARTS, max_size=4))
def test_a_seed_fits_every_generator(parts: list[Any]) -> None:
    assert 0 <= derive(*parts) < 2**63


@given(one=st.lists(PARTS, max_size=3), other=st.lists(PARTS, max_size=3))
def test_different_uses_have_different_seeds(one: list[Any], other: list[Any]) -> None:
    assert (derive(*one) == derive(*other)) == (one == other)


def test_no_two_uses_share_a_seed() -> None:
    uses: list[tuple[Any, ...]] = [
        (name, *pair) for name in ("trial", "reproduction") for pair in np.ndindex(5, 5)
    ]
    uses += [
        ("a", "b"),
        ("ab",),
        ("a", "b", ""),
        (1, 2),
        ("1", "2"),
        (12,),
        (None,),
        ("None",),
        ("a', 'b",),
        (),
    ]
    assert len({derive(*use) for use in uses}) == len(uses)
