"""Ready-made vectors: what an .npz must hold, and that nothing in it is ever executed."""

import pickle
import re
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.data import Dataset, load, splits
from assay.errors import BadInput
from assay.protocols import FirstStep, Protocol
from refusals import refusal
from sealed import receipt

NO_STEP = FirstStep("square", 0)
N, D, CLASSES = 64, 5, 16
Z = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.repeat(np.arange(CLASSES), N // CLASSES)


class Trap:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"features:{path}"


def load_arrays(tmp_path: Path, **arrays: Any) -> Dataset:
    return load(save(tmp_path / "f.npz", **arrays))


def header(shape: tuple[int, ...]) -> bytes:
    """Return the beginning of an .npy that promises float32 numbers of this shape."""
    packed = BytesIO()
    np.lib.format.write_array_header_1_0(
        packed, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return packed.getvalue()


def fingerprints(dataset: Dataset, folder: Path) -> tuple[str, str]:
    """Return those of trainval and of test; the ledger that opens the seal lies in `folder`."""
    trainval, test = splits.of(dataset, Protocol("p.v1"))
    return trainval.fingerprint, test.open(receipt(folder, trainval.fingerprint)).fingerprint


def test_vectors_and_labels_are_read(tmp_path: Path) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=Y)
    assert (dataset.name, dataset.modality, dataset.items.inputs) == (
        "features:f.npz",
        "features",
        D,
    )
    assert (dataset.labels == Y).all()
    assert dataset.labels.dtype == np.int64
    assert dataset.class_names == tuple(str(number) for number in range(CLASSES))
    assert (dataset.items.arrays(np.array([3, 1]), NO_STEP) == Z[[3, 1]]).all()
    assert len(set(dataset.ids)) == N


def test_a_sample_is_named_by_its_class_and_its_number_in_it(tmp_path: Path) -> None:
    dataset = load_arrays(
        tmp_path, z=Z[:6], y=np.array(["wren", "robin", "wren", "a/b", "robin", "wren"])
    )
    assert list(dataset.ids) == ["wren/0", "robin/0", "wren/1", "a/b/0", "robin/1", "wren/2"]
    numbered = load_arrays(tmp_path, z=Z[:5], y=np.array([30, 4, 30, 4, 4]))
    assert list(numbered.ids) == ["30/0", "4/0", "30/1", "4/1", "4/2"]


def test_rows_of_other_classes_do_not_change_the_name_of_a_sample(tmp_path: Path) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=Y)
    mixed = np.random.default_rng(1).permutation(N)
    shuffled = load_arrays(tmp_path, z=Z[mixed], y=Y[mixed])
    for number in range(CLASSES):
        names = [
            [id_ for id_, label in zip(x.ids, x.labels, strict=True) if label == number]
            for x in (dataset, shuffled)
        ]
        assert names[0] == names[1] == [f"{number}/{row}" for row in range(N // CLASSES)]


def test_any_real_numbers_are_taken(tmp_path: Path) -> None:
    for dtype in ("float16", "float64", "int8", "uint8", "int64", ">f4", "longdouble"):
        numbers = (10 * np.abs(Z)).astype(dtype)
        found = load_arrays(tmp_path, z=numbers, y=Y).items.arrays(np.arange(N), NO_STEP)
        assert found.dtype == np.float32, dtype
        assert (found == numbers.astype(np.float32)).all(), dtype


def test_columns_first_are_the_same_vectors(tmp_path: Path) -> None:
    rows, columns = (
        load_arrays(tmp_path, z=Z, y=Y),
        load_arrays(tmp_path, z=np.asfortranarray(Z), y=Y),
    )
    assert rows.fingerprint(np.arange(N)) == columns.fingerprint(np.arange(N))


def test_a_compressed_archive_is_the_same_data_set(tmp_path: Path) -> None:
    plain = load_arrays(tmp_path, z=Z, y=Y)
    np.savez_compressed(tmp_path / "g.npz", z=Z, y=Y)
    assert load(f"features:{tmp_path / 'g.npz'}").fingerprint(np.arange(N)) == plain.fingerprint(
        np.arange(N)
    )


def test_other_arrays_in_the_archive_are_left_alone(tmp_path: Path) -> None:
    assert len(load_arrays(tmp_path, z=Z, y=Y, more=np.array([object()])).ids) == N


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "uint64", ">i8"])
def test_whole_numbers_are_labels_in_numeric_order(tmp_path: Path, dtype: str) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=(Y[::-1] * 7).astype(dtype))
    assert dataset.class_names == tuple(str(7 * number) for number in range(CLASSES))
    assert (dataset.labels == Y[::-1]).all()


