"""Halves and folds by class, the seal on the test half, and the packs that tasks get to see."""

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from assay.cli import main
from assay.data import Dataset, load, seal, splits
from assay.data.dataset import Half, renumber
from assay.data.packs import read_pack, write_pack
from assay.data.seal import OpenedTest, Reason, everything, read_test
from assay.data.sources.features import Features
from assay.data.sources.glyphs import Drawings
from assay.data.splits import TrainVal, folds
from assay.errors import BadInput
from assay.protocols import FirstStep, Protocol
from assay.records.ledger import Ledger, Receipt, SealError
from entries import announcement, reproduction, selection

PROTOCOL = Protocol("p.v1")
NO_STEP = FirstStep("square", 0)
AFTER_PREREGISTRATION = [selection(), reproduction(fold=0), reproduction(fold=1)]
COMPLETE = 1 + len(AFTER_PREREGISTRATION)


def make(sizes: list[int], seed: int = 0) -> Dataset:
    """Make a data set with so many samples in each class, unsorted."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    z = draw.normal(size=(len(labels), 3)).astype(np.float32)
    names = tuple(f"class-{number:03}" for number in range(len(sizes)))
    return Dataset(
        "made",
        "features",
        labels,
        names,
        [f"sample-{row}" for row in range(len(labels))],
        Features(z),
    )


def study(folder: Path, trainval: TrainVal, lines: int = COMPLETE) -> Ledger:
    """Write the first lines of the ledger of a study on `trainval`."""
    ledger = Ledger(folder / trainval.fingerprint / "ledger.jsonl")
    ledger.record(announcement(trainval=trainval.fingerprint))
    for entry in AFTER_PREREGISTRATION[: lines - 1]:
        ledger.record(entry)
    return ledger


def both_halves(
    dataset: Dataset, folder: Path, protocol: Protocol = PROTOCOL
) -> tuple[TrainVal, Half]:
    trainval, test = splits.of(dataset, protocol)
    return trainval, test.open(study(folder, trainval).receipt())


@pytest.mark.parametrize(
    ("classes", "in_trainval"), [(16, 8), (17, 8), (18, 9), (23, 11), (40, 20)]
)
def test_the_first_half_of_the_classes_is_trainval(
    tmp_path: Path, classes: int, in_trainval: int
) -> None:
    dataset = make([2] * classes)
    trainval, test = both_halves(dataset, tmp_path)
    assert trainval.class_names == dataset.class_names[:in_trainval]
    assert test.class_names == dataset.class_names[in_trainval:]


def test_the_halves_share_no_sample_and_leave_none_out(tmp_path: Path) -> None:
    dataset = make([1, 2, 3, 4] * 5)
    trainval, test = both_halves(dataset, tmp_path)
    assert sorted([*trainval.ids, *test.ids]) == sorted(dataset.ids)
    assert not set(trainval.ids) & set(test.ids)


def test_samples_labels_and_names_of_a_half_belong_together(tmp_path: Path) -> None:
    dataset = make([2, 3] * 9)
    rows = {id_: row for row, id_ in enumerate(dataset.ids)}
    for half in both_halves(dataset, tmp_path):
        vectors = half.arrays(NO_STEP)
        for number, id_ in enumerate(half.ids):
            assert (
                half.class_names[half.y[number]] == dataset.class_names[dataset.labels[rows[id_]]]
            )
            assert (
                vectors[number] == dataset.items.arrays(np.array([rows[id_]]), NO_STEP)[0]
            ).all()


def test_labels_of_a_half_number_its_classes_from_zero(tmp_path: Path) -> None:
    for half in both_halves(make([2] * 19), tmp_path):
        assert sorted(set(half.y.tolist())) == list(range(len(half.class_names)))


def test_some_samples_of_a_half_are_those_rows_of_it(tmp_path: Path) -> None:
    for half in both_halves(make([3] * 16), tmp_path):
        assert (half.some(np.array([5, 2]), NO_STEP) == half.arrays(NO_STEP)[[5, 2]]).all()
        assert (half.modality, half.inputs) == ("features", 3)


@given(data=st.data(), count=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_every_class_is_validated_exactly_once(data: st.DataObject, count: int, seed: int) -> None:
    classes = data.draw(st.integers(max(16, 4 * count), 60))
    sizes = data.draw(st.lists(st.integers(2, 5), min_size=classes, max_size=classes))
    trainval, _ = splits.of(make(sizes, seed), replace(PROTOCOL, folds=count))
    parts = folds(trainval, count)
    assert len(parts) == count
    validated = [set(trainval.y[part.validation].tolist()) for part in parts]
    assert sorted(label for labels in validated for label in labels) == list(range(classes // 2))
    assert sorted(row for part in parts for row in part.validation.tolist()) == list(
        range(len(trainval.y))
    )


@given(classes=st.integers(16, 60), seed=st.integers(0, 2**31))
def test_no_class_is_trained_on_and_validated(classes: int, seed: int) -> None:
    trainval, _ = splits.of(make([2] * classes, seed), PROTOCOL)
    for part in folds(trainval, 4):
        assert not set(trainval.y[part.train]) & set(trainval.y[part.validation])
        assert sorted([*part.train, *part.validation]) == list(range(len(trainval.y)))


@given(classes=st.integers(16, 60), seed=st.integers(0, 2**31))
def test_folds_follow_the_order_of_classes_and_are_as_equal_as_can_be(
    classes: int, seed: int
) -> None:
    trainval, _ = splits.of(make([2] * classes, seed), PROTOCOL)
    validated = [sorted(set(trainval.y[part.validation].tolist())) for part in folds(trainval, 4)]
    assert [label for labels in validated for label in labels] == list(range(classes // 2))
    assert max(map(len, validated)) - min(map(len, validated)) <= 1


def test_some_folds_written_out() -> None:
    trainval, _ = splits.of(make([2] * 22), PROTOCOL)
    validated = [sorted(set(trainval.y[part.validation].tolist())) for part in folds(trainval, 4)]
    assert validated == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


def part_of(label: int) -> str:
    """Return the part of a class of 16, in 4 folds."""
    return f"fold {label // 2}" if label < 8 else "test"


def unsorted_features(path: Path) -> tuple[str, list[int]]:
    """Save an .npz of unsorted samples; return its name for `load`, and its labels."""
    labels = make([3] * 16).labels
    np.savez(path, z=np.random.default_rng(0).normal(size=(len(labels), 4)), y=labels)
    return f"features:{path}", labels.tolist()


def test_parts_are_listed_in_the_order_of_the_samples(tmp_path: Path) -> None:
    name, labels = unsorted_features(tmp_path / "f.npz")
    assert labels != sorted(labels)
    assert splits.parts(load(name), PROTOCOL) == [part_of(label) for label in labels]


@given(
    sizes=st.lists(st.integers(2, 5), min_size=24, max_size=40),
    count=st.integers(2, 6),
    seed=st.integers(0, 2**31),
)
def test_parts_are_the_folds_and_the_sealed_half(sizes: list[int], count: int, seed: int) -> None:
    dataset, protocol = make(sizes, seed), replace(PROTOCOL, folds=count)
    trainval, _ = splits.of(dataset, protocol)
    found = dict(zip(dataset.ids, splits.parts(dataset, protocol), strict=True))
    for number, fold in enumerate(folds(trainval, count)):
        assert {trainval.ids[row] for row in fold.validation} == {
            id_ for id_, part in found.items() if part == f"fold {number}"
        }
    assert {id_ for id_, part in found.items() if part == "test"} == set(dataset.ids) - set(
        trainval.ids
    )


def test_parts_of_data_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(BadInput, match="need at least 16"):
        splits.parts(make([2] * 15), PROTOCOL)


def test_the_list_of_splits_has_the_part_of_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`assay data splits`, on unsorted samples of both halves."""
    name, labels = unsorted_features(tmp_path / "f.npz")
    monkeypatch.setattr(sys, "argv", ["assay", "data", "splits", name])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    header, *rows = csv.reader(StringIO(capsys.readouterr().out))
    assert header == ["sample", "class", "part"]
    assert [row[0] for row in rows] == list(load(name).ids)
    assert [row[1:] for row in rows] == [[str(label), part_of(label)] for label in labels]


