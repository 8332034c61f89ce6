"""Models, stores, settings and imports for the fuzzer, and what must hold where one is accepted."""

import json
import math
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from assay.errors import BadInput
from assay.protocols import customise, protocols, resolve
from assay.records.store import Store
from assay.tables import render, sections, tables_of
from assay.trunks import trunk_facts
from conftest import registries_restored
from fuzz import Case, Ended, Kind, call
from fuzz_data import DataInputs, read_npz
from fuzz_workshop import (
    SETTINGS,
    STRANGE_WORDS,
    damage_bytes,
    damage_document,
    damage_json,
    shorten,
)
from miniature import CLASSES
from options import with_last_settings


class Inputs(DataInputs):
    """All generators: of data, and of models, stores, settings and imports."""

    @property
    def kinds(self) -> dict[str, Kind]:
        """The generators by name."""
        return {
            "features": self.features,
            "folder": self.image_folder,
            "table": self.table,
            "archive": self.archive,
            "model": self.model,
            "store": self.store,
            "set": self.setting,
            "import": self.imported,
        }

    # --- models ---

    @cached_property
    def trained(self) -> tuple[Path, Path]:
        """A model of vectors and one of images."""
        folders = self.folder / "of-vectors", self.folder / "of-images"
        data = f"features:{self.vectors}", f"folder:{self.photos}"
        for folder, name in zip(folders, data, strict=True):
            words = ("train", "--data", name, "--method", "triplet", "--out", folder, *SETTINGS)
            self.made(*words, *(["--set", "trunk=conv"] if name.startswith("folder") else []))
        return folders

    def model(self, draw: Random) -> Case:
        """Return a case of `assay embed MODEL`, or of `assay evaluate MODEL`."""
        source = draw.choice(self.trained)
        of_images = source == self.trained[1]
        data = f"folder:{self.photos}" if of_images else f"features:{self.vectors}"
        folder = shutil.copytree(source, self.place() / "model")
        file = draw.choice(("model.json", "model.safetensors", "model.safetensors"))
        path = folder / file
        if file == "model.json":
            said = damage_document(draw, path)
        elif draw.random() < 0.3:
            said, content = damage_bytes(draw, path.read_bytes())
            path.write_bytes(content)
        else:
            said = self._damage_weights(draw, path)
        out = folder.parent / "z.npz"
        embeds = draw.random() < 0.6
        words = ["embed", str(folder), data, "--out", str(out)]
        if not embeds:
            words = ["evaluate", str(folder), "--data", data, "--json", *SETTINGS]
        rows = 2 * CLASSES if of_images else 80
        wrong = partial(self._not_finite, out, rows) if embeds else self._no_scores
        return Case(f"{words[0]}, {file}: {said}", words, wrong, ["model"])

    def _damage_weights(self, draw: Random, path: Path) -> str:
        """Write other numbers, or another header, into a file of weights."""
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        head, body = json.loads(content[8 : 8 + length]), content[8 + length :]
        if draw.random() < 0.5:
            value = draw.choice((math.nan, math.inf, 1e38, 0.0))
            at = 4 * draw.randrange(len(body) // 4)
            body = body[:at] + struct.pack("<f", value) + body[at + 4 :]
            said = f"a weight is {value}"
        elif draw.random() < 0.5:
            said, inner = damage_json(draw, json.loads(head["__metadata__"]["architecture"]))
            head["__metadata__"]["architecture"] = json.dumps(inner)
        else:
            said, head = damage_json(draw, head)
        written = json.dumps(head).encode()
        path.write_bytes(struct.pack("<Q", len(written)) + written + body)
        return said

    def _not_finite(self, out: Path, rows: int, ended: Ended) -> str:
        z = read_npz(out)["z"]
        return (
            "" if len(z) == rows and np.isfinite(z).all() else f"vectors {z.shape}, not all finite"
        )

    def _no_scores(self, ended: Ended) -> str:
        scores = json.loads(ended.out)["mean"].values()
        right = all(isinstance(one, float) and 0 <= one <= 1 for one in scores)
        return "" if right else f"scores {[*scores]}"

    # --- stores ---

    @cached_property
    def benched(self) -> Path:
        """A store with a finished bench and its report."""
        Store.create(self.folder / "store", "salt")
        words = ("--data", f"features:{self.vectors}", "--methods", "triplet", "--engine", "inline")
        self.made("bench", *words, "--out", self.folder / "store", *SETTINGS)
        return self.folder / "store"

    @cached_property
    def tables(self) -> dict[str, str]:
        """The tables of the undamaged store."""
        found = tables_in(self.benched)
        assert found
        return found

    @cached_property
    def looked(self) -> dict[str, Any]:
        """The scores of the undamaged store's model on the test half."""
        store = shutil.copytree(self.benched, self.place() / "store")
        scores: dict[str, Any] = json.loads(self.made(*self._look_at(store)).out)["mean"]
        return scores

    def _look_at(self, store: Path) -> list[str]:
        (model,) = store.glob("models/*triplet*")
        data = f"features:{self.vectors}"
        return ["evaluate", str(model), "--data", data, "--test", "--json", *SETTINGS]

    def store(self, draw: Random) -> Case:
        """Return a case of a command on a store with one damaged file."""
        scores, tables = self.looked, self.tables
        store = shutil.copytree(self.benched, self.place() / "store")
        files = {
            pattern: sorted(store.glob(pattern))
            for pattern in (
                "studies/*/ledger.jsonl", "studies/*/study.json", "studies/*/classes/*.npz",
                "runs/*/*/result.json", "runs/*/*/config.json", "runs/*/*/history.jsonl",
                "runs/*/*/timing.json", "runs/*/*/test/*.npy", "runs/*/*/model.safetensors",
                "format.json", "benches/*.json", "answers/*.npz", "progress.json",
                "models/*/model.json", "models/*/model.safetensors", "report/tables/*.csv",
                "report/*.json", "report/index.html",
            )
        }  # fmt: skip
        pattern = draw.choice([*files])
        path = draw.choice(files[pattern])
        said = f"{pattern}: {self._damage_file(draw, path, files[pattern])}"
        others = {
            "verify": (["verify", str(store)], partial(self._unseen, store)),
            "status": (["status", str(store), "--json"], lambda ended: ""),
            "report": (["report", str(store)], partial(self._unseen, store)),
            "merge": (
                ["merge", str(store), "--out", str(store.parent / "merged")],
                partial(self._unseen, store.parent / "merged"),
            ),
            "evaluate": (self._look_at(store), partial(self._other_scores, store, scores)),
        }
        name = draw.choice(("verify", "verify", *others))
        words, wrong = others[name]
        assert tables
        return Case(f"{name}: {said}", words, wrong, [str(store), "merged"], finds=name == "verify")

    def _damage_file(self, draw: Random, path: Path, alike: Sequence[Path]) -> str:
        way = draw.random()
        if way < 0.05:
            path.unlink()
            return "removed"
        if way < 0.1:
            path.unlink()
            path.mkdir()
            return "a folder"
        if way < 0.2 and len(alike) > 1:
            other = draw.choice([one for one in alike if one != path])
            path.write_bytes(other.read_bytes())
            return "another of its kind"
        if path.suffix in (".json", ".jsonl"):
            return damage_document(draw, path)
        said, content = damage_bytes(draw, path.read_bytes())
        path.write_bytes(content)
        return said

    def _unseen(self, store: Path, ended: Ended) -> str:
        """Return which table is another one than before, where `verify` finds nothing to say."""
        checked = call(["verify", str(store)])
        if checked.code != 0 or "INCOMPLETE" in checked.out:
            return ""
        try:
            found = tables_in(store)
        except BadInput as error:
            return f"verify finds nothing, and the tables cannot be made: {error}"
        other = [name for name in found | self.tables if found.get(name) != self.tables.get(name)]
        return f"verify finds nothing, and {other[0]} is another table" if other else ""

    def _other_scores(self, store: Path, scores: Mapping[str, Any], ended: Ended) -> str:
        """Return how scores differ from those of the undamaged store, where `verify` is silent."""
        found = json.loads(ended.out)["mean"]
        silent = call(["verify", str(store)]).code == 0
        return f"scores {found}, were {scores}" if found != scores and silent else ""

    # --- settings ---

    @cached_property
    def warm(self) -> Ended:
        """A valid training, after which everything that one needs is loaded."""
        words = ("--method", "triplet", "--out", self.folder / "warm", *SETTINGS)
        return self.made("train", "--data", f"features:{self.vectors}", *words)

    def setting(self, draw: Random) -> Case:
        """Return a case of `--set field=value`."""
        assert self.warm
        field, kind = draw.choice(FIELDS)
        value = draw.choice(VALUES[kind] if draw.random() < 0.8 else STRANGE_WORDS)
        field = draw.choice((field,) * 40 + (field + ".", field.upper(), "x", "", field + "\u00a0"))
        setting = f"{field}={value}" if draw.random() < 0.95 else field + value
        words = ["bench", "--dry-run", "--data", f"features:{self.vectors}", "--methods", "triplet"]
        if not (set(value) & set("123456789") and len(value) > 2):  # a short training at most
            words = ["train", "--data", f"features:{self.vectors}", "--method", "triplet"]
            words += ["--out", str(self.place() / "model")]
        words = with_last_settings([*words, *SETTINGS, "--set", setting])
        wrong = partial(self._not_as_asked, kind, setting)
        return Case(shorten(setting), words, wrong, [field.strip(), "batch."])

    def _not_as_asked(self, kind: str, setting: str, ended: Ended) -> str:
        """Return which value the protocol has instead of the one that was asked for."""
        path, _, text = (word.strip() for word in setting.partition("="))
        changed = customise(protocols["quick"], [setting])
        found: Any = changed
        for name in path.split("."):
            found = getattr(found, name)
        if path == "batch" or (found is None and text == "auto"):
            return ""
        asked = ASKED[kind](text)
        fits = found == asked and (not isinstance(asked, float) or math.isfinite(asked))
        resolved: Any = resolve(changed, "features", trunk_facts)
        for name in path.split("."):
            resolved = getattr(resolved, name)
        of_images = path.startswith("augment") or path in OF_IMAGES
        kept = resolved == found or text == "auto" or of_images
        return (
            "" if fits and kept else f"{path} is {found!r}, resolved {resolved!r}, asked {text!r}"
        )

    # --- imports ---

    def imported(self, draw: Random) -> Case:
        """Return a case of `--import FILE`."""
        assert self.warm
        place = self.place()
        number = draw.randrange(10**9)
        said = draw.choice([*SOURCES])
        source = SOURCES[said].replace("NUMBER", str(number))
        done = place / "done"
        body = source if isinstance(source, bytes) else source.encode()
        if draw.random() < 0.15:
            said, body = damage_bytes(draw, body)
        body += f"\nopen({str(done)!r}, 'w').close()\n".encode()
        path = place / draw.choice(
            (f"mine{number}.py", f"my loss {number}.py", f"\u00e9{number}.py")
        )
        path.write_bytes(body)
        given = str(path)
        if draw.random() < 0.15:
            given = draw.choice(("os", "no.such.module", "", ".", "..", "a b", str(place), "x.py",
                                 "assay", f"{place}/.py", "\u00e9", "sys;import os"))  # fmt: skip
            said, done = f"the module {shorten(given)}", self.folder
        words = ["list", "methods", "--import", given]
        if draw.random() < 0.6:
            words = ["train", "--data", f"features:{self.vectors}", "--method", f"mine{number}"]
            words += ["--out", str(place / "model"), "--import", given, *SETTINGS]
        wrong = partial(self._not_run, done)
        names, within = [given, "mine"], partial(registries_restored, place)
        return Case(f"{words[0]}: {said}", words, wrong, names, within=within)

    def _not_run(self, done: Path, ended: Ended) -> str:
        return "" if done.exists() else "it was accepted, and not run to its end"


def tables_in(store: Path) -> dict[str, str]:
    """Return the tables that the records of a store give."""
    return {
        f"{section.slug}-{table.name}": render(table, "csv")
        for section in sections(Store(store))
        for table in tables_of(section)
    }


FIELDS = [
    (name, kind)
    for kind, names in {
        "int": "size stored dim folds iterations shortest_epoch epochs validate_every patience"
        " searches trials trial_folds startup reproductions threads seed",
        "float": "prune smallest_difference optimiser.lr optimiser.momentum optimiser.weight_decay"
        " augment.flip augment.rotation augment.shear",
        "bool": "layer_norm autocast compile shrink_batch optimiser.decay_own",
        "pair": "batch.embedding batch.classification",
        "range": "augment.area augment.aspect",
        "words": "metrics training_metrics",
        "word": "trunk weights frozen pooling resize form similarity sampler search"
        " optimiser.kind optimiser.schedule batch name space exceptions given about departures",
    }.items()
    for name in names.split()
]
VALUES: dict[str, Sequence[str]] = {
    kind: words.split(" | ")
    for kind, words in {
        "int": f"0 | 1 | 2 | -1 | 16 | 1000000 | {10**18} | {'9' * 5000} | 1_0 | 1.0 | 1e3",
        "float": "0 | 1 | 0.5 | -0.1 | nan | inf | -inf | 1e-3 | 1e400 | 1e-400 | 1e30 | 0,5",
        "bool": "true | false | True | 1 | yes | 0",
        "pair": "4x4 | 4,4 | 4 x 4 | 0x4 | -1x4 | 4 | 4x4x4 | 1000000x1000000 | x | 2x1 | 1x8",
        "range": "0.5,1 | 0.5x1 | 1,0.5 | 0,1 | nan,1 | 0.5 | 0.5,inf | 1,1 | ,",
        "words": "map_at_r | map_at_r,recall_at_k | , |  | map_at_r,map_at_r | x | all | MAP_AT_R",
        "word": "auto | none | nothing | conv | gem | avg | jpeg | cosine | euclidean | random"
        " | adam | balanced | 32 | \u00b2 | 8x4 | lite0 | identity | short | resnet18",
    }.items()
}
OF_IMAGES = ("form", "frozen", "trunk", "weights", "size", "stored", "resize", "pooling")
"""Fields that have another value, or none, where the samples are vectors."""

ASKED: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
    "pair": lambda text: tuple(int(part) for part in text.replace("x", ",").split(",")),
    "range": lambda text: tuple(float(part) for part in text.replace("x", ",").split(",")),
    "words": lambda text: tuple(part.strip() for part in text.split(",")),
    "word": str,
}