def test_words_are_labels_in_alphabetical_order(tmp_path: Path) -> None:
    words = np.array([f"bird {chr(ord('p') - number)} ü" for number in Y])
    dataset = load_arrays(tmp_path, z=Z, y=words)
    assert dataset.class_names == tuple(sorted(set(words.tolist())))
    assert [dataset.class_names[label] for label in dataset.labels] == words.tolist()


def test_words_in_bytes_have_the_same_names_as_words(tmp_path: Path) -> None:
    words = np.array([f"bird {number:02}" for number in Y])
    assert (
        load_arrays(tmp_path, z=Z, y=words.astype("S")).class_names
        == load_arrays(tmp_path, z=Z, y=words).class_names
    )


@pytest.mark.parametrize("word", [b"\xff%d", "\udcff%d"], ids=["bytes", "a lone surrogate"])
def test_words_that_are_not_utf_8_are_refused(tmp_path: Path, word: Any) -> None:
    def fingerprint() -> str:
        dataset = load_arrays(tmp_path, z=Z, y=np.array([word % number for number in Y]))
        return splits.of(dataset, Protocol("p.v1"))[0].fingerprint

    with pytest.raises(BadInput, match=r"features:.*f\.npz"):
        fingerprint()


@pytest.mark.parametrize("first", [2**24, 2**53, 2**63 - CLASSES, -(2**63)])
def test_huge_labels_do_not_merge(tmp_path: Path, first: int) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=Y.astype(np.int64) + np.int64(first))
    assert dataset.class_names == tuple(str(first + number) for number in range(CLASSES))
    assert (dataset.labels == Y).all()


def test_the_hugest_labels_do_not_merge(tmp_path: Path) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=Y.astype(np.uint64) + np.uint64(2**64 - CLASSES))
    assert len(dataset.class_names) == CLASSES
    assert dataset.class_names[-1] == str(2**64 - 1)


def test_a_class_of_one_vector_is_kept(tmp_path: Path) -> None:
    dataset = load_arrays(tmp_path, z=Z[3:], y=Y[3:])
    assert len(dataset.class_names) == CLASSES
    assert np.bincount(dataset.labels)[0] == 1


@pytest.mark.parametrize(
    ("arrays", "missing", "has"),
    [({"z": Z}, "y", "z"), ({"y": Y}, "z", "y"), ({"x": Z, "l": Y}, "z", "x, l")],
)
def test_a_missing_array_is_named_beside_those_that_are_there(
    tmp_path: Path, arrays: dict[str, Any], missing: str, has: str
) -> None:
    with pytest.raises(BadInput, match=rf"f\.npz has no array '{missing}' \(it has {has}\)"):
        load_arrays(tmp_path, **arrays)


def test_an_empty_archive_has_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"f\.npz is an \.npz without a single array; save it with"):
        load_arrays(tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_named(tmp_path: Path, bad: float) -> None:
    z = Z.copy()
    z[7, 2] = z[40, 0] = bad
    with pytest.raises(
        BadInput,
        match=r"row 7 of z has a value that is NaN, infinite or above 1e\+15 \(2 such rows\)",
    ):
        load_arrays(tmp_path, z=z, y=Y)


@pytest.mark.parametrize("large", [1e300, 1e39, 1e16, -1e16])
def test_a_value_too_large_for_single_precision_is_named(tmp_path: Path, large: float) -> None:
    """The value itself is too large, or the sum of its squares is."""
    z = Z.astype(np.float64)
    z[7, 2] = large
    with pytest.raises(BadInput, match="row 7 of z"):
        load_arrays(tmp_path, z=z, y=Y)


NO_VECTORS: dict[str, Any] = {
    "one row": Z[0],
    "three axes": Z[None],
    "a number": np.float32(3),
    "booleans": Z > 0,
    "complex": Z.astype(complex),
    "words": Z.astype(str),
    "times": Z.astype("M8[s]"),
    "no columns": Z[:, :0],
}


def test_vectors_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    for case, z in NO_VECTORS.items():
        message = refusal(case, lambda z=z: load_arrays(tmp_path, z=z, y=Y))
        assert re.search(r"z is .* of shape .*; it must be", message), case


@pytest.mark.parametrize("y", [Y[:-1], Y[:, None], np.tile(Y, 2), Y[0]])
def test_labels_of_another_shape_are_refused_with_both_shapes(tmp_path: Path, y: Any) -> None:
    with pytest.raises(
        BadInput, match=rf"y has shape .*; z has {N} rows, so y must have shape \({N},\)"
    ):
        load_arrays(tmp_path, z=Z, y=y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "complex128", "M8[s]"])
def test_labels_of_another_type_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(BadInput, match="labels are integers or strings"):
        load_arrays(tmp_path, z=Z, y=Y.astype(dtype))


def test_a_data_set_without_rows_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        splits.of(load_arrays(tmp_path, z=Z[:0], y=Y[:0]), Protocol("p.v1"))