@pytest.mark.parametrize("classes", [0, 1, 2, 8, 15])
def test_fewer_than_sixteen_classes_are_refused(classes: int) -> None:
    with pytest.raises(BadInput, match=rf"made has {classes} class.*need at least 16"):
        splits.of(make([5] * classes), replace(PROTOCOL, folds=2))


def test_sixteen_classes_are_enough() -> None:
    trainval, _ = splits.of(make([2] * 16), PROTOCOL)
    assert len(trainval.class_names) == 8


def test_more_folds_need_more_classes() -> None:
    with pytest.raises(BadInput, match="two halves with 5 folds need at least 20"):
        splits.of(make([2] * 19), replace(PROTOCOL, folds=5))
    assert splits.of(make([2] * 20), replace(PROTOCOL, folds=5))


@pytest.mark.parametrize("single", [0, 7, 8, 15])
def test_a_class_of_one_sample_is_kept(tmp_path: Path, single: int) -> None:
    sizes = [3] * 16
    sizes[single] = 1
    dataset = make(sizes)
    trainval, test = both_halves(dataset, tmp_path)
    assert trainval.class_names + test.class_names == dataset.class_names
    assert len(trainval.y) + len(test.y) == sum(sizes)


def test_a_fold_in_which_nothing_can_be_found_is_refused() -> None:
    with pytest.raises(BadInput, match="made: fold 1 has no class with two samples"):
        splits.of(make([2, 2, 1, 1, 2, 2, 2, 2] + [2] * 8), PROTOCOL)