LOSS = """
from assay.methods import Loss, Method, Space, Real, losses, methods
@losses("mineNUMBER")
class Mine(Loss):
    compares = "pairs"
    def __init__(self, *, margin: float = 0.1):
        super().__init__()
    def forward(self, z, y, pairs, references):
        return BODY
methods.add(Method("mineNUMBER", Mine, space=Space(margin=Real(0, 1))))
"""
SOURCES: dict[str, str] = {
    "a loss that works": LOSS.replace("BODY", "(z @ references.z.T).square().mean()"),
    "a loss of NaN": LOSS.replace("BODY", "z.sum() * float('nan')"),
    "a loss that raises": LOSS.replace("BODY", "1 / 0"),
    "a loss of the wrong shape": LOSS.replace("BODY", "z"),
    "a loss that is a number": LOSS.replace("BODY", "0.5"),
    "a loss that is None": LOSS.replace("BODY", "None"),
    "a loss without a gradient": LOSS.replace("BODY", "z.detach().sum()"),
    "a loss that leaves": LOSS.replace("BODY", "exit(0)"),
    "a loss that recurses": LOSS.replace("BODY", "self.forward(z, y, pairs, references)"),
    "a loss that says a lot": LOSS.replace("BODY", "print('x' * 9999) or z.sum()"),
    "a loss that is registered twice": LOSS + LOSS,
    "a name that is there": LOSS.replace("mineNUMBER", "triplet"),
    "a strange name": LOSS.replace("mineNUMBER", "\\n$x_1$ \u00e9 [b]"),
    "a division by zero": "1 / 0",
    "sys.exit": "import sys; sys.exit()",
    "sys.exit(0)": "import sys; sys.exit(0)",
    "sys.exit with words": "import sys; sys.exit('words')",
    "exit code 130": "raise SystemExit(130)",
    "an exception of no kind": "class E(BaseException): pass\nraise E('x')",
    "an error of many lines": "raise ValueError('a\\nb\\nc')",
    "an error without text": "class E(Exception):\n def __str__(self): raise self\nraise E",
    "a syntax error": "def f(:",
    "an indentation error": "  x = 1\n y = 2",
    "a null byte": "x = '\0'",
    "recursion": "def f(): return f()\nf()",
    "deep nesting": "x = " + "(" * 400 + ")" * 400,
    "deeper nesting": "x = " + "-" * 100_000 + "1",
    "another encoding": "# coding: utf-16\nx = 1",
    "no such encoding": "# coding: klingon\nx = 1",
    "a surrogate": "x = '\\ud800'; raise ValueError(x)",
    "nothing": "",
    "a module that is missing": "import no_such_module",
    "a name that is not exported": "from assay.methods import no_such_name",
    "a warning": "import warnings; warnings.warn('mine')",
    "its own arguments": "import sys; sys.argv = ['x', 'y']",
    "no memory": "x = bytearray(1 << 45)",
    "a group of errors": "raise ExceptionGroup('many', [ValueError(1), OSError(2)])",
    "an error of the system": "open('/no/such/file')",
    "a StopIteration": "next(iter(()))",
}
