"""Data for the fuzzer: features, folders, tables and archives, and a second reading of each.

An input that is accepted is read in another way: features and CSV files by readers of their own,
folders by listing them, cells of Parquet files by the values that were written, archives against
the undamaged one.
"""

import csv
import io
import json
import math
import os
import shutil
import struct
import tarfile
import unicodedata
import warnings
import zipfile
from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from assay.data import load
from assay.data.images import endings
from fuzz import Case, Ended
from fuzz_workshop import STRANGE_WORDS, Workshop, damage_bytes, shorten
from official import make_sop


class DataInputs(Workshop):
    """Generators of data."""

    # --- features ---

    def features(self, draw: Random) -> Case:
        """Return a case of `features:F.npz`."""
        path = self.place() / draw.choice(("f.npz", "f.npz", "f.npz", "\u00e9 f.npz", "f.npy"))
        with np.load(self.vectors) as arrays:
            z, y = arrays["z"], arrays["y"]
        way = draw.choice(
            (self._plain_arrays, self._strange_arrays, self._damaged_file, self._heads)
        )
        said = way(draw, path, z, y)
        reads = {
            "show": ["data", "show", f"features:{path}", "--json"],
            "splits": ["data", "splits", f"features:{path}"],
            "evaluate": ["evaluate", str(path), "--json", "--metrics", "precision_at_1"],
        }
        name = draw.choice([*reads])
        wrong = self._unlike_evaluated if name == "evaluate" else self._unlike_loaded
        valid = way == self._plain_arrays and path.suffix == ".npz"
        return Case(f"{name}: {said}", reads[name], partial(wrong, path), [path.name], valid=valid)

    def _plain_arrays(self, draw: Random, path: Path, z: Any, y: Any) -> str:
        kind = draw.choice(("<f4", ">f8", "<f2", "i2", "u1"))
        order = draw.choice("CF")
        rows = np.array(draw.sample(range(len(z)), len(z)))
        names = draw.choice(
            (y, y.astype(str), np.char.add("\u00e9", y.astype(str)), y.astype("u1"))
        )
        z = np.asarray(30 + 10 * z).clip(0, 250)[rows].astype(kind, order=order)
        with path.open("wb") as stream:
            draw.choice((np.savez, np.savez_compressed))(stream, z=z, y=names[rows])
        return f"{kind} in order {order}, labels {names.dtype}"

    def _strange_arrays(self, draw: Random, path: Path, z: Any, y: Any) -> str:
        bad = z.copy()
        bad[draw.randrange(len(z)), draw.randrange(z.shape[1])] = draw.choice(
            (math.nan, math.inf, -math.inf, 1e30, 1e300)
        )
        flags = y > 9
        changes: dict[str, dict[str, Any]] = {
            "a value that is none": {"z": bad},
            "z of another type": {
                "z": z.astype(draw.choice(("c16", "O", "U8", "?", "M8[s]", "V4", "f2", "i8")))
            },
            "z of another shape": {
                "z": draw.choice((z[:0], z[:, :0], z[0], z[..., None], z[:-1], z.T, np.float64(3)))
            },
            "y of another type": {
                "y": y.astype(draw.choice(("f8", "?", "O", "M8[s]", "c8", "S3", "V2", "u8", "i1")))
            },
            "y of another shape": {"y": draw.choice((y[:0], y[:, None], y[:-1], y[0], [*y, 1]))},
            "strange labels": {"y": np.array([draw.choice(STRANGE_WORDS) + str(n) for n in y])},
            "a label that is strange": {"y": np.where(y == 3, draw.choice(STRANGE_WORDS), y)},
            "labels in two forms of Unicode": {
                "y": np.where(np.arange(len(y)) % 2, "\u00e9", "e\u0301")
            },
            "bytes that are no text": {"y": np.array([b"\xff\xfe%d" % n for n in y])},
            "huge labels": {"y": y.astype("u8") + 2**63},
            "negative labels": {"y": -y},
            "one class": {"y": y * 0},
            "a class for each row": {"y": np.arange(len(y))},
            "classes": {"classes": np.array(draw.choices(["a", "b", "", "\u00e9"], k=16))},
            "classes that are numbers": {"classes": np.arange(16)},
            "ids": {"ids": np.array(draw.choice((["a"] * len(y), y, [*map(str, range(80))])))},
            "trainval": {"trainval": np.array(draw.choice((0, -1, 8, 16, 99, 8.5, "8", [8, 8])))},
            "marks": {"query": draw.choice((flags, y, flags[:-1])), "gallery": ~flags},
            "nothing to look up": {"query": flags & False, "gallery": flags},
            "the data of the pretraining": {
                "pretrained_on": np.array(draw.choice((*STRANGE_WORDS, 3, None, ["a", "b"])))
            },
            "no z": {"z": None},
            "no y": {"y": None},
        }
        said = draw.choice([*changes])
        arrays = {"z": z, "y": y, **changes[said]}
        with path.open("wb") as stream:
            np.savez(stream, **{name: one for name, one in arrays.items() if one is not None})
        changed = [np.asarray(one) for one in changes[said].values()]
        return f"{said}: {changed[0].dtype} {changed[0].shape}"

    def _damaged_file(self, draw: Random, path: Path, z: Any, y: Any) -> str:
        said, content = damage_bytes(draw, self.vectors.read_bytes())
        path.write_bytes(content)
        return said

    def _heads(self, draw: Random, path: Path, z: Any, y: Any) -> str:
        """Write arrays whose headers lie, in an archive whose checksums are right."""
        head = draw.choice((
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 12), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 12), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (80, 10000000000000), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 12), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (12, 80), }",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (80, 12), }",
            "{'descr': '<f8', 'fortran_order': 1, 'shape': (80, 12), }",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (80, 12), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (80, 12), }",
            "{'descr': '<U999999999', 'fortran_order': False, 'shape': (80, 12), }",
            "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (80, 12), }",
            "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (80, 12), }",
            "{'descr': '<f8', 'shape': (80, 12), }",
            "{'descr': __import__('os').getpid(), 'fortran_order': False, 'shape': (80, 12), }",
            "(" * 9000,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (80, 12)" + " " * 20000 + "}",
        ))  # fmt: skip
        which, stream = draw.choice("zy"), io.BytesIO()
        np.save(stream, y)
        body = {"z": z.tobytes(), "y": y.tobytes()}[which]
        if which == "y":
            head = head.replace("(80, 12)", "(80,)").replace("<f8", "<i8")
        lying = (
            b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head) + 1) + head.encode() + b"\n" + body
        )
        other = io.BytesIO()
        np.save(other, y if which == "z" else z)
        with zipfile.ZipFile(path, "w", draw.choice((0, 8))) as archive:
            archive.writestr(f"{which}.npy", lying)
            archive.writestr(f"{'y' if which == 'z' else 'z'}.npy", other.getvalue())
        return f"{which} with the header {head[:90]}"

    def _unlike_loaded(self, path: Path, ended: Ended) -> str:
        """Return how the features are unlike those that a reader of our own finds."""
        found, arrays = load(f"features:{path}"), read_npz(path)
        z, y = np.asarray(arrays["z"], np.float32), arrays["y"]
        if not np.isfinite(z).all() or not np.array_equal(found.items.z, z):
            return "z is not what the file holds"
        names = [found.class_names[label] for label in found.labels]
        words = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        if "classes" in arrays:
            words = arrays["classes"][words]
        return "" if names == [str(word) for word in words.tolist()] else "y is not what it holds"

    def _unlike_evaluated(self, path: Path, ended: Ended) -> str:
        """Return how Precision@1 is unlike that of the vectors that a reader of our own finds."""
        arrays = read_npz(path) if path.suffix == ".npz" else {}
        if not arrays:
            return "an .npy holds no labels"
        z, y = np.asarray(arrays["z"], np.float64), arrays["y"]
        if not np.isfinite(z).all():
            return "z is not finite"
        z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-30)
        s = z @ z.T
        np.fill_diagonal(s, -math.inf)
        many = (y[:, None] == y[None]).sum(1) > 1
        ordered = np.sort(s, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > 1e-6
        hits = (y[s.argmax(1)] == y)[many]
        score = json.loads(ended.out)["mean"]["precision_at_1"]
        doubt = (~clear[many]).mean() if many.any() else 1.0
        off = abs(score - hits.mean()) if many.any() else 0.0
        return "" if off <= doubt + 1e-9 else f"Precision@1 {score}, should be {hits.mean()}"

    # --- folder ---

    def image_folder(self, draw: Random) -> Case:
        """Return a case of `folder:PATH`."""
        root = shutil.copytree(self.photos, self.place() / "birds")
        ways = (
            self._broken_image, self._odd_name, self._other_format, self._link, self._more_files,
            lambda draw, root: "as it should be",
        )  # fmt: skip
        way = draw.choice(ways)
        said = way(draw, root)
        shows = draw.random() < 0.5
        words = ["data", "show" if shows else "splits", f"folder:{root}"]
        wrong = partial(self._unlike_counted if shows else self._unlike_folder, root)
        words += ["--json"] * shows
        return Case(f"{words[1]}: {said}", words, wrong, ["birds"], valid=way == ways[-1])

    def _some_image(self, draw: Random, root: Path) -> Path:
        return draw.choice(sorted(root.glob("class*/*.png")))

    def _broken_image(self, draw: Random, root: Path) -> str:
        path = self._some_image(draw, root)
        said, content = damage_bytes(draw, path.read_bytes())
        if draw.random() < 0.3:
            side = draw.choice((0, 1, 60_000, 2**31 - 1, 2**32 - 1))
            said, content = f"a header of side {side}", path.read_bytes()
            head = b"IHDR" + struct.pack(">II", side, side) + content[24:29]
            check = struct.pack(">I", zipfile.crc32(head))  # type: ignore[attr-defined]
            content = content[:12] + head + check + content[33:]
        path.write_bytes(content)
        return f"{path.name}: {said}"

    def _odd_name(self, draw: Random, root: Path) -> str:
        path = self._some_image(draw, root)
        path = draw.choice((path, path.parent))
        odd = draw.choice(STRANGE_WORDS).replace("/", "").replace("\0", "")[:240].encode()
        odd = draw.choice((odd, odd, b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b".hidden", b" "))
        new = path.parent / os.fsdecode(odd + os.fsencode(path.suffix))
        if new.name not in ("", ".", "..") and not new.exists():
            path.rename(new)
        return f"{path.name} is called {odd!r}"

    def _other_format(self, draw: Random, root: Path) -> str:
        path, mode = (
            self._some_image(draw, root),
            draw.choice(("RGB", "L", "1", "P", "CMYK", "I;16")),
        )
        ending = draw.choice((".jpg", ".JPG", ".gif", ".bmp", ".webp", ".tiff", ".png", ".ico"))
        named = draw.choice((ending, ".png", ".jpg", ".txt", ""))
        size = draw.choice(((12, 12), (1, 1), (1, 3000), (5, 7)))
        image = Image.new("RGB", size, (200, 30, 90)).convert("L" if mode == "I;16" else mode)
        try:
            image.save(path.with_suffix(""), Image.registered_extensions()[ending.lower()])
        except (OSError, ValueError):
            return "as it should be"
        path.unlink()
        path.with_suffix("").rename(path.with_name(f"new{named}"))
        return f"a {mode} image of {size} in format {ending} called new{named}"

    def _link(self, draw: Random, root: Path) -> str:
        path = self._some_image(draw, root)
        target = draw.choice(
            (path.parent.parent / "class03" / "0.png", "/dev/zero", "/dev/null", "nowhere", "..",
             path.name, root.parent / "outside.png", "/etc/passwd", root, "/proc/self/mem")
        )  # fmt: skip
        shutil.copy(path, root.parent / "outside.png")
        name = draw.choice((path, path.parent / "more.png", root / "class99", root / "file.png"))
        name.unlink(missing_ok=True)
        if draw.random() < 0.2:
            os.mkfifo(name)
            return f"{name.name} is a pipe"
        name.symlink_to(target)
        return f"{name.name} is a link to {target}"

    def _more_files(self, draw: Random, root: Path) -> str:
        place = draw.choice((root, root / "class01", root / "class01" / "deep", root / "new"))
        for _ in range(draw.choice((0, 1, 60))):
            place = place / draw.choice(("a", "b"))
        place.mkdir(parents=True, exist_ok=True)
        name = draw.choice(("x.png", "x.txt", "Thumbs.db", ".DS_Store", "x.PNG", "x.heic", "x"))
        (place / name).write_bytes(
            draw.choice((b"", b"text", self._some_image(draw, root).read_bytes()))
        )
        return f"{(place / name).relative_to(root)} beside the images"[:80]

    def _images_in(self, root: Path) -> dict[tuple[str, str], Path]:
        """Return name and class of every file that should be an image of the folder."""
        found = {}
        for folder in root.iterdir():
            if folder.is_dir() and not folder.name.startswith("."):
                for file in folder.iterdir():
                    right = file.suffix.lower() in endings() and not file.name.startswith(".")
                    if right and not file.is_dir():
                        name = composed(f"{folder.name}/{file.name}")
                        found[name, composed(folder.name)] = file
        return found

    def _unlike_folder(self, root: Path, ended: Ended) -> str:
        """Return how the samples are unlike the files that lie there."""
        expected = self._images_in(root)
        for path in expected.values():
            if not path.resolve().is_relative_to(root):
                return f"{path} leads out of the folder"
            if not decodes(path):
                return f"{path} is accepted, and does not decode"
        return unlike(listed(ended.out), set(expected))

    def _unlike_counted(self, root: Path, ended: Ended) -> str:
        """Return how what is shown of a folder is unlike its files."""
        found, files = json.loads(ended.out), self._images_in(root)
        broken = sum(not decodes(path) for path in files.values())
        said = len(found["problems"]["unreadable"])
        if found["samples"] != len(files):
            return f"{found['samples']} samples, there are {len(files)}"
        return "" if said >= broken else f"{said} files that cannot be read, there are {broken}"

    # --- table ---

    def table(self, draw: Random) -> Case:
        """Return a case of `table:F`, in the folder of the photographs."""
        rows = [
            [str(path.relative_to(self.photos)), path.parent.name]
            for path in sorted(self.photos.glob("class*/*.png"))
        ]
        for old in self.photos.glob("list*"):
            old.unlink()
        way = draw.random()
        if way < 0.3:
            return self._parquet(draw, rows)
        if way < 0.5:
            return self._lists(draw, rows)
        path = self.photos / "list.csv"
        said, content, valid = self._csv(draw, [["path", "label"], *rows])
        path.write_bytes(content)
        words = ["data", "splits", f"table:{path}"]
        return Case(said, words, partial(self._unlike_csv, content), [path.name], valid=valid)

    def _lists(self, draw: Random, rows: list[list[str]]) -> Case:
        """Return a case of a table with the columns positive and negative."""
        kind = draw.choice(("triplets", "pairs"))
        cells = [["", ""] for _ in rows]
        others = {label: [one for one, own in rows if own == label] for _, label in rows}
        for number, (own, label) in enumerate(rows):
            near = [one for one in others[label] if one != own]
            far = draw.choice([one for one, other in rows if other != label])
            if near and draw.random() < 0.7:
                cells[number] = [draw.choice(near), far]
                if kind == "pairs":
                    cells[number][draw.randrange(2)] = ""
        row, column = draw.randrange(len(rows)), draw.randrange(2)
        own, (some, other) = rows[row][0], (draw.choice(rows)[0] for _ in range(2))
        value = draw.choice((
            *STRANGE_WORDS, own, some, f"./{some}", f"../{some}", f"{some};{other}", f"{some};",
            f"; {some} ;{other}", f"{some},{other}", ";", " ", str(self.photos / some), "x" * 9999,
        ))  # fmt: skip
        said = f"{kind} that are right"
        if draw.random() < 0.8:
            cells[row][column] = value
            said = (
                f"{kind}, row {row + 2} has {shorten(value)} as {('positive', 'negative')[column]}"
            )
        path = self.photos / "list.csv"
        header = ["path", "label", "positive", "negative"]
        table = [header, *([*one, *two] for one, two in zip(rows, cells, strict=True))]
        path.write_bytes(_as_csv(table).encode(errors="replace"))
        words = ["data", "show", f"table:{path}", "--json"]
        wrong = partial(self._unlike_lists, path.read_bytes())
        return Case(said, words, wrong, [path.name], valid=said.endswith("right"))

    def _unlike_lists(self, content: bytes, ended: Ended) -> str:
        """Return how the number of listed pairs or triplets is unlike the one in the CSV."""
        _, *rows = [line for line in read_csv(content.decode()) if line != [""]]
        named = [
            [len([one for one in cell.split(";") if one.strip()]) for cell in row[2:]]
            for row in rows
        ]
        triplets = any(all(counts) for counts in named)
        expected = sum(counts[0] if triplets else sum(counts) for counts in named)
        found = json.loads(ended.out)["listed"]
        given = (found["kind"], found["count"]) if found else ("pairs", 0)
        wanted = ("triplets" if triplets else "pairs", expected)
        return "" if given == wanted else f"{given} are listed, there are {wanted}"

    def _csv(self, draw: Random, rows: list[list[str]]) -> tuple[str, bytes, bool]:
        """Return what was done to a CSV, its bytes, and whether it is valid still."""
        cells = draw.choice(("damaged", "encoded", "written", "altered", "altered"))
        end = draw.choice(("\n", "\r\n", "\r"))
        if cells == "damaged":
            said, content = damage_bytes(draw, _as_csv(rows).encode())
            return said, content, False
        if cells == "encoded":
            rows[1][1] = rows[2][1] = draw.choice(("\u00e9t\u00e9", "plain"))
            code = draw.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "cp500", "utf-8"))
            content = _as_csv(rows, end).encode(code)
            return f"in {code}, lines end with {end!r}", content, code.startswith("utf-8")
        if cells == "written":
            comma = draw.choice((",", ";", "\t", "|"))
            return f"cells between {comma!r}", _as_csv(rows, end, comma).encode(), comma == ","
        row, column = draw.randrange(len(rows)), draw.randrange(2)
        value = draw.choice((
            *STRANGE_WORDS, "x" * 200_000, '"', '"open', "a\nb", "\x1a", "/dev/zero", "~/x", "1.0",
            "2020-01-01", "class01/../class01/0.png", "./class01/0.png", "class01//0.png", "\x7f",
        ))  # fmt: skip
        ways: dict[str, Callable[[], object]] = {
            f"row {row + 1} has {shorten(value)}": lambda: rows[row].__setitem__(column, value),
            f"row {row + 1} is twice there": lambda: rows.insert(row, list(rows[row])),
            f"row {row + 1} has a cell too many": lambda: rows[row].append("x"),
            f"row {row + 1} has a cell too few": lambda: rows[row].pop(),
            f"a column {shorten(value)}": lambda: [
                one.append(value if number == 0 else "1") for number, one in enumerate(rows)
            ],
            "a column split": lambda: [
                one.append(
                    draw.choice(("split",) if number == 0 else ("train", "test", "val", value))
                )
                for number, one in enumerate(rows)
            ],
            "all labels are numbers": lambda: [
                one.__setitem__(1, draw.choice(("1", "1.0", "01", "2", "\u0663", "1e1", "-1")))
                for one in rows[1:]
            ],
            "no rows": lambda: rows.__delitem__(slice(1, None)),
        }
        said = draw.choice([*ways])
        ways[said]()
        return said, _as_csv(rows, end, quote=draw.random() < 0.7).encode(errors="replace"), False

    def _unlike_csv(self, content: bytes, ended: Ended) -> str:
        """Return how the samples are unlike those that a reader of our own finds in the CSV."""
        lines = [line for line in read_csv(content.decode("utf-8-sig")) if line != [""]]
        header, *rows = lines
        path, label = header.index("path"), header.index("label")
        return unlike(
            listed(ended.out), {(self._id(row[path]), composed(row[label])) for row in rows}
        )

    def _id(self, cell: str) -> str:
        """Return the name of a sample whose path a table gives."""
        path = Path(cell).expanduser() if cell.startswith("~/") else self.photos / cell
        inside = path.is_relative_to(self.photos)
        return composed((path.relative_to(self.photos) if inside else path).as_posix())

    def _parquet(self, draw: Random, rows: list[list[str]]) -> Case:
        """Return a case of a table in a Parquet file."""
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        numbers = [int(label[-2:]) for _, label in rows]
        broken = arrow.array([b"\xff%d" % n for n in numbers])
        labels = {
            "text": arrow.array([label for _, label in rows]),
            "a dictionary": arrow.array([label for _, label in rows]).dictionary_encode(),
            "int8": arrow.array(numbers, arrow.int8()),
            "uint64": arrow.array([n + 2**63 for n in numbers], arrow.uint64()),
            "floats": arrow.array([n / draw.choice((1, 2, 3)) for n in numbers]),
            "floats, none finite": arrow.array(draw.choices((math.nan, math.inf), k=len(rows))),
            "dates": arrow.array(numbers, arrow.int32()).cast(arrow.date32()),
            "times": arrow.array(numbers, arrow.timestamp("s", "Europe/Oslo")),
            "times in no zone": arrow.array(numbers, arrow.timestamp("ns", "Mars/Phobos")),
            "late times": arrow.array([n + 2**62 for n in numbers], arrow.timestamp("us")),
            "durations": arrow.array(numbers, arrow.duration("ns")),
            "bytes": broken,
            "no text": arrow.Array.from_buffers(arrow.string(), len(rows), broken.buffers()),
            "lists": arrow.array([[n] for n in numbers]),
            "structs": arrow.array([{"n": n} for n in numbers]),
            "decimals": arrow.array(numbers, arrow.int32()).cast(arrow.decimal128(12, 2)),
            "truths": arrow.array([n > 8 for n in numbers]),
            "nothing": arrow.nulls(len(rows)),
        }  # fmt: skip
        kind, column = draw.choice([*labels]), draw.choice(("label", "label", "more"))
        columns = {
            "path": [path for path, _ in rows],
            "label": labels["text"],
            column: labels[kind],
        }
        path = self.photos / "list.parquet"
        parquet.write_table(arrow.table(columns), path)
        said = f"Parquet, {column} of {kind}"
        if draw.random() < 0.3:
            damage, content = damage_bytes(draw, path.read_bytes())
            path.write_bytes(content)
            said = f"Parquet, {damage}"
        given = labels[kind if column == "label" else "text"]
        valid = said == "Parquet, label of text"
        wrong = partial(self._unlike_parquet, rows, given)
        words = ["data", "splits", f"table:{path}"]
        return Case(said, words, wrong, [path.name], valid=valid)

    def _unlike_parquet(self, rows: list[list[str]], labels: Any, ended: Ended) -> str:
        """Return how the samples are unlike the cells that were written.

        Cells of types that a CSV does not have may be written in any way that keeps them apart.
        """
        found = dict(listed(ended.out))
        try:
            values = [as_cell(value) for value in labels.to_pylist()]
        except (ValueError, OverflowError):  # a time that Python does not have, broken text
            values = [None]
        names = [found.get(composed(path)) for path, _ in rows]
        if len(found) != len(rows) or None in names:
            return "other samples than the file names"
        if None not in values:
            wrong = [pair for pair in zip(names, values, strict=True) if pair[0] != pair[1]]
            return f"a label is {wrong[0][0]!r} and should be {wrong[0][1]!r}" if wrong else ""
        classes = [label for _, label in rows]
        together = len({*zip(names, classes, strict=True)})
        apart = together == len({*names}) == len({*classes})
        return "" if apart else "labels fall together, or apart"

    # --- archives ---

    @cached_property
    def members(self) -> dict[str, bytes]:
        """The files of a miniature of Stanford Online Products."""
        root = self.folder / "sop"
        root.mkdir()
        make_sop(root)
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    @cached_property
    def products(self) -> set[tuple[str, str]]:
        """Sample and class of each image of the undamaged archive."""
        path = self.folder / "whole" / "Stanford_Online_Products.zip"
        path.parent.mkdir()
        write_zip(path, self.members.items())
        return listed(self.made("data", "splits", f"sop:{path}").out)

    def archive(self, draw: Random) -> Case:
        """Return a case of `sop:ARCHIVE`."""
        expected, members = self.products, list(self.members.items())
        shutil.rmtree(self.folder / "cache" / "unpacked", ignore_errors=True)
        write, ending = draw.choice(((write_zip, ".zip"), (write_tar, ".tgz"), (write_tar, ".tar")))
        path = self.place() / "deep" / f"Stanford_Online_Products{ending}"
        path.parent.mkdir()
        at = draw.randrange(len(members))
        name = draw.choice((
            "../../escaped.txt", f"{self.folder}/escaped.txt", "a/../../../escaped.txt", "C:\\x",
            "Stanford_Online_Products/../../escaped.txt", "..", ".", "", "a\0b", "a\nb", "x" * 300,
            "a/" * 200 + "b", members[at][0], members[at][0].upper(), members[at][0] + "/inside",
            "Stanford_Online_Products", "\u202ename", "...", "~/escaped.txt", "-rf", ".draft-x/y",
        ))  # fmt: skip
        linked = draw.choice(("/etc/passwd", "../../../escaped.txt", members[0][0], "."))
        ways: dict[str, Callable[[], None]] = {
            "as it should be": lambda: None,
            f"a member {shorten(name)}": lambda: members.insert(at, (name, b"text")),
            f"a member less, {members[at][0]}": lambda: members.__delitem__(at),
            f"{members[at][0]} is empty": lambda: members.__setitem__(at, (members[at][0], b"")),
            "members in another order": lambda: draw.shuffle(members),
            "a list that is damaged": lambda: self._damage_list(draw, members),
        }
        said = draw.choice(
            [*ways, "a bomb", "a link", "damaged bytes", "damaged bytes", "another end"]
        )
        if said in ways:
            ways[said]()
        if said == "a bomb":
            members.insert(at, ("Stanford_Online_Products/zeros", bytes(20_000_000)))
        write(path, members, link=(name, linked) if said == "a link" else None)
        if said == "damaged bytes":
            said, content = damage_bytes(draw, path.read_bytes())
            path.write_bytes(content)
        elif said == "another end":
            path = path.rename(path.with_suffix(draw.choice((".zip", ".tgz", ".tar", ".7z"))))
        shown = f"{ending}: {said}" + (f" {shorten(name)} to {linked}" if said == "a link" else "")
        words = ["data", "splits", f"sop:{path}"]
        wrong = partial(self._unlike_products, expected, path)
        valid = said in ("as it should be", "members in another order")
        return Case(shown, words, wrong, [path.stem], valid=valid)

    def _damage_list(self, draw: Random, members: list[tuple[str, bytes]]) -> None:
        at = next(at for at, (name, _) in enumerate(members) if name.endswith("Ebay_test.txt"))
        members[at] = members[at][0], damage_bytes(draw, members[at][1])[1]

    def _unlike_products(self, expected: set[tuple[str, str]], path: Path, ended: Ended) -> str:
        """Return which file lies outside of the cache, or how the samples differ."""
        cache = self.folder / "cache" / "unpacked"
        named = self.folder.rglob("*escaped*")
        outside = [one for one in named if cache not in [*one.parents][1:]]
        outside += path.parents[1].glob("[!d]*")  # beside the folder `deep`
        if outside:
            return f"{outside[0]} was written"
        return unlike(listed(ended.out), expected)