def test_a_test_half_in_which_nothing_can_be_found_is_refused() -> None:
    with pytest.raises(BadInput, match="made: the test half has no class with two samples"):
        splits.of(make([2] * 8 + [1] * 8), PROTOCOL)


def test_a_test_half_whose_last_class_is_only_looked_up_is_no_error() -> None:
    dataset = make([2] * 16)
    gallery = dataset.labels < 15
    _, test = splits.of(replace(dataset, query=np.ones_like(gallery), gallery=gallery), PROTOCOL)
    assert test.summary.classes == 8


def test_the_sealed_half_offers_what_the_table_of_the_seal_says_and_nothing_else() -> None:
    _, test = splits.of(make([2] * 16), PROTOCOL)
    assert [name for name in dir(test) if not name.startswith("_")] == [
        "commitment",
        "count_in",
        "fingerprint",
        "flaws",
        "hand_out",
        "left_out",
        "open",
        "pack",
        "packed_bytes",
        "references",
        "summary",
    ]
    assert vars(test.flaws) == {"of_trainval": (), "of_test": (), "refusal": None}
    assert test.left_out == ()
    assert not isinstance(test, Half)
    for name in ("__len__", "__iter__", "__getitem__", "__array__", "__call__"):
        assert not hasattr(test, name)


def test_the_sealed_half_shows_nothing_when_printed() -> None:
    dataset = make([2] * 16)
    _, test = splits.of(dataset, PROTOCOL)
    assert not any(name in f"{test!r} {test!s}" for name in (*dataset.class_names, *dataset.ids))


def test_trainval_shows_nothing_of_the_other_half() -> None:
    dataset = make([2] * 16)
    trainval, _ = splits.of(dataset, PROTOCOL)
    hidden = {
        *dataset.class_names[8:],
        *(dataset.ids[row] for row in np.flatnonzero(dataset.labels >= 8).tolist()),
    }
    public = [getattr(trainval, name) for name in dir(trainval) if not name.startswith("_")]
    shown = {item for value in public if isinstance(value, list | tuple) for item in value}
    assert {*dataset.class_names[:8]} <= shown
    assert not hidden & shown


def test_trainval_shows_nothing_of_the_other_half_when_printed() -> None:
    dataset = make([2] * 16)
    trainval, _ = splits.of(dataset, PROTOCOL)
    assert not any(name in repr(trainval) for name in dataset.class_names[8:])


@pytest.mark.parametrize("lines", range(1, COMPLETE))
def test_the_seal_stays_closed_before_the_study_is_complete(tmp_path: Path, lines: int) -> None:
    trainval, test = splits.of(make([2] * 16), PROTOCOL)
    ledger = study(tmp_path, trainval, lines)
    assert len(ledger.lines) == lines
    for line in ledger.lines:
        with pytest.raises(SealError, match="does not support"):
            test.open(Receipt(str(ledger.path), line.hash))


