"""Pairs and triplets that a table lists: their columns, their folds, and training on them alone."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from assay.data import Dataset, load, load_without_broken, splits
from assay.data.packs import View, place_pack, read_pack
from assay.data.relations import Relations, group_classes
from assay.data.splits import folds_of_labels
from assay.data.survey import survey
from assay.errors import BadInput
from assay.methods import assemble, defaults, methods, source_of
from assay.methods.from_lists import why_not_listed
from assay.protocols import (
    Optimiser,
    Protocol,
    ResolvedProtocol,
    Supervision,
    protocols,
    resolve,
)
from assay.records.announced_data import AnnouncedRelations
from assay.records.run import Run
from assay.records.store import Store
from assay.records.study import study_records
from assay.run import train_on_all
from assay.run.closed_form import folds_of_run
from assay.run.training import make_trainee
from assay.study.bench import design_bench
from assay.study.conditions import Conditions
from assay.study.plan import plan
from assay.train import (
    Batches,
    Fit,
    HeadStack,
    OneNetwork,
    ResumeFile,
    can_stack,
    draw_lists,
    fit,
)
from assay.train.lists import lay_out
from assay.trunks import trunk_facts
from assay.verify.announced_again import check_announced
from assay.verify.designs import Designs
from heads import CPU, HERE, PROTOCOL, VIEW, place
from loops import for_each
from miniature import MINI, draw_class
from official import jpg, put, write_csv
from options import set_options
from refusals import refusal

Row = dict[str, Any]
kinds = pytest.mark.parametrize("kind", ["pairs", "triplets"])
KINDS: tuple[Supervision, ...] = ("pairs", "triplets")
QUICK = Protocol("p.v1", folds=2)


def relations(kind: Any, rows: Sequence[Sequence[int]]) -> Relations:
    return Relations(kind, np.array(rows, dtype=np.int64).reshape(-1, 3))


# --- Columns of a table ---


def name(label: int, image: int = 0) -> str:
    return f"photos/{label:02}-{image}.jpg"


def rows_of(classes: int = 16, images: int = 2) -> list[Row]:
    return [
        {"path": name(label, image), "label": label, "positive": "", "negative": ""}
        for label in range(classes)
        for image in range(images)
    ]


def table(folder: Path, rows: Sequence[Row], header: Sequence[str] = ()) -> Dataset:
    """Write a table with its images beside it, and load it."""
    for number, row in enumerate(rows):
        if not (folder / row["path"]).exists():
            put(folder / row["path"], jpg(number))
    columns = list(header or rows[0])
    cells = [[row[column] for column in columns] for row in rows]
    return load(f"table:{write_csv(folder / 'table.csv', columns, cells)}")


def named(dataset: Dataset) -> list[tuple[str, ...]]:
    """Return the names of the samples of each relation, and of a pair whether they go together."""
    given = dataset.relations
    assert given is not None
    names = [tuple(dataset.ids[row] for row in rows) for rows in given.samples.tolist()]
    if given.kind == "triplets":
        return names
    return [(*pair, str(same)) for pair, same in zip(names, given.rows[:, 2].tolist(), strict=True)]


def test_rows_that_name_both_are_triplets_and_the_first_goes_with_the_first(tmp_path: Path) -> None:
    rows = rows_of()
    rows[0] |= {"positive": f"{name(0, 1)}; {name(3)}", "negative": f"{name(1)};{name(1)}"}
    rows[5] |= {"positive": f"./{name(2)}", "negative": name(0)}
    dataset = table(tmp_path, rows)
    assert dataset.relations is not None and dataset.relations.kind == "triplets"
    assert named(dataset) == [
        (name(0), name(0, 1), name(1)),
        (name(0), name(3), name(1)),
        (name(2, 1), name(2), name(0)),
    ]
    assert dataset.metadata == {}


def test_rows_that_name_one_kind_are_pairs(tmp_path: Path) -> None:
    rows = rows_of()
    rows[0] |= {"positive": f"{name(0, 1)};{name(3)}"}
    rows[2] |= {"negative": name(0)}
    assert named(table(tmp_path, rows)) == [
        (name(0), name(0, 1), "1"),
        (name(0), name(3), "1"),
        (name(1), name(0), "0"),
    ]


def test_one_of_the_columns_is_enough_and_empty_ones_are_none(tmp_path: Path) -> None:
    rows = rows_of()
    assert table(tmp_path, rows).relations is None
    rows[0] |= {"positive": name(0, 1)}
    assert named(table(tmp_path, rows, ["path", "label", "positive"])) == [
        (name(0), name(0, 1), "1")
    ]


def test_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    rows = rows_of()
    for row, other in zip(rows[0:14:2], rows[1:14:2], strict=True):
        row |= {"positive": other["path"], "negative": name(0 if row["label"] else 5)}
    one, other = table(tmp_path, rows), table(tmp_path, rows[::-1])
    assert one.relations is not None and other.relations is not None
    assert one.relations.rows.tolist() == other.relations.rows.tolist()
    fingerprints = [splits.of(dataset, QUICK)[0].fingerprint for dataset in (one, other)]
    assert fingerprints[0] == fingerprints[1]


WRONG: dict[str, tuple[dict[int, Row], str]] = {
    "no such row": (
        {3: {"positive": "photos/99.jpg"}},
        "row 5 has 'photos/99.jpg' as its positive, which is the path of no row; write the path of"
        " another row, .* or rename the column",
    ),
    "outside": (
        {3: {"negative": f"../{name(0)}"}},
        "row 5 has '../photos/00-0.jpg' as its negative, which is the path of no row",
    ),
    "itself": (
        {3: {"negative": name(1, 1)}},
        "row 5 has itself, 'photos/01-1.jpg', as its negative; write the path of another row",
    ),
    "unequal numbers": (
        {3: {"positive": f"{name(0)};{name(1)}", "negative": name(2)}},
        "row 5 names 2 positives and 1 negatives; .* so name as many of each",
    ),
    "positive and negative": (
        {3: {"positive": name(0), "negative": name(0)}},
        "row 5 has 'photos/00-0.jpg' as positive and as its negative; name another",
    ),
    "a mix": (
        {0: {"positive": name(1), "negative": name(2)}, 3: {"negative": name(0)}},
        "row 5 names a negative and no positive, and row 2 names both; .* name a positive too, or"
        " empty the cell",
    ),
    "a pair that is both": (
        {0: {"positive": name(1, 1)}, 3: {"negative": name(0)}},
        "row 5 has 'photos/00-0.jpg' as its negative, and row 2 has the same two images as"
        " positive; remove one of the two",
    ),
}


@for_each("case", list(WRONG))
def test_what_cannot_be_meant_is_refused_with_row_value_and_remedy(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, (changed, message) = rows_of(), WRONG[case]
    for row, cells in changed.items():
        rows[row] |= cells
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.raises(BadInput, match=message):
        table(folder, rows)


def test_what_names_the_test_half_is_left_out_and_counted_without_being_announced(
    tmp_path: Path,
) -> None:
    """16 classes: 8 to 15 are the test half."""
    rows = rows_of()
    rows[0] |= {"positive": name(0, 1), "negative": name(7)}
    rows[2] |= {"positive": name(1, 1), "negative": name(8)}
    rows[20] |= {"positive": name(10, 1), "negative": name(0)}
    dataset = table(tmp_path, rows)
    trainval, test = splits.of(dataset, QUICK)
    assert trainval.relations is not None
    assert trainval.relations.rows.tolist() == [[0, 1, 14]]
    note = "2 of 3 triplets left out, with samples of the test half"
    assert dataset.notes == (note,) and test.left_out == (note,) and dataset.left_out == ()
    without = table(tmp_path, [row | {"negative": "", "positive": ""} for row in rows])
    assert splits.of(without, QUICK)[1].fingerprint == test.fingerprint
    assert splits.of(without, QUICK)[0].fingerprint != trainval.fingerprint
    rows[2] |= {"positive": "", "negative": ""}
    rows[20] |= {"positive": "", "negative": ""}
    alone, _ = splits.of(table(tmp_path, rows), QUICK)
    assert alone.fingerprint == trainval.fingerprint
    assert survey(dataset).listed == survey(dataset).listed.__class__("triplets", 3, 1)


def test_a_split_column_decides_which_half_a_row_is_in(tmp_path: Path) -> None:
    rows = [row | {"split": "test" if row["label"] < 4 else "train"} for row in rows_of()]
    rows[0] |= {"positive": name(0, 1), "negative": name(15)}
    rows[30] |= {"positive": name(15, 1), "negative": name(4)}
    trainval, _ = splits.of(table(tmp_path, rows), QUICK)
    assert trainval.relations is not None
    [row] = trainval.relations.rows.tolist()
    assert [trainval.ids[place] for place in row] == [name(15), name(15, 1), name(4)]


def test_relations_of_broken_images_go_with_them(tmp_path: Path) -> None:
    rows = rows_of(images=3)
    rows[0] |= {"positive": name(0, 1), "negative": name(7)}
    rows[1] |= {"positive": name(0, 2), "negative": name(7)}
    rows[6] |= {"positive": name(2, 1), "negative": name(9)}
    table(tmp_path, rows)
    put(tmp_path / name(0), b"no image")
    dataset = load_without_broken(f"table:{tmp_path / 'table.csv'}")
    assert named(dataset) == [
        (name(0, 1), name(0, 2), name(7)),
        (name(2), name(2, 1), name(9)),
    ]
    assert dataset.notes[-2:] == (
        "1 triplet with broken images left out",
        "1 of 2 triplets left out, with samples of the test half",
    )


def test_data_show_counts_what_is_listed(tmp_path: Path, assay: Callable[..., Any]) -> None:
    rows = rows_of()
    rows[0] |= {"positive": name(3)}
    rows[4] |= {"negative": name(12)}
    table(tmp_path, rows)
    words = ["data", "show", f"table:{tmp_path / 'table.csv'}", "--set", "folds=2"]
    code, out, _ = assay(*words)
    assert code == 0
    assert "pairs        2, 1 within trainval" in out
    assert "1 of 1 positives in trainval join two classes" in out
    assert json.loads(assay(*words, "--json")[1])["listed"] == {
        "kind": "pairs",
        "count": 2,
        "in_trainval": 1,
    }


# --- Folds ---


@given(
    classes=st.integers(4, 20),
    count=st.integers(2, 4),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(KINDS),
)
def test_without_positives_that_join_classes_folds_are_runs_of_classes(
    classes: int, count: int, seed: int, kind: Any
) -> None:
    """The law of every other data set, for none, for negatives, and for positives of one class."""
    draw = np.random.default_rng(seed)
    y = np.sort(np.concatenate([np.arange(classes), draw.integers(0, classes, 20)]))
    anchors, others = draw.integers(0, len(y), 30), draw.integers(0, len(y), 30)
    own = np.array([draw.choice(np.flatnonzero(y == label)) for label in y[anchors]])
    given_ = {
        "triplets": relations("triplets", np.stack([anchors, own, others], axis=1)),
        "pairs": relations("pairs", np.stack([anchors, others, np.zeros(30, int)], axis=1)),
    }[kind]
    runs = np.array_split(np.arange(classes), count)
    for listed in (None, given_):
        for fold, run in zip(folds_of_labels(y, count, listed), runs, strict=True):
            assert fold.validation.tolist() == [i for i in range(len(y)) if y[i] in run]
            assert fold.train.tolist() == [i for i in range(len(y)) if y[i] not in run]


def connected(classes: int, joined: Sequence[tuple[int, int]]) -> list[set[int]]:
    """Return classes that can be reached from each other, by the first of each."""
    reached = []
    for start in range(classes):
        found, before = {start}, set()
        while found != before:
            before = set(found)
            found |= {b for a, b in joined if a in found} | {a for a, b in joined if b in found}
        reached.append(found)
    return [group for label, group in enumerate(reached) if min(group) == label]


@given(
    joined=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=15),
    kind=st.sampled_from(KINDS),
)
def test_classes_that_positives_reach_are_one_group(
    joined: list[tuple[int, int]], kind: Any
) -> None:
    y = np.repeat(np.arange(12), 2)
    third = 1 if kind == "pairs" else 23
    listed = relations(kind, [[2 * a, 2 * b + 1, third] for a, b in joined])
    found = group_classes(y, listed)
    expected = connected(12, joined)
    assert [set(np.flatnonzero(found == g).tolist()) for g in range(len(expected))] == expected


@kinds
def test_a_chain_of_positives_puts_two_classes_into_one_fold(kind: str) -> None:
    """Classes 3 and 7 are joined by way of class 5, which no list names with both."""
    y = np.repeat(np.arange(12), 3)
    third = 1 if kind == "pairs" else 35
    listed = relations(kind, [[9, 15, third], [16, 21, third]])
    validated = [set(y[fold.validation].tolist()) for fold in folds_of_labels(y, 4, listed)]
    assert validated == [{0, 1, 2}, {3, 5, 7, 4, 6}, {8, 9}, {10, 11}]
    assert [set(y[fold.validation].tolist()) for fold in folds_of_labels(y, 4)][2] == {6, 7, 8}


@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS))
def test_no_fold_trains_on_a_sample_that_it_validates(seed: int, kind: Any) -> None:
    draw = np.random.default_rng(seed)
    y = np.repeat(np.arange(16), 3)
    rows = draw.integers(0, 48, (40, 3))
    rows[:, 1] = np.where(draw.random(40) < 0.9, rows[:, 0] // 3 * 3 + rows[:, 1] % 3, rows[:, 1])
    if kind == "pairs":
        rows[:, 2] %= 2
    listed = relations(kind, rows)
    for fold in folds_of_labels(y, 3, listed):
        own, held = listed.within(fold.train), set(fold.validation.tolist())
        kept = [row for row in listed.samples.tolist() if not held & set(row)]
        assert fold.train[own.samples].tolist() == kept
        joined = y[listed.positives]
        assert (np.isin(joined[:, 0], y[fold.train]) == np.isin(joined[:, 1], y[fold.train])).all()


def test_positives_that_join_too_many_classes_are_refused(tmp_path: Path) -> None:
    rows = rows_of()
    for label in range(5):
        rows[2 * label] |= {"positive": name(label + 1)}
    with pytest.raises(BadInput, match=r"join the 8 classes of trainval to 3 groups.* at least 4"):
        splits.of(table(tmp_path, rows), QUICK)


# --- Packs ---


@kinds
def test_a_pack_keeps_the_list_under_its_hash(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    rows = rows_of()
    rows[0] |= {"positive": name(0, 1), "negative": name(7) if kind == "triplets" else ""}
    trainval, test = splits.of(table(tmp_path, rows), QUICK)
    protocol = resolve(QUICK, "photo", trunk_facts)
    folder = place_pack(trainval, protocol.first_step)
    view = read_pack(folder)
    assert view.relations is not None and trainval.relations is not None
    assert (view.relations.kind, view.relations.rows.tolist()) == (
        kind,
        trainval.relations.rows.tolist(),
    )
    test.pack(protocol.first_step)
    assert len(list((tmp_path / "cache" / "packs").glob(f"*/{kind}.npy"))) == 1
    np.save(folder / f"{kind}.npy", view.relations.rows[:0])
    with pytest.raises(BadInput, match="is not the pack that was written there"):
        read_pack(folder)


@kinds
def test_every_task_cuts_the_folds_that_the_data_set_has(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes 1 and 6 of 8 are joined, which labels alone would put into two folds."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    rows, protocol = rows_of(), under(kind, resolve(QUICK, "photo", trunk_facts))
    rows[2] |= {"positive": name(6), "negative": name(7) if kind == "triplets" else ""}
    trainval, _ = splits.of(table(tmp_path, rows), QUICK)
    view = read_pack(place_pack(trainval, protocol.first_step))
    expected = splits.folds(trainval, 2)
    assert [np.unique(view.y[fold.validation]).tolist() for fold in expected] == [
        [0, 1, 2, 3, 6],
        [4, 5, 7],
    ]
    for number, fold in enumerate(expected):
        run = run_of("contrastive", kind, number, protocol)
        [own] = folds_of_run(run, view)
        trainee = make_trainee(run, view)
        assert own.train.tolist() == fold.train.tolist() == trainee.train.tolist()
        assert own.validation.tolist() == fold.validation.tolist()
        assert trainee.validation.y.tolist() == view.y[fold.validation].tolist()


def test_a_pack_of_features_keeps_the_list_too(tmp_path: Path) -> None:
    view = listed_view("triplets")
    place(tmp_path / "pack", view)
    found = read_pack(tmp_path / "pack").relations
    assert found is not None and view.relations is not None
    assert (found.kind, found.rows.tolist()) == ("triplets", view.relations.rows.tolist())


def test_a_pack_without_a_list_has_none(tmp_path: Path) -> None:
    place(tmp_path / "pack", VIEW)
    assert read_pack(tmp_path / "pack").relations is None


# --- Batches ---


@given(
    count=st.integers(1, 30),
    size=st.integers(1, 12),
    seed=st.integers(0, 99),
    skip=st.integers(0, 9),
)
def test_all_are_drawn_once_before_any_is_drawn_again(
    count: int, size: int, seed: int, skip: int
) -> None:
    listed = relations("triplets", [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(count)])
    batches = list(islice(draw_lists(listed, size, seed), 20))
    drawn = [row for batch in batches for row in batch.rows[:size].tolist()]
    for start in range(0, len(drawn) - count + 1, count):
        assert len(set(drawn[start : start + count])) == count
    later = list(islice(draw_lists(listed, size, seed, skip), 20 - skip))
    assert [batch.rows.tolist() for batch in later] == [b.rows.tolist() for b in batches[skip:]]


def test_batches_differ_from_seed_to_seed() -> None:
    listed = relations("pairs", [[i, i + 1, 1] for i in range(40)])
    assert {
        tuple(next(draw_lists(listed, 9, seed)).rows.tolist()) for seed in range(5)
    }.__len__() == 5


@kinds
def test_labels_agree_in_positive_pairs_alone(kind: str) -> None:
    rows = (
        [[5, 6, 1], [5, 6, 1], [6, 7, 0]] if kind == "pairs" else [[5, 6, 7], [6, 5, 8], [5, 8, 6]]
    )
    listed = relations(kind, rows)
    drawn = lay_out(listed, np.array([2, 0, 1, 0]))
    parts = drawn.rows.reshape(-1, 4).T.tolist()
    assert parts == [listed.samples[i].tolist() for i in (2, 0, 1, 0)]
    agree = {
        (i, j)
        for i in range(len(drawn.labels))
        for j in range(i)
        if drawn.labels[i] == drawn.labels[j]
    }
    assert agree == (
        {(5, 1), (6, 2), (7, 3)} if kind == "pairs" else {(4 + i, i) for i in range(4)}
    )


# --- Training ---


def listed_view(kind: str, classes: int = 16, per_class: int = 6) -> View:
    """Lists within classes and across neighbouring ones, so that some cross folds."""
    draw, y = np.random.default_rng(3), VIEW.y
    found: list[list[int]] = []
    for row in range(len(y)):
        own = draw.choice(np.flatnonzero((y == y[row]) & (np.arange(len(y)) != row)))
        other = draw.choice(np.flatnonzero(np.abs(y - y[row]) == 1))
        if kind == "triplets":
            found.append([row, own, other])
        else:
            found.append([row, own, 1] if row % 2 else [row, other, 0])
    return replace(VIEW, relations=relations(kind, found))


def under(kind: Any, protocol: ResolvedProtocol = PROTOCOL) -> ResolvedProtocol:
    return replace(protocol, supervision=kind)


def run_of(
    method: str, kind: Any, fold: int = 0, protocol: ResolvedProtocol = PROTOCOL, seed: int = 7
) -> Run:
    own = under(kind, protocol)
    batch = own.batch_for(methods[method].batch, 12)
    parameters = defaults(methods[method], own)
    return Run(own, "view", method, "source", parameters, batch, fold, seed, HERE)


def alone(run: Run, view: View, resume_file: ResumeFile | None = None) -> Fit:
    stepper = OneNetwork(run.protocol, run.batch, CPU)
    return fit([make_trainee(run, view)], stepper, resume_file)[0]


def bytes_of(found: Fit) -> bytes:
    return b"".join(weight.numpy().tobytes() for weight in found.weights.values())


def suited(kind: Supervision, name: str) -> bool:
    own = under(kind)
    return (
        not methods[name].baseline
        and why_not_listed(methods[name], own, defaults(methods[name], own)) is None
    )


OURS = [name for name in methods if methods.origin(name).startswith("assay.")]
SUITED = {kind: [name for name in OURS if suited(kind, name)] for kind in KINDS}


@for_each("kind,method", [(kind, name) for kind in KINDS for name in SUITED[kind]])
def test_labels_of_training_samples_change_no_weight(kind: Supervision, method: str) -> None:
    """Neither do images that no list names."""
    view, run = listed_view(kind), run_of(method, kind)
    listed = view.relations
    assert listed is not None
    few = Relations(listed.kind, listed.rows[listed.rows[:, 0] < 60])
    view, x = replace(view, relations=few), view.x.copy()  # type: ignore[union-attr]
    unnamed = np.setdiff1d(np.arange(len(x)), few.samples)
    assert len(unnamed) > 20
    x[unnamed] = 99.0
    shuffled = np.random.default_rng(1).permutation(view.y)
    assert len(set(make_trainee(run, view).y.tolist())) == len(make_trainee(run, view).train)
    found = {
        bytes_of(train_on_all(run, one, 1, 10)[1])
        for one in (view, replace(view, y=shuffled), replace(view, x=x, y=np.zeros_like(view.y)))
    }
    assert len(found) == 1


@for_each("kind,method", [("pairs", "contrastive"), ("triplets", "triplet")])
def test_validation_samples_change_no_weight(kind: Supervision, method: str) -> None:
    """Trained on all folds but one; the held-out vectors are replaced, checkpoint by checkpoint."""
    view = listed_view(kind)
    for fold in range(4):
        run = run_of(method, kind, fold)
        held = folds_of_labels(view.y, 4, view.relations)[fold].validation
        x = view.x.copy()  # type: ignore[union-attr]
        x[held] = np.random.default_rng(fold).normal(size=x[held].shape)
        weights = []
        for one in (view, replace(view, x=x)):
            kept: list[bytes] = []

            def keep(epoch: int, state: dict[str, Any], kept: list[bytes] = kept) -> None:
                kept.append(state["head.weight"].numpy().tobytes())

            trainee = replace(make_trainee(run, one), on_validation=keep)
            fit([trainee], OneNetwork(run.protocol, run.batch, CPU))
            weights.append(kept)
        assert len(weights[0]) == 3 and weights[0] == weights[1]
        assert not {*trainee.train[trainee.listed.samples].ravel().tolist()} & {*held.tolist()}  # type: ignore[union-attr]


def loop_loss(method: str, u: torch.Tensor, batch: list[list[int]], kind: str) -> torch.Tensor:
    """The equations, one listed pair or triplet at a time, at the defaults of their parameters."""

    def far(a: int, b: int) -> torch.Tensor:
        return (u[a] - u[b]).norm()

    if method == "triplet":
        terms = [far(a, p) - far(a, n) + 0.1 for a, p, n in batch]
        active = [term for term in terms if term > 0]
        return sum(active, torch.zeros(())) / max(1, len(active))
    if kind == "triplets":
        pulls = [far(a, p) for a, p, _ in batch]
        pushes = [0.5 - far(a, n) for a, _, n in batch]
    else:
        pulls = [far(a, b) for a, b, same in batch if same]
        pushes = [0.5 - far(a, b) for a, b, same in batch if not same]
    value = torch.zeros(())
    for terms in (pulls, pushes):
        active = [term for term in terms if term > 0]
        value = value + sum(active, torch.zeros(())) / max(1, len(active))
    return value


@pytest.mark.parametrize(
    ("method", "kind"),
    [("contrastive", "pairs"), ("contrastive", "triplets"), ("triplet", "triplets")],
)
def test_a_step_is_that_of_the_equation_over_the_listed_ones(method: str, kind: Any) -> None:
    """One step of plain gradient descent, compared with a loop over what was drawn."""
    optimiser = Optimiser(lr=0.5, momentum=0.0, weight_decay=0.0, kind="sgd")
    protocol = replace(PROTOCOL, optimiser=replace(PROTOCOL.optimiser, **vars(optimiser)))
    run, view = run_of(method, kind, protocol=protocol), listed_view(kind)
    trainee = make_trainee(run, view)
    drawn = Batches(trainee, trainee.model, run.protocol, run.batch, CPU).draw()
    size = {"pairs": 2, "triplets": 3}[kind]
    rows = drawn.rows.reshape(size, -1).T.tolist()
    assert run.batch == (24 // size, size) and len(rows) == 24 // size
    assert trainee.listed is not None
    if kind == "pairs":
        same = {(a, b): int(s) for a, b, s in trainee.listed.rows.tolist()}
        rows = [[a, b, same[a, b]] for a, b in rows]
    head = trainee.model.head
    weight, bias = (head.get_parameter(n).detach().clone() for n in ("weight", "bias"))
    weight.requires_grad_()
    bias.requires_grad_()
    x = torch.from_numpy(view.x[trainee.train])  # type: ignore[index]
    u = torch.nn.functional.normalize(x @ weight.T + bias, dim=1)
    slopes = torch.autograd.grad(loop_loss(method, u, rows, kind), (weight, bias))
    assert slopes[0].norm() > 0.01
    stepper = OneNetwork(run.protocol, run.batch, CPU)
    stepper.open(1, 1)
    stepper.add(0, trainee, 0)
    stepper.step({0: drawn})
    for found, before, slope in zip(("weight", "bias"), (weight, bias), slopes, strict=True):
        expected = before.detach() - 0.5 * slope
        torch.testing.assert_close(head.get_parameter(found).detach(), expected, atol=1e-5, rtol=0)


@kinds
def test_every_pair_and_triplet_is_trained_on_once_in_a_pass(kind: Any) -> None:
    view, run = listed_view(kind), run_of("contrastive", kind)
    trainee = make_trainee(run, view)
    assert trainee.listed is not None
    count, size = len(trainee.listed), trainee.listed.samples.shape[1]
    batches = Batches(trainee, trainee.model, run.protocol, run.batch, CPU)
    drawn: Counter[tuple[int, ...]] = Counter()
    for _ in range(math.lcm(count, run.batch[0]) // run.batch[0]):
        drawn.update(map(tuple, batches.draw().rows.reshape(size, -1).T.tolist()))
    assert set(drawn.values()) == {math.lcm(count, run.batch[0]) // count}
    assert {*drawn} == {*map(tuple, trainee.listed.samples.tolist())}


class Killed(BaseException):
    """A kill of the process."""


@kinds
def test_a_training_that_is_killed_goes_on_in_the_middle_of_the_list(
    kind: Any, tmp_path: Path
) -> None:
    """72 samples, 4 steps an epoch: the kill comes when part of the list was drawn."""
    run, view = run_of("contrastive", kind, protocol=replace(PROTOCOL, epochs=4)), listed_view(kind)
    expected = alone(run, view)

    def kill(epoch: int, loss: float, checkpoint: object) -> None:
        if epoch == 2:
            raise Killed

    path = tmp_path / "state.safetensors"
    stepper = OneNetwork(run.protocol, run.batch, CPU)
    with pytest.raises(Killed):
        fit(
            [replace(make_trainee(run, view), on_epoch=kill)],
            stepper,
            ResumeFile(path, "key", after=0),
        )
    again = alone(run, view, ResumeFile(path, "key", after=0))
    assert again.history == expected.history and bytes_of(again) == bytes_of(expected)


@for_each("kind,method", [(kind, name) for kind in KINDS for name in SUITED[kind]])
def test_a_stack_learns_what_heads_learn_alone(kind: Supervision, method: str) -> None:
    runs, view = [run_of(method, kind, fold) for fold in range(4)], listed_view(kind)
    trainees = [make_trainee(run, view) for run in runs]
    assert can_stack(trainees[0], CPU)
    found = fit(trainees, HeadStack(trainees[0], runs[0].protocol, runs[0].batch))
    for run, one in zip(runs, found, strict=True):
        expected = alone(run, view)
        for name_, weight in expected.weights.items():
            torch.testing.assert_close(one.weights[name_], weight, atol=1e-4, rtol=1e-3)


# --- Methods ---


REFUSED = {
    "arcface": "compares samples with classes",
    "prototypical": "compares all samples of a batch",
    "triplet_semihard": r"mines by itself \(semihard\)",
    "contrastive_sampled": r"mines by itself \(random\)",
    "margin_per_class": "keeps something for each class",
    "n_pairs": "compares samples that are not listed together",
    "quadruplet": "compares (samples that are not listed together|triplets)",
}


@for_each("kind,method", [(kind, name) for kind in KINDS for name in REFUSED])
def test_methods_that_compare_anything_else_are_not_trained_so(kind: Any, method: str) -> None:
    own = under(kind)
    reason = why_not_listed(methods[method], own, defaults(methods[method], own))
    assert reason is not None and re.search(REFUSED[method], reason)


def test_losses_of_triplets_and_of_both_kinds_at_once_need_triplets() -> None:
    assert why_not_listed(methods["triplet"], under("pairs"), {}) == "compares triplets"
    assert why_not_listed(methods["nt_xent"], under("pairs"), {}) == (
        "learns nothing from single pairs"
    )
    assert {"triplet", "nt_xent", "margin", "contrastive"} <= set(SUITED["triplets"])
    assert {"contrastive", "multi_similarity"} <= set(SUITED["pairs"]) < set(SUITED["triplets"])


@for_each("kind,method", [(kind, name) for kind in KINDS for name in SUITED[kind]])
def test_order_of_the_lists_in_a_batch_does_not_matter(kind: Any, method: str) -> None:
    own, size, count = under(kind), {"pairs": 2, "triplets": 3}[kind], 6
    built = assemble(methods[method], defaults(methods[method], own), own)
    built.loss.setup(6, 4)
    rows = [[3 * i, 3 * i + 1, i % 2 if size == 2 else 3 * i + 2] for i in range(count)]
    vectors = torch.randn(3 * count, 6)
    values = []
    for order in (np.arange(count), np.array([5, 3, 0, 1, 4, 2])):
        drawn = lay_out(relations(kind, rows), order)
        z, y = vectors[torch.from_numpy(drawn.rows)], torch.from_numpy(drawn.labels)
        assert built.miner is not None
        values.append(built.loss(z, y, built.miner(z, y)))
    torch.testing.assert_close(values[0], values[1])


def test_the_miner_of_lists_is_part_of_what_a_run_is_keyed_by() -> None:
    sources = {source_of(methods["contrastive"], under(k)) for k in ("classes", *KINDS)}
    assert len(sources) == 2  # both miners are in one module


# --- A bench ---


LABELS, IMAGES = 18, 4


def make_images(folder: Path, kind: str, labels: int = LABELS) -> Path:
    """Write a table of stripes with lists: each image goes with the next of its class."""
    draw = np.random.default_rng(0)
    rows = []
    for label in range(labels):
        for image in range(IMAGES):
            path = folder / "images" / f"{label:02}-{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_class(label, draw)).save(path)
            near = f"images/{label:02}-{(image + 1) % IMAGES}.png"
            far = f"images/{(label + 1 + image) % labels:02}-{image}.png"
            positive = near if kind == "triplets" or image % 2 else ""
            negative = far if kind == "triplets" or not image % 2 else ""
            rows.append([f"images/{path.name}", label, positive, negative])
    return write_csv(folder / "table.csv", ["path", "label", "positive", "negative"], rows)


@kinds
def test_a_bench_on_lists_says_so_and_is_verified_on_the_data(
    kind: str, tmp_path: Path, assay: Callable[..., Any]
) -> None:
    data, store = f"table:{make_images(tmp_path, kind)}", tmp_path / "store"
    chosen = "contrastive,triplet" if kind == "triplets" else "contrastive,multi_similarity"
    settings = set_options((*MINI, f"supervision={kind}"))
    code, *said = assay(
        "bench", "--data", data, "--out", store, "--methods", chosen, "--engine", "inline",
        *settings,
    )  # fmt: skip
    assert code == 0, said
    listed = Conditions.open(load(data), replace(QUICK), "cpu").listed
    assert listed is not None and listed.kind == kind
    assert listed.in_words in "".join(said)
    assert all(0 < trained < listed.count < LABELS * IMAGES for trained in listed.in_training)
    report = (store / "report" / "index.html").read_text()
    assert f"only listed {kind} were compared" in report
    assert f"of {listed.count} {kind}; the others name samples that it validates on" in report
    code, *said = assay("verify", store, "--data", data, "--rerun", "2")
    assert code == 0, said
    with Designs.in_empty_cache(data) as designs:
        record = next(one for one in study_records(Store(store)) if one.method == "contrastive")
        design, exact = designs.announced(record)
        assert exact and check_announced(record, design, named=True).problem == ""
        forged = replace(record.announced.data, relations=replace(listed, count=listed.count + 1))
        record = replace(record, announced=replace(record.announced, data=forged))
        assert "data.relations is" in check_announced(record, design, named=True).problem
    code, *said = assay(
        "train", "--data", data, "--method", "contrastive", "--out", tmp_path / "m", *settings
    )
    assert code == 0, said
    words = ["--data", data, "--method", "contrastive", "--out", tmp_path / "final"]
    code, *said = assay("train", *words, "--final", store)
    assert code == 2 and f"trained on listed {kind}" in "".join(said)
    (tmp_path / "table.csv").write_text(
        (tmp_path / "table.csv")
        .read_text()
        .replace("images/00-1.png,0,images/00-2.png", "images/00-1.png,0,images/00-3.png")
    )
    code, *said = assay("verify", store, "--data", data)
    assert code != 0 and "is not the data" in "".join(said)


def test_data_without_such_a_list_are_refused_before_anything_begins(
    tmp_path: Path, assay: Callable[..., Any]
) -> None:
    data, store = f"table:{make_images(tmp_path, 'triplets')}", tmp_path / "store"
    words = ["bench", "--data", data, "--out", store, "--engine", "inline", "--methods"]
    for wanted, told, method in (
        (r"lists triplets; use --set supervision=triplets", "pairs", "contrastive"),
        ("arcface compares samples with classes", "triplets", "triplet,arcface"),
    ):
        code, *said = assay(*words, method, *set_options((*MINI, f"supervision={told}")))
        assert code == 2 and wanted in "".join(said)
    words[2] = "glyphs"
    code, *said = assay(*words, "contrastive", *set_options((*MINI, "supervision=pairs")))
    assert code == 2 and "glyphs lists no pairs in trainval; give a table:" in "".join(said)
    assert not store.exists()


def test_an_announcement_counts_what_the_folds_of_its_own_protocol_train_on(tmp_path: Path) -> None:
    """A sweep has the conditions of its first value, under another protocol."""
    data = load(f"table:{make_images(tmp_path, 'triplets')}")
    conditions = Conditions.open(data, QUICK, "cpu")
    swept = replace(conditions, protocol=replace(QUICK, folds=3))
    afresh = Conditions.open(data, replace(QUICK, folds=3), "cpu")
    found = swept.announced_data.relations
    assert found is not None and len(found.in_training) == 3
    assert swept.announced_data == afresh.announced_data != conditions.announced_data


def test_lists_that_are_not_trained_on_are_reported_with_the_setting(tmp_path: Path) -> None:
    conditions = Conditions.open(load(f"table:{make_images(tmp_path, 'triplets')}"), QUICK, "cpu")
    said: list[str] = []
    conditions.check_data(lambda _, text: said.append(text), allow_leaks=True)
    assert any("--set supervision=triplets trains on them" in text for text in said)


def test_all_methods_are_those_that_can_be_trained_so(tmp_path: Path) -> None:
    dataset = load(f"table:{make_images(tmp_path, 'triplets')}")
    protocol = replace(protocols["quick"], name="p.v1", folds=2, size=16, supervision="triplets")
    designs = design_bench(dataset, ["all"], protocol, "cpu", ())
    trained = {design.name: design.batch for design in designs if not design.method.baseline}
    assert set(trained) == set(SUITED["triplets"]) and set(trained.values()) == {(10, 3)}
    assert not any(design.preregistration.method.batch_shrunk for design in designs)
    planned = plan(designs, workers=1)
    assert planned.batch["triplet"] == (10, 3) and planned.seconds > 0


@for_each("case", ["one kind", "nothing left", "sampler"])
def test_lists_that_cannot_be_trained_on_are_refused(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, rows = tmp_path_factory.mktemp("lists"), rows_of()
    protocol = replace(QUICK, supervision="pairs")
    if case == "one kind":
        for row, other in zip(rows[::2], rows[1::2], strict=True):
            row |= {"positive": other["path"]}
        wanted = "all 4 pairs that are trained on while fold 0 is validated are positives"
    elif case == "nothing left":
        rows[0] |= {"negative": name(7)}
        wanted = "lists 1 pair, of which each names a sample of fold 0"
    else:
        rows[0] |= {"negative": name(1), "positive": ""}
        protocol = replace(protocol, sampler="other")
        wanted = "--set sampler=other: under supervision=pairs batches are drawn from the list"
    said = refusal(
        case,
        lambda: (
            resolve(protocol, "photo", trunk_facts)
            if case == "sampler"
            else Conditions.open(table(folder, rows), protocol, "cpu").check_listed()
        ),
    )
    assert wanted in said


def test_an_announcement_without_lists_is_what_it_was() -> None:
    dataset = load("glyphs")
    conditions = Conditions.open(dataset, Protocol("p.v1"), "cpu")
    assert "relations" not in conditions.announced_data.to_json()
    assert AnnouncedRelations("pairs", 5, (5, 5)).in_words == "a fold trains on 5 of 5 pairs"