# --- Independent readers --------------------------------------------------------------------------


def read_npz(path: Path) -> dict[str, Any]:
    """Read an .npz of plain arrays, from the description of the format, without numpy's reader."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return {
        name.removesuffix(".npy"): read_npy(content)
        for name, content in members.items()
        if name in ("z.npy", "y.npy", "classes.npy")
    }


def read_npy(content: bytes) -> Any:
    """Read an .npy."""
    assert content[:6] == b"\x93NUMPY"
    wide = content[6] > 1
    start = 12 if wide else 10
    (length,) = struct.unpack("<I" if wide else "<H", content[8:start])
    head = literal_eval(content[start : start + length].decode("utf-8" if wide else "latin1"))
    dtype, shape = np.dtype(head["descr"]), head["shape"]
    flat = np.frombuffer(content[start + length :], dtype, count=math.prod(shape))
    return flat.reshape(shape, order="F" if head["fortran_order"] else "C")


def read_csv(text: str) -> list[list[str]]:
    """Read a CSV: cells between commas, in double quotes where they hold commas or line ends."""
    rows, row, cell, quoted, at = [], [], "", False, 0
    while at < len(text):
        one = text[at]
        if quoted and text[at : at + 2] == '""':
            cell, at = cell + '"', at + 1
        elif one == '"' and (quoted or not cell):
            quoted = not quoted
        elif quoted or one not in ",\r\n":
            cell += one
        else:
            row, cell = [*row, cell.strip()], ""
            if one != ",":
                rows, row = [*rows, row], []
                at += text[at : at + 2] == "\r\n"
        at += 1
    return [*rows, [*row, cell.strip()]] if row or cell else rows


def as_cell(value: Any) -> str | None:
    """Return a value of a Parquet file as a CSV has it; None where nobody can say."""
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value).strip() if isinstance(value, str | int) else None


def listed(out: str) -> set[tuple[str, str]]:
    """Return sample and class of each row that `assay data splits` printed."""
    rows = list(csv.reader(io.StringIO(out)))
    return {(row[0], row[1]) for row in rows[1:]}


def unlike(found: set[tuple[str, str]], expected: set[tuple[str, str]]) -> str:
    """Return in words how a listing differs from the expected one; empty where it does not."""
    return (
        f"{len(found - expected)} rows that are not there, such as {[*found - expected][:1]};"
        f" {len(expected - found)} that are missing, such as {[*expected - found][:1]}"
        if found != expected
        else ""
    )


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def decodes(path: Path) -> bool:
    """Return whether Pillow decodes an image whole, and not by way of a device."""
    if not path.is_file():
        return False
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            image.load()
        return True
    except Exception:
        return False


def _as_csv(
    rows: Iterable[Sequence[str]], end: str = "\n", comma: str = ",", quote: bool = True
) -> str:
    if not quote:
        return "".join(comma.join(row) + end for row in rows)
    stream = io.StringIO()
    csv.writer(stream, delimiter=comma, lineterminator=end).writerows(rows)
    return stream.getvalue()


def write_zip(
    path: Path, members: Iterable[tuple[str, bytes]], link: tuple[str, str] | None = None
) -> None:
    """Write a zip, with a link in it."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link[0])
            info.external_attr = 0o120777 << 16
            archive.writestr(info, link[1])


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], link: tuple[str, str] | None = None
) -> None:
    """Write a tar, with a link in it."""
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)