def test_the_seal_stays_closed_to_a_forged_receipt(tmp_path: Path) -> None:
    trainval, test = splits.of(make([2] * 16), PROTOCOL)
    ledger = study(tmp_path, trainval)
    for forged in ("", "0" * 64, ledger.lines[0].hash, ledger.lines[-1].hash.upper()):
        with pytest.raises(SealError, match="does not support"):
            test.open(Receipt(str(ledger.path), forged))


def test_the_seal_opens_to_a_complete_study(tmp_path: Path) -> None:
    trainval, test = splits.of(make([2] * 16), PROTOCOL)
    half = test.open(study(tmp_path, trainval).receipt())
    assert len(half.class_names) == 8
    assert half is test.open(study(tmp_path, trainval).receipt())


def test_a_look_needs_a_named_reason() -> None:
    dataset = make([2] * 16)
    _, test = splits.of(dataset, PROTOCOL)
    for reason in Reason:
        half = test.hand_out(reason)
        assert isinstance(half, OpenedTest)
        assert half.ids == [dataset.ids[row] for row in np.flatnonzero(dataset.labels >= 8)]
    anything: Any
    for anything in (None, "", "because", "BASELINE", True):
        with pytest.raises(SealError, match="is no reason to open the test half"):
            test.hand_out(anything)


def test_every_reason_and_every_way_out_stands_in_the_table_of_the_seal() -> None:
    assert seal.__doc__ is not None
    for reason in Reason:
        assert f"`hand_out({reason.name})`" in seal.__doc__
    _, test = splits.of(make([2] * 16), PROTOCOL)
    ways = [name for name in dir(test) if not name.startswith("_")]
    for way in (*ways, "read_test", "everything"):
        assert f"`{way}" in seal.__doc__, f"{way} hands something out and is not in the table"


def test_fingerprint_and_summary_are_those_of_the_opened_half() -> None:
    dataset = make([2, 3] * 8)
    _, test = splits.of(dataset, PROTOCOL)
    half = test.hand_out(Reason.BASELINE)
    assert test.fingerprint == half.fingerprint
    assert vars(test.summary) == {
        "part": "test",
        "classes": 8,
        "samples": 20,
        "first": half.class_names[0],
        "last": half.class_names[-1],
    }


def test_everything_is_every_sample_in_its_order() -> None:
    dataset = make([2, 3] * 8)
    half = everything(dataset)
    assert half.ids == list(dataset.ids)
    assert (half.y == dataset.labels).all()
    assert (half.places == np.arange(len(dataset))).all()


def change_a_number_of_trainval(dataset: Dataset) -> Dataset:
    z = dataset.items.arrays(np.arange(len(dataset.labels)), NO_STEP).astype(np.float32)
    z[np.flatnonzero(dataset.labels == 0)[0], 0] += 1
    return replace(dataset, items=Features(z))


def rename_a_class_of_trainval(dataset: Dataset) -> Dataset:
    return replace(dataset, class_names=("another", *dataset.class_names[1:]))


@pytest.mark.parametrize(
    "other",
    [lambda _: make([2] * 16, seed=1), change_a_number_of_trainval, rename_a_class_of_trainval],
)
def test_the_seal_stays_closed_to_a_complete_study_on_other_data(
    tmp_path: Path, other: Callable[[Dataset], Dataset]
) -> None:
    dataset = make([2] * 16)
    _, test = splits.of(dataset, PROTOCOL)
    other_trainval, other_test = splits.of(other(dataset), PROTOCOL)
    receipt = study(tmp_path, other_trainval).receipt()
    with pytest.raises(SealError, match="of a study on other data"):
        test.open(receipt)
    assert len(other_test.open(receipt).class_names) == 8