@pytest.mark.parametrize("name", ["z", "y"])
def test_an_array_of_objects_is_refused_and_not_unpickled(tmp_path: Path, name: str) -> None:
    trap = np.array([Trap(tmp_path / "sprung")] * N, dtype=object)
    arrays: dict[str, Any] = {"z": Z, "y": Y, name: trap}
    np.savez(tmp_path / "f.npz", allow_pickle=True, **arrays)
    with pytest.raises(BadInput, match="holds Python objects"):
        load(f"features:{tmp_path / 'f.npz'}")
    assert not (tmp_path / "sprung").exists()
    with np.load(tmp_path / "f.npz", allow_pickle=True) as archive:
        assert len(archive[name]) == N
    assert (tmp_path / "sprung").exists(), "the trap would not have sprung at all"


def test_a_pickle_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "f.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(BadInput, match=r"f\.npz cannot be read"):
        load(f"features:{tmp_path / 'f.npz'}")
    assert not (tmp_path / "sprung").exists()


def archive_bytes(**arrays: Any) -> bytes:
    packed = BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def compressed_and_damaged() -> bytes:
    """Return a compressed archive with other bytes in the middle of its vectors."""
    packed = BytesIO()
    np.savez_compressed(packed, z=Z, y=Y)
    content = bytearray(packed.getvalue())
    content[300:340] = b"\xff" * 40
    return bytes(content)


def members(**contents: bytes) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return packed.getvalue()


def npy_bytes() -> bytes:
    packed = BytesIO()
    np.save(packed, Z)
    return packed.getvalue()


NO_ARCHIVES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"z,y\n1,2\n",
    "one array": npy_bytes,
    "half": lambda: archive_bytes(z=Z, y=Y)[:700],
    "a byte short": lambda: archive_bytes(z=Z, y=Y)[:-1],
    "other magic": lambda: archive_bytes(z=Z, y=Y).replace(b"\x93NUMPY", b"\x93NUMPX"),
    "compressed and damaged": compressed_and_damaged,
    "members without arrays": lambda: members(z=b"hello", y=b"hello"),
    "arrays without content": lambda: members(**{"z.npy": b"hello", "y.npy": b""}),
    "headers alone": lambda: members(**{"z.npy": header((N, D)), "y.npy": header((N,))}),
    "petabytes": lambda: members(**{"z.npy": header((10**9, 10**7)), "y.npy": header((N,))}),
    "negative shape": lambda: archive_bytes(z=Z, y=Y).replace(b"(64, 5)", b"(-4, 5)"),
}


def test_what_is_no_archive_of_arrays_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for case, content in NO_ARCHIVES.items():
        path.write_bytes(content())
        assert f"features:{path}" in refusal(case, lambda: load(f"features:{path}")), case


def test_a_path_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no .*missing\.npz"):
        load(f"features:{tmp_path / 'missing.npz'}")
    with pytest.raises(BadInput, match="cannot be read"):
        load(f"features:{tmp_path}")


def test_fingerprints_do_not_depend_on_where_the_file_lies(tmp_path: Path) -> None:
    here = load_arrays(tmp_path, z=Z, y=Y)
    (tmp_path / "deep").mkdir()
    there = load(save(tmp_path / "deep" / "other name.npz", y=Y, z=Z))
    assert fingerprints(there, tmp_path) == fingerprints(here, tmp_path)


