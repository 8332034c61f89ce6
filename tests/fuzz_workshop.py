"""What the inputs of the fuzzer are made of: valid ones, and ways to damage files of any kind."""

import json
import math
import shutil
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from fuzz import Ended, call
from miniature import CLASSES, MINI, draw_class, make_features

SETTINGS = tuple(word for setting in MINI for word in ("--set", setting))
STRANGE_WORDS = (
    "", " ", "\n", "\t", "\0", "'\"`", "a,b", "a;b", "--help", "-", "%s{0}", "$x_1$", "<b>", "\\",
    "../../x", "/etc/passwd", "\u00e9", "e\u0301", "\u0645\u0631", "\U0001f600", "\u202e",
    "x" * 300, "\ufeff", "\u2028", "None", "nan", "true", "1e400", "0x10", "\u0663", "\u00b2",
    "[bold]", "CON",
)  # fmt: skip
STRANGE_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**30, -(10**400), 0.5, 1e308, math.nan, math.inf, "", "nan", "../../x",
    "x" * 5000, "\ud800", [], {}, [[[]]], {"a": 1}, [None] * 3,
)  # fmt: skip


class Workshop:
    """A folder in which inputs are made, and valid inputs that others are made from.

    Args:
        folder: for everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self) -> Path:
        """Return an empty folder for one input."""
        place = self.folder / "input"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def made(self, *words: object) -> Ended:
        """Run a command that must succeed."""
        ended = call([str(word) for word in words], seconds=120.0)
        assert ended.code == 0, ended
        return ended

    @cached_property
    def vectors(self) -> Path:
        """A valid file of features."""
        return make_features(self.folder / "mini.npz")

    @cached_property
    def photos(self) -> Path:
        """A folder of 17 classes with 2 images each."""
        root, draw = self.folder / "photos", np.random.default_rng(0)
        for number in range(CLASSES):
            (root / f"class{number:02d}").mkdir(parents=True)
            for one in range(2):
                image = Image.fromarray(draw_class(number, draw)[:12, :12])
                image.save(root / f"class{number:02d}" / f"{one}.png")
        return root


# --- Damage ---------------------------------------------------------------------------------------


def damage_bytes(draw: Random, content: bytes) -> tuple[str, bytes]:
    """Return in words what was done to the bytes, and what they are then."""
    at, length = draw.randrange(len(content) + 1), draw.choice((1, 2, 4, 16, 200))
    noise = draw.randbytes(length)
    done = {
        f"cut at byte {at}": content[:at],
        f"{length} bytes replaced at {at}": content[:at] + noise + content[at + length :],
        f"{length} bytes removed at {at}": content[:at] + content[at + length :],
        f"{length} bytes inserted at {at}": content[:at] + noise + content[at:],
        f"{length} bytes zeroed at {at}": content[:at] + bytes(length) + content[at + length :],
        f"{length} bytes repeated at {at}": content[: at + length] + content[at:],
        f"{length} bytes at the end": content + noise,
        "empty": b"",
        "random": noise,
    }
    return draw.choice([*done.items()])


def places_in(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON document but the whole."""
    if not isinstance(document, dict | list):
        return []
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    return [one for key, value in inside for one in ((*path, key), *places_in(value, (*path, key)))]


def damage_json(draw: Random, document: Any) -> tuple[str, Any]:
    """Return in words what was done to a JSON document, and what it is then."""
    document = json.loads(json.dumps(document))
    places = places_in(document)
    if not places or draw.random() < 0.05:
        value = draw.choice(STRANGE_VALUES)
        return f"the whole is {shorten(value)}", value
    path = draw.choice(places)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    key, where = path[-1], "/".join(map(str, path))
    value, way = holder[key], draw.randrange(5)
    if way == 0:
        del holder[key]
        return f"{where} removed", document
    if way == 1 and isinstance(holder, dict):
        holder["x" + key] = holder.pop(key)
        return f"{where} renamed", document
    if way <= 3 and (other := nearby(draw, value)) is not None:
        holder[key] = other
        return f"{where} is {shorten(other)} instead of {shorten(value)}", document
    holder[key] = draw.choice(STRANGE_VALUES)
    return f"{where} is {shorten(holder[key])}", document


def nearby(draw: Random, value: Any) -> Any:
    """Return another value of the same type; None where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice((-1, 1, 10))
    if isinstance(value, float):
        return value + draw.choice((-0.1, 0.1, 1e-9))
    if isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice("0123456789abcdef") + value[at + 1 :]
    if isinstance(value, list) and value:
        return draw.choice((value[:-1], value + value[:1], value[::-1]))
    return None


def shorten(value: Any) -> str:
    """Return the beginning of a value in ASCII."""
    return ascii(value)[:40]


def damage_document(draw: Random, path: Path) -> str:
    """Damage a file of JSON, or of lines of it; return in words what was done."""
    content = path.read_bytes()
    if draw.random() < 0.25:
        said, content = damage_bytes(draw, content)
    elif path.suffix == ".jsonl":
        said, content = _damage_lines(draw, content)
    else:
        said, document = damage_json(draw, json.loads(content))
        content = json.dumps(document, sort_keys=True, indent=1).encode()
    path.write_bytes(content)
    return said


def _damage_lines(draw: Random, content: bytes) -> tuple[str, bytes]:
    lines = content.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    way = draw.choice(("removed", "repeated", "moved", "joined to the next", "altered", "altered"))
    line = lines.pop(at)
    if way == "altered":
        way, document = damage_json(draw, json.loads(line))
        line = json.dumps(document, sort_keys=True).encode() + b"\n"
    put = {"removed": [], "repeated": [line, line], "joined to the next": [line.strip()]}
    if way == "moved":
        lines.insert(draw.randrange(len(lines) + 1), line)
    else:
        lines[at:at] = put.get(way, [line])
    return f"line {at + 1} {way}", b"".join(lines)