def permute_test_labels(dataset: Dataset) -> Dataset:
    labels = dataset.labels.copy()
    hidden = np.flatnonzero(labels >= len(dataset.class_names) // 2)
    labels[hidden] = np.random.default_rng(1).permutation(labels[hidden])
    assert (labels != dataset.labels).any()
    return replace(dataset, labels=labels)


def replace_test_samples(dataset: Dataset) -> Dataset:
    z = dataset.items.arrays(np.arange(len(dataset.labels)), NO_STEP).astype(np.float32)
    hidden = dataset.labels >= len(dataset.class_names) // 2
    z[hidden] = np.random.default_rng(1).normal(size=z[hidden].shape)
    return replace(dataset, items=Features(z))


def rename_test_classes(dataset: Dataset) -> Dataset:
    half = len(dataset.class_names) // 2
    return replace(
        dataset, class_names=dataset.class_names[:half] + tuple(f"other-{n}" for n in range(half))
    )


@pytest.mark.parametrize("change", [permute_test_labels, replace_test_samples, rename_test_classes])
def test_no_change_in_the_test_half_reaches_trainval(
    tmp_path: Path, change: Callable[[Dataset], Dataset]
) -> None:
    dataset = make([2, 3, 4, 5] * 5)
    before, after = (splits.of(version, PROTOCOL)[0] for version in (dataset, change(dataset)))
    assert after.fingerprint == before.fingerprint
    assert after.y.tobytes() == before.y.tobytes()
    assert after.arrays(NO_STEP).tobytes() == before.arrays(NO_STEP).tobytes()
    assert (after.ids, after.class_names) == (before.ids, before.class_names)
    for one, other in zip(folds(before, 4), folds(after, 4), strict=True):
        assert (one.train == other.train).all()
        assert (one.validation == other.validation).all()
    for name, half in (("before", before), ("after", after)):
        write_pack(tmp_path / name, half, NO_STEP)
    for file in ("x.npy", "y.npy"):
        assert (tmp_path / "before" / file).read_bytes() == (tmp_path / "after" / file).read_bytes()


@pytest.mark.parametrize("change", [permute_test_labels, replace_test_samples, rename_test_classes])
def test_every_change_in_the_test_half_is_seen_in_its_own_fingerprint(
    tmp_path: Path, change: Callable[[Dataset], Dataset]
) -> None:
    dataset = make([2, 3, 4, 5] * 5)
    before, after = (both_halves(version, tmp_path)[1] for version in (dataset, change(dataset)))
    assert after.fingerprint != before.fingerprint


def test_replaced_test_images_reach_no_image_of_trainval(tmp_path: Path) -> None:
    def draw(root: Path, offset: int) -> TrainVal:
        for number in range(16):
            (root / f"{number:02}").mkdir(parents=True)
            for image in range(2):
                colour = (10 * number, 100 * image, offset if number >= 8 else 0)
                Image.new("RGB", (9, 7), colour).save(root / f"{number:02}" / f"{image}.png")
        return splits.of(load(f"folder:{root}"), PROTOCOL)[0]

    before, after = draw(tmp_path / "before", 0), draw(tmp_path / "after", 200)
    assert after.fingerprint == before.fingerprint
    assert (
        after.arrays(FirstStep("square", 8)).tobytes()
        == before.arrays(FirstStep("square", 8)).tobytes()
    )


def test_a_view_is_read_as_it_was_written(tmp_path: Path) -> None:
    trainval, _ = splits.of(make([2, 3] * 8), PROTOCOL)
    write_pack(tmp_path / "deep" / "view", trainval, NO_STEP)
    view = read_pack(tmp_path / "deep" / "view")
    assert view.x.dtype == np.float32
    assert (view.x == trainval.arrays(NO_STEP)).all()
    assert (view.y == trainval.y).all()
    assert view.inputs == 3


def test_a_view_of_images_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 28, 28), dtype=np.uint8)
    dataset = replace(make([2] * 16), modality="drawing", items=Drawings(pixels))
    trainval, _ = splits.of(dataset, PROTOCOL)
    write_pack(tmp_path / "view", trainval, FirstStep("square", 14))
    view = read_pack(tmp_path / "view")
    found = np.asarray(view.x[:])
    assert found.shape == (16, 14, 14, 1)
    assert found.dtype == np.uint8
    assert view.inputs == 1
    assert (found == trainval.arrays(FirstStep("square", 14))).all()


def test_a_view_holds_trainval_and_nothing_else(tmp_path: Path) -> None:
    dataset = make([2, 3] * 8)
    trainval, _ = splits.of(dataset, PROTOCOL)
    write_pack(tmp_path / "view", trainval, NO_STEP)
    assert sorted(path.name for path in (tmp_path / "view").iterdir()) == [
        "pack.json",
        "x.npy",
        "y.npy",
    ]
    view = read_pack(tmp_path / "view")
    hidden = dataset.items.arrays(np.flatnonzero(dataset.labels >= 8), NO_STEP)
    assert len(view.x) == len(view.y) == len(trainval.y)
    assert not (view.x[:, None] == hidden[None]).all(axis=2).any()