@pytest.mark.parametrize(("row", "half"), [(0, 0), (N // 2 - 1, 0), (N // 2, 1), (N - 1, 1)])
def test_a_changed_number_in_one_half_changes_its_fingerprint_and_not_the_others(
    tmp_path: Path, row: int, half: int
) -> None:
    before = fingerprints(load_arrays(tmp_path, z=Z, y=Y), tmp_path)
    z = Z.copy()
    z[row, 3] = np.nextafter(z[row, 3], np.float32(9))
    after = fingerprints(load_arrays(tmp_path, z=z, y=Y), tmp_path)
    assert after[half] != before[half]
    assert after[1 - half] == before[1 - half]


def test_a_class_renamed_in_one_half_changes_its_fingerprint_and_not_the_others(
    tmp_path: Path,
) -> None:
    before = fingerprints(load_arrays(tmp_path, z=Z, y=Y), tmp_path)
    after = fingerprints(load_arrays(tmp_path, z=Z, y=np.where(Y == CLASSES - 1, 99, Y)), tmp_path)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_rows_of_the_test_half_added_in_front_leave_trainval_as_it_is(tmp_path: Path) -> None:
    """A half's fingerprint is that of its samples, and of nothing in the other half."""
    last = Y == CLASSES - 1
    before = fingerprints(load_arrays(tmp_path, z=Z, y=Y), tmp_path)
    more = load_arrays(tmp_path, z=np.concatenate([Z[last] + 1, Z]), y=np.concatenate([Y[last], Y]))
    after = fingerprints(more, tmp_path)
    assert after[1] != before[1]
    assert after[0] == before[0]


NAMES = np.array([f"bird {chr(ord('p') - number)}" for number in range(CLASSES)])
"""In another order than that of the alphabet."""


def test_names_of_classes_may_be_given_in_their_order(tmp_path: Path) -> None:
    dataset = load_arrays(tmp_path, z=Z, y=Y[::-1], classes=NAMES)
    assert dataset.class_names == tuple(NAMES.tolist())
    assert dataset.labels.tolist() == Y[::-1].tolist()
    assert dataset.labels.dtype == np.int64
    assert dataset.ids[0] == "bird a/0"


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "too few": (
        {"classes": NAMES[:-1]},
        "row 60 of y is 15; with 15 classes it is between 0 and 14",
    ),
    "below 0": ({"classes": NAMES, "y": Y - 1}, "row 0 of y is -1; with 16 classes"),
    "unused": (
        {"classes": np.append(NAMES, "more")},
        "no row of y is 16, so the class 'more' has no sample",
    ),
    "words twice": ({"classes": NAMES, "y": NAMES[Y]}, "y holds words"),
    "twice": ({"classes": np.append(NAMES[:-1], NAMES[0])}, "classes holds 'bird p' twice"),
    "numbers": (
        {"classes": np.arange(CLASSES)},
        "classes is int64 of shape (16,); it must be strings",
    ),
    "two axes": ({"classes": NAMES[:, None]}, "it must be strings, one after the other"),
    "bytes": (
        {"classes": np.array([b"\xff%d" % n for n in range(CLASSES)])},
        "a name of classes is not UTF-8",
    ),
    "ids of numbers": ({"ids": np.arange(N)}, "ids is int64 of shape (64,); it must be strings"),
    "ids twice": ({"ids": Y.astype(str)}, "ids holds '0' twice"),
    "too few ids": ({"ids": np.arange(N - 1).astype(str)}, "ids has 63 names; z has 64 rows"),
    "a float": ({"trainval": 8.0}, "trainval is float64 of shape (); it is one integer"),
    "three numbers": (
        {"trainval": np.arange(3)},
        "trainval is int64 of shape (3,); it is one integer",
    ),
    "none": ({"trainval": 0}, "trainval is 0; of 16 classes it has at least 1 and at most 15"),
    "all": ({"trainval": CLASSES}, "trainval is 16; of 16 classes it has"),
    "marks of numbers": (
        {"query": Y},
        "query is int64 of shape (64,); it must be bool of shape (64,)",
    ),
    "short marks": (
        {"gallery": Y[1:] > 3},
        "gallery is bool of shape (63,); it must be bool of shape (64,)",
    ),
}


def test_what_is_given_besides_is_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    for case, (arrays, wanted) in MISFITS.items():
        given: dict[str, Any] = {"z": Z, "y": Y} | arrays
        message = refusal(case, lambda given=given: load_arrays(tmp_path, **given))
        assert message.startswith(f"features:{tmp_path / 'f.npz'}: "), case
        assert wanted in message, case


def test_rows_may_have_names_of_their_own(tmp_path: Path) -> None:
    names = np.array([f"image-{row}.jpg" for row in range(N)])
    for given in (names, names.astype("S")):
        assert list(load_arrays(tmp_path, z=Z, y=Y, ids=given).ids) == names.tolist()


@pytest.mark.parametrize("number", [5, np.array([5], dtype=np.uint8)])
def test_the_official_number_of_classes_of_trainval_is_kept(tmp_path: Path, number: Any) -> None:
    assert load_arrays(tmp_path, z=Z, y=Y, trainval=number).trainval == 5
    assert load_arrays(tmp_path, z=Z, y=Y).trainval is None


def test_marks_of_queries_and_of_the_gallery_are_kept(tmp_path: Path) -> None:
    plain = load_arrays(tmp_path, z=Z, y=Y)
    assert (plain.query, plain.gallery) == (None, None)
    marked = load_arrays(tmp_path, z=Z, y=Y, query=Y % 2 == 0, gallery=Y % 3 == 0)
    assert marked.query is not None and marked.gallery is not None
    assert marked.query.tolist() == (Y % 2 == 0).tolist()
    assert marked.gallery.tolist() == (Y % 3 == 0).tolist()
    assert marked.fingerprint(np.arange(N)) != plain.fingerprint(np.arange(N))


def test_no_row_that_was_loaded_has_a_problem(tmp_path: Path) -> None:
    assert load_arrays(tmp_path, z=Z, y=Y).items.problem(0) is None