def test_a_view_cannot_be_written_to(tmp_path: Path) -> None:
    trainval, _ = splits.of(make([2] * 16), PROTOCOL)
    write_pack(tmp_path / "view", trainval, NO_STEP)
    view = read_pack(tmp_path / "view")
    with pytest.raises(ValueError, match="read-only"):
        view.x[0] = 0


def test_some_rows_of_a_view_keep_their_labels(tmp_path: Path) -> None:
    trainval, _ = splits.of(make([2] * 16), PROTOCOL)
    write_pack(tmp_path / "view", trainval, NO_STEP)
    view, chosen = read_pack(tmp_path / "view"), np.array([9, 4, 4])
    assert (view.rows(chosen).x == trainval.arrays(NO_STEP)[chosen]).all()
    assert (view.rows(chosen).y == trainval.y[chosen]).all()


def test_a_view_that_is_there_stays(tmp_path: Path) -> None:
    first, _ = splits.of(make([2] * 16, seed=0), PROTOCOL)
    second, _ = splits.of(make([2] * 16, seed=1), PROTOCOL)
    write_pack(tmp_path / "view", first, NO_STEP)
    write_pack(tmp_path / "view", second, NO_STEP)
    assert (read_pack(tmp_path / "view").x == first.arrays(NO_STEP)).all()


def test_a_view_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainval, _ = splits.of(make([2] * 16), PROTOCOL)
    monkeypatch.setattr(Features, "arrays", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_pack(tmp_path / "view", trainval, NO_STEP)
    assert list(tmp_path.iterdir()) == []


def test_no_view_is_written_of_a_sealed_half(tmp_path: Path) -> None:
    sealed: Any = splits.of(make([2] * 16), PROTOCOL)[1]
    with pytest.raises(AttributeError):
        write_pack(tmp_path / "view", sealed, NO_STEP)
    assert not (tmp_path / "view").exists()


def test_a_view_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "y.npy", np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="object"):
        read_pack(tmp_path)


def test_the_view_of_the_test_half_is_read_against_a_receipt_alone(tmp_path: Path) -> None:
    trainval, test = both_halves(make([2] * 16), tmp_path / "complete")
    write_pack(tmp_path / "view", test, NO_STEP)
    with pytest.raises(SealError, match="holds a test half"):
        read_pack(tmp_path / "view")
    view = read_test(
        tmp_path / "view", study(tmp_path / "complete", trainval).receipt(), trainval.fingerprint
    )
    assert (view.x == test.arrays(NO_STEP)).all()
    assert (view.y == test.y).all()


def test_without_a_valid_receipt_the_view_of_the_test_half_is_not_read(tmp_path: Path) -> None:
    trainval, test = both_halves(make([2] * 16), tmp_path / "complete")
    complete = study(tmp_path / "complete", trainval)
    write_pack(tmp_path / "view", test, NO_STEP)
    incomplete = study(tmp_path / "incomplete", trainval, COMPLETE - 1)
    receipts = [
        Receipt(str(complete.path), "0" * 64),
        Receipt(str(complete.path), complete.lines[1].hash),
        Receipt(str(incomplete.path), complete.receipt().hash),
        Receipt(str(incomplete.path), incomplete.lines[-1].hash),
    ]
    for receipt in receipts:
        with pytest.raises(SealError, match="does not support"):
            read_test(tmp_path / "view", receipt, trainval.fingerprint)
    nothing: Any = None
    with pytest.raises(AttributeError):
        read_test(tmp_path / "view", nothing, trainval.fingerprint)


def test_with_the_receipt_of_a_study_on_other_data_the_view_of_the_test_half_is_not_read(
    tmp_path: Path,
) -> None:
    trainval, test = both_halves(make([2] * 16), tmp_path)
    other, _ = splits.of(make([2] * 16, seed=1), PROTOCOL)
    write_pack(tmp_path / "view", test, NO_STEP)
    with pytest.raises(SealError, match="of a study on other data"):
        read_test(tmp_path / "view", study(tmp_path, other).receipt(), trainval.fingerprint)


def test_labels_are_numbered_anew_in_the_order_of_their_values() -> None:
    assert renumber([7, 3, 3, 100]).tolist() == [1, 0, 0, 2]
    assert renumber(np.array([2**62, 2**62 + 1])).tolist() == [0, 1]
