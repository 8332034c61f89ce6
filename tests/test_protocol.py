"""Protocols: frozen, fingerprinted, customised by typed and checked settings, resolved by the
modality of the data.
"""

import dataclasses
import json
import pickle
import subprocess
import sys
import typing
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.hashing import canonical, digest
from assay.protocols import (
    SAME_FOR_ALL,
    Augment,
    Batch,
    BatchKind,
    FirstStep,
    Frozen,
    ImageForm,
    Modality,
    Optimiser,
    Pooling,
    Protocol,
    Resize,
    ResolvedAugment,
    ResolvedBatch,
    ResolvedProtocol,
    Search,
    SettingValue,
    TrunkFacts,
    as_text,
    customise,
    protocols,
    resolve,
    with_settings,
)
from assay.protocols.protocol import read_given
from assay.protocols.quick import QUICK, QUICK_V2
from assay.registry import UnknownName
from assay.space import Real, Space
from assay.study.bench import design_bench
from assay.trunks import find, trunk_facts, weights
from miniature import resolved

GOLDEN = {
    "quick.v1": "4c68a00f519ba2e78032d18e992272d9a2c6ff9b0e40c78a1f8c60cadce93fa0",
    "quick.v2": "64c2527e7928b2a31739b951632f6521f4b610670a130dfd7b71e823f9127ec2",
    "reality-check/cub.v1": "960fffb9bd5c3a038a60a0f9f5b6ad64eb4f65f565dcaeb97aefb14b338f0dea",
    "reality-check/cars.v1": "6e58013c958a6812f6b9d5d19a2a2c111383d01232cb549e69a1a5388791c492",
    "reality-check/sop.v1": "20c9df122e70ffc0e275eb7f8dd0173c3f973bcb1e4306b9ec724f2a2c8b55cd",
    "reality-check/any.v1": "960fffb9bd5c3a038a60a0f9f5b6ad64eb4f65f565dcaeb97aefb14b338f0dea",
    "reality-check/cub.v2": "c20e1d29c05aa79889f0223583a762db491a4af361100f2bb01fbb61a54edb93",
    "reality-check/cars.v2": "3984e49292a929e70015e0b34d2293e334b67d08e4a80e3e7278789b3decf44b",
    "reality-check/sop.v2": "81f9dc8204453c24f4a8d83df6897766602bb47bac5dd4ebf9581bf897296bbb",
    "reality-check/any.v2": "c20e1d29c05aa79889f0223583a762db491a4af361100f2bb01fbb61a54edb93",
    "reality-check/cub-256.v1": "52479cee33e35211e0c317ec4da20574c98ed8acceaa8c2d5cd4423a8fadd881",
    "unbiased/inception-bn.v1": "47ace6d1e8282db8207ea3e673d9327732259934a28062ec08e5b23633f87106",
    "unbiased/resnet50.v1": "5c1464e7480e4d7ef88eb84d18dd6ddcbcd8249acffd097756d2cbcab3481d49",
    "unbiased/inception-bn.v2": "851ce47672bb216ebdbc34b2695bb0afd055fee5fe48531b8c69964d721206f0",
    "unbiased/resnet50.v2": "0ca92c2e2fb4a4383b02592ea442fa0344cc8b834901039b60e13e377065e47e",
    "unbiased/inception-bn.v3": "7de0ae10b1c91eae475c538d3dc748fe26b591cf4750b8371532fc4b98a7432c",
    "unbiased/resnet50.v3": "e7314f1d71d57a9a71d8fe28a845a306c19952fc8aa981bd60d9d92c381cb933",
    "revisiting/cub.v1": "66c8053db650b061c181f8b79dc39ecd325481c8f8705f84872af3508a53bb6f",
    "revisiting/cars.v1": "66c8053db650b061c181f8b79dc39ecd325481c8f8705f84872af3508a53bb6f",
    "revisiting/sop.v1": "1230c65914b7800f8f067f8b74f26f34d3bdebcb4adf80186d9d4a50c2ec58ba",
    "revisiting/any.v1": "66c8053db650b061c181f8b79dc39ecd325481c8f8705f84872af3508a53bb6f",
    "revisiting/cub.v2": "c72865d391fd92866da6f62162aa0f5bc736eaee9b52e3769e4292b2fda4ad6e",
    "revisiting/cars.v2": "1d4eb2cc4f8f49f1b44f358af231808390ba40340267ef1b4e75e6448233119b",
    "revisiting/sop.v2": "8924ddb90e627b0634ea6f920c19b7642ac42f539f7f68114100dee71074a4d7",
    "revisiting/any.v2": "c72865d391fd92866da6f62162aa0f5bc736eaee9b52e3769e4292b2fda4ad6e",
}
"""A published protocol is never edited: a change is a new version in its name, and a new line here.
"""

RESOLVED_QUICK_V2 = {
    "drawing": "45520adfbb8b657ffc43edfb142beb3f302dacb05cd75192d6271c8178aee570",
    "photo": "d95b5445dd6421e339af990fa9ae9a4d5c3cac9cb3403f299732e44d276ae98a",
    "features": "12d2dc92258c9a89be17ae2898de798e730995a4f7d6cdbea307d91f756aab62",
}
"""What the settings of `quick.v2` become that are `auto`: they are as much a part of it, and never
edited either.
"""

KINDS = typing.get_args(BatchKind)
MODALITIES = typing.get_args(Modality)
BASE = Protocol("base.v1")
OTHER: dict[str, Any] = {
    "trunk": "conv",
    "weights": "none",
    "frozen": "batchnorm",
    "pooling": "gem",
    "layer_norm": True,
    "size": 64,
    "resize": "short",
    "stored": 72,
    "form": "jpeg",
    "dim": 7,
    "similarity": "euclidean",
    "augment": Augment(flip=0.25),
    "folds": 3,
    "sampler": "other",
    "supervision": "images",
    "refresh": 7,
    "batch": Batch(embedding=(4, 4)),
    "optimiser": Optimiser(lr=0.5),
    "iterations": 7,
    "shortest_epoch": 7,
    "epochs": 7,
    "validate_every": 7,
    "patience": 7,
    "searches": 7,
    "search": "random",
    "trial_folds": 2,
    "smallest_difference": 0.07,
    "trials": 7,
    "startup": 7,
    "prune": 0.25,
    "reproductions": 7,
    "threads": 7,
    "autocast": True,
    "compile": True,
    "shrink_batch": True,
    "metrics": ("recall_at_1", "nmi"),
    "training_metrics": ("pi_ratio",),
    "seed": 7,
    "space": Space(lr=Real(1e-6, 1e-3, log=True)),
    "exceptions": {"triplet": {"dim": 7}},
    "given": {"triplet": {"margin": 0.7}},
}
"""Another value of every field that is a setting."""


def changed(setting: str) -> Protocol:
    return customise(BASE, [setting])


RESOLVED_QUICK = resolved(QUICK)
RESOLVED = json.loads((Path(__file__).parent / "golden" / "resolved_protocols.json").read_text())


def test_a_published_protocol_is_never_edited() -> None:
    for name, fingerprint in GOLDEN.items():
        assert protocols[name].fingerprint == fingerprint, (
            f"{name} was edited. A published protocol is never edited: leave it as it was and add a"
            " new version"
        )


def test_every_published_protocol_has_its_fingerprint_written_down() -> None:
    assert set(GOLDEN) == set(protocols)


def test_what_auto_becomes_is_never_edited() -> None:
    open_trunk: Any = {"weights": "pretrained", "frozen": None}
    for modality, fingerprint in RESOLVED_QUICK_V2.items():
        found = replace(resolved(protocols["quick.v2"], modality), **open_trunk)
        assert found.fingerprint == fingerprint, (
            f"{modality}: a published protocol was edited; make a new version"
        )


def test_batches_of_auto_size_are_resolved_by_what_is_trained_and_those_that_are_set_stay() -> None:
    auto = Protocol("p.v1", batch=Batch(embedding=None, classification=(7, 2)))
    for modality in MODALITIES:
        found = resolved(auto, modality).batch
        assert found.embedding is not None
        assert found.classification == (7, 2)
    images, vectors = (
        resolved(protocols["quick.v2"], modality).batch for modality in ("photo", "features")
    )
    assert images == ResolvedBatch(embedding=(8, 4), classification=(32, 1))
    assert vectors == ResolvedBatch(embedding=(16, 4), classification=(64, 1))


def test_a_number_of_images_sets_a_batch_that_was_auto() -> None:
    assert customise(protocols["quick.v2"], [" batch = 128 "]).batch == Batch(
        embedding=(32, 4), classification=(128, 1)
    )
    half = Protocol("p.v1", batch=Batch(embedding=None, classification=(7, 2)))
    assert customise(half, ["batch=64"]).batch == Batch(embedding=(16, 4), classification=(32, 2))


def test_batches_of_auto_size_have_as_many_images_of_a_class_as_a_number_of_images_gives() -> None:
    for modality in MODALITIES:
        found = resolved(protocols["quick.v2"], modality).batch
        assert found.of_size(64, "batch=64") == protocols["quick.v2"].batch.of_size(64, "batch=64")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (
            "unbiased/resnet50.v2",
            {
                2: ((1, 2), (1, 2)),
                4: ((2, 2), (2, 2)),
                8: ((2, 4), (4, 2)),
                16: ((4, 4), (8, 2)),
                32: ((8, 4), (16, 2)),
                64: ((16, 4), (32, 2)),
                128: ((32, 4), (64, 2)),
                120: ((24, 5), (60, 2)),
                60: ((12, 5), (30, 2)),
                6: ((2, 3), (3, 2)),
                7: ((1, 7), (7, 1)),
                9: ((3, 3), (9, 1)),
            },
        ),
        (
            "reality-check/any.v1",
            {
                2: ((1, 2), (2, 1)),
                6: ((2, 3), (6, 1)),
                25: ((5, 5), (25, 1)),
                32: ((8, 4), (32, 1)),
                256: ((64, 4), (256, 1)),
            },
        ),
        ("revisiting/any.v1", {15: ((5, 3), (15, 1)), 112: ((56, 2), (56, 2))}),
    ],
)
def test_some_batches_of_a_given_size(
    name: str, sizes: dict[int, tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    for size, (embedding, classification) in sizes.items():
        found = customise(protocols[name], [f"batch={size}"]).batch
        assert found == Batch(embedding, classification), size


EVERY_SIZE = range(2, 129)
BY_SIZE = ("unbiased/inception-bn", "quick.v1", "quick.v2", "revisiting/any", "reality-check/any")


@pytest.mark.parametrize("name", BY_SIZE)
def test_a_batch_of_any_size_holds_exactly_as_many_images(name: str) -> None:
    usual = resolved(protocols[name]).batch
    for size in EVERY_SIZE:
        found = resolved(customise(protocols[name], [f"batch={size}"]))
        for kind in KINDS:
            classes, per_class = found.batch_for(kind, classes=128)
            # pairs of an odd number of images leave one out
            assert classes * per_class == size - (size % 2 if kind == "pairs" else 0), (kind, size)
            if kind in ("embedding", "classification") and size % usual.shape(kind)[1] == 0:
                assert per_class == usual.shape(kind)[1], (kind, size)


@pytest.mark.parametrize("name", BY_SIZE)
def test_samples_of_a_batch_can_be_compared_unless_its_size_is_prime(name: str) -> None:
    per_class = resolved(protocols[name]).batch.embedding[1]
    for size in set(EVERY_SIZE) - {per_class}:
        prime = all(size % one for one in range(2, size))
        shape = resolved(customise(protocols[name], [f"batch={size}"])).batch.embedding
        assert (shape == (1, size)) if prime else (min(shape) >= 2), size


@pytest.mark.parametrize("name", BY_SIZE)
def test_the_same_size_again_is_the_same_batch(name: str) -> None:
    for size in EVERY_SIZE:
        once = customise(protocols[name], [f"batch={size}"])
        assert customise(protocols[name], [f"batch={size}"]) == once
        assert customise(once, [f"batch={size}"]) == once


def test_a_batch_of_fewer_than_two_images_is_refused() -> None:
    for size in (0, 1):
        with pytest.raises(BadInput, match=rf"--set batch={size}: .* at least 2 images"):
            changed(f"batch={size}")


def test_batch_auto_leaves_both_kinds_of_batch_open() -> None:
    assert changed("batch=auto").batch == Batch(embedding=None, classification=None)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    code = "from assay.protocols import protocols; print(protocols['quick'].fingerprint)"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == protocols["quick"].fingerprint


def test_a_name_without_a_version_is_the_newest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert protocols["quick.v1"] is QUICK
    assert protocols["quick"] is protocols["quick.v2"]
    for version in (2, 10):
        monkeypatch.setitem(
            protocols._parts, f"quick.v{version}", replace(QUICK, name=f"quick.v{version}")
        )
    assert protocols["quick"].name == "quick.v10"
    assert protocols["quick.v1"] is QUICK
    assert protocols["quick.v2"].name == "quick.v2"


def test_a_name_that_no_protocol_has_is_refused() -> None:
    for name in ("quick.v99", "quik", "quick.v", "quick.vx", "", "v1", ".v1", "Quick"):
        with pytest.raises(UnknownName, match=r"quick\.v1"):
            protocols[name]


def test_every_protocol_is_registered_under_its_own_name() -> None:
    assert [protocol.name for protocol in protocols.values()] == list(protocols)


def test_every_protocol_passes_its_own_checks() -> None:
    for protocol in protocols.values():
        assert customise(protocol, [f"dim={protocol.dim}"]) is protocol


def test_every_field_is_covered_here() -> None:
    assert {field.name for field in dataclasses.fields(Protocol)} == {
        *OTHER,
        "name",
        "departures",
        "about",
    }


def test_the_fingerprint_depends_on_every_setting() -> None:
    for name, value in OTHER.items():
        assert replace(BASE, **{name: value}).fingerprint != BASE.fingerprint, name


def test_the_fingerprint_depends_on_every_inner_setting() -> None:
    for outer in ("batch", "optimiser", "augment"):
        inner = getattr(BASE, outer)
        for field in dataclasses.fields(inner):
            value = (3, 3) if "tuple" in str(field.type) else 0.123
            changed = replace(BASE, **{outer: replace(inner, **{field.name: value})})
            assert changed.fingerprint != BASE.fingerprint, f"{outer}.{field.name}"


def test_the_fingerprint_does_not_depend_on_name_or_prose() -> None:
    assert (
        replace(BASE, name="other.v1", departures=("prose",), about="prose").fingerprint
        == BASE.fingerprint
    )


LATER: dict[str, Any] = {
    "weights": "pretrained",
    "frozen": None,
    "pooling": "avg",
    "layer_norm": False,
    "resize": "square",
    "stored": None,
    "form": "pixels",
    "shortest_epoch": 1,
    "autocast": False,
    "compile": False,
    "search": "bayesian",
    "prune": None,
    "searches": 1,
    "trial_folds": None,
    "smallest_difference": 0.01,
    "metrics": ("precision_at_1", "r_precision", "map_at_r"),
    "training_metrics": (),
    "exceptions": {},
    "given": {},
}
"""Fields that came after the first protocols were published, at the values that those mean."""


def test_a_field_that_came_later_leaves_published_fingerprints_alone_where_it_changes_nothing() -> (
    None
):
    for name, neutral in LATER.items():
        assert replace(QUICK, **{name: neutral}).fingerprint == GOLDEN["quick.v1"], name
        if name not in ("weights", "frozen"):  # which a resolved protocol always has
            assert name not in resolved(QUICK).training
        assert replace(QUICK, **{name: OTHER[name]}).fingerprint != GOLDEN["quick.v1"], name


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [("kind", "rmsprop", "adam"), ("decay_own", True, False), ("schedule", "constant", "cosine")],
)
def test_a_setting_of_the_optimiser_that_came_later_does_so_too(
    name: str, neutral: Any, other: Any
) -> None:
    same = replace(QUICK, optimiser=replace(QUICK.optimiser, **{name: neutral}))
    assert same.fingerprint == GOLDEN["quick.v1"]
    assert name not in resolved(QUICK).training["optimiser"]
    changed = replace(QUICK, optimiser=replace(QUICK.optimiser, **{name: other}))
    assert changed.fingerprint != GOLDEN["quick.v1"]
    assert resolved(changed).training["optimiser"][name] == other


def test_every_option_has_a_fingerprint_of_its_own() -> None:
    hints = {"frozen": Frozen, "pooling": Pooling, "resize": Resize}
    for name, hint in {**hints, "form": ImageForm, "search": Search}.items():
        options = {LATER[name], *typing.get_args(hint)}
        found = {replace(QUICK, **{name: option}).fingerprint for option in options}
        assert len(found) == len(options), name


def test_images_are_stored_as_large_as_they_are_used_unless_told_otherwise() -> None:
    assert resolved(replace(BASE, size=40)).first_step == FirstStep("square", 40)
    short = replace(BASE, size=227, stored=256, resize="short")
    assert resolved(short).first_step == FirstStep("short", 256)


def test_no_two_settings_have_the_same_fingerprint() -> None:
    variants = [BASE, *(replace(BASE, **{name: value}) for name, value in OTHER.items())]
    assert len({variant.fingerprint for variant in variants}) == len(variants)


PROSE: dict[str, Any] = {"name": "other.v1", "departures": ("prose",), "about": "prose"}


NOT_TRAINING = (
    "trials", "startup", "reproductions", "space", "seed", "search", "prune", "metrics",
    "exceptions", "given", "searches", "trial_folds", "smallest_difference", *PROSE,
)  # fmt: skip


def test_a_run_does_not_depend_on_how_many_others_there_are_or_what_is_made_of_it() -> None:
    training = resolved(BASE).training
    for name in NOT_TRAINING:
        assert name not in training
        assert resolved(replace(BASE, **{name: (OTHER | PROSE)[name]})).training == training, name


def test_a_run_depends_on_how_it_is_trained() -> None:
    base = replace(resolved(BASE), trunk="another", weights="others")
    elsewhere = {"batch", "shrink_batch", "folds"}  # entries of their own in a run's key
    names = set(OTHER) - set(NOT_TRAINING) - elsewhere
    assert len(names) == 25
    for name in names:
        assert replace(base, **{name: OTHER[name]}).training != base.training, name


def test_a_protocol_cannot_be_changed() -> None:
    protocol: Any = BASE
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.dim = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        protocol.optimiser.lr = 3


READ = [
    ("dim=16", "dim", 16),
    ("seed=-3", "seed", -3),
    ("trunk=identity", "trunk", "identity"),
    ("shrink_batch=true", "shrink_batch", True),
    ("layer_norm=true", "layer_norm", True),
    ("autocast=true", "autocast", True),
    ("compile=true", "compile", True),
    ("size=32", "size", 32),
    ("stored=256", "stored", 256),
    ("weights=none", "weights", "none"),
    ("frozen=batchnorm", "frozen", "batchnorm"),
    ("frozen=nothing", "frozen", "nothing"),
    ("frozen=trunk", "frozen", "trunk"),
    ("pooling=gem", "pooling", "gem"),
    ("pooling=avg+max", "pooling", "avg+max"),
    ("resize=short", "resize", "short"),
    ("resize=stretch", "resize", "stretch"),
    ("optimiser.lr=1e-3", "optimiser.lr", 1e-3),
    ("optimiser.weight_decay=0", "optimiser.weight_decay", 0.0),
    ("batch.embedding=4x8", "batch.embedding", (4, 8)),
    ("batch.classification=16,2", "batch.classification", (16, 2)),
    ("batch.embedding=auto", "batch.embedding", None),
    ("augment.area=0.25,0.75", "augment.area", (0.25, 0.75)),
    ("augment.flip=0.5", "augment.flip", 0.5),
    (" dim = 16 ", "dim", 16),
    ("search=random", "search", "random"),
    ("trials=0", "trials", 0),
    ("prune=0.1", "prune", 0.1),
    ("iterations=7", "iterations", 7),
    ("metrics=recall_at_1, nmi", "metrics", ("recall_at_1", "nmi")),
    ("training_metrics=pi_ratio", "training_metrics", ("pi_ratio",)),
    ("optimiser.kind=adamw", "optimiser.kind", "adamw"),
    ("optimiser.decay_own=false", "optimiser.decay_own", False),
]


def test_a_setting_is_read_as_the_type_of_its_field() -> None:
    for setting, name, value in READ:
        found: Any = changed(setting)
        for part in name.split("."):
            found = getattr(found, part)
        assert found == value, setting
        assert type(found) is type(value), setting


def test_a_setting_changes_nothing_else() -> None:
    custom = changed("optimiser.lr=0.5")
    assert replace(custom, name=BASE.name, optimiser=BASE.optimiser) == BASE
    assert replace(custom.optimiser, lr=BASE.optimiser.lr) == BASE.optimiser


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("size=auto", "size"),
        ("stored=auto", "stored"),
        ("frozen=auto", "frozen"),
        ("prune=auto", "prune"),
        ("iterations=auto", "iterations"),
        ("augment.area=auto", "area"),
        ("augment.flip=auto", "flip"),
    ],
)
def test_an_optional_setting_can_go_back_to_auto(setting: str, name: str) -> None:
    base = replace(
        BASE,
        size=32,
        stored=40,
        frozen="trunk",
        prune=0.5,
        augment=Augment(area=(0.5, 1.0), flip=0.5),
    )
    custom = customise(base, [setting])
    assert getattr(custom if "augment" not in setting else custom.augment, name) is None


NO_OPTION = [
    ("resize=long", "square, short, stretch"),
    ("resize=Short", "square, short, stretch"),
    ("resize=", "square, short, stretch"),
    ("resize=auto", "square, short, stretch"),
    ("pooling=max", r"avg, avg\+max, gem"),
    ("pooling=auto", r"avg, avg\+max, gem"),
    ("frozen=all", "nothing, batchnorm, trunk"),
    ("frozen=none", "nothing, batchnorm, trunk"),
    ("search=grid", "bayesian, quasi-random, random"),
    ("optimiser.kind=lion", "rmsprop, adam, adamw, sgd"),
]


def test_a_word_that_is_no_option_is_refused_with_the_options() -> None:
    for setting, options in NO_OPTION:
        word = setting.partition("=")[2]
        with pytest.raises(BadInput, match=f"--set {setting}: '{word}' is none of {options}$"):
            changed(setting)


def test_true_and_false_are_both_understood() -> None:
    assert not customise(replace(BASE, shrink_batch=True), ["shrink_batch=false"]).shrink_batch


def test_several_settings_are_applied_together() -> None:
    custom = customise(
        BASE, ["dim=16", "batch.embedding=4x4", "batch.classification=16x1", "trials=3"]
    )
    assert (custom.dim, custom.batch, custom.trials) == (16, Batch((4, 4), (16, 1)), 3)


ANOTHER_TYPE = [
    "dim=abc",
    "dim=",
    "dim=1.5",
    "dim=auto",
    "size=big",
    "stored=big",
    "prune=none",
    "layer_norm=yes",
    "compile=1",
    "autocast=",
    "optimiser.lr=fast",
    "optimiser.lr=",
    "shrink_batch=yes",
    "shrink_batch=1",
    "shrink_batch=",
    "batch.embedding=8",
    "batch.embedding=8x4x2",
    "batch.embedding=axb",
    "batch.embedding=8x",
    "batch.embedding=8x4.5",
    "augment.area=0.5",
    "augment.area=a,b",
]


def test_a_value_of_another_type_is_refused_with_the_setting() -> None:
    for setting in ANOTHER_TYPE:
        with pytest.raises(BadInput, match=f"--set {setting}: .* is not "):
            changed(setting)


OUT_OF_RANGE = [
    "dim=0",
    "dim=-1",
    "folds=1",
    "iterations=0",
    "epochs=0",
    "validate_every=0",
    "patience=0",
    "trials=-1",
    "prune=1.5",
    "prune=-0.1",
    "prune=nan",
    "smallest_difference=0",
    "smallest_difference=nan",
    "smallest_difference=1",
    "searches=0",
    "trial_folds=0",
    "trial_folds=5",
    "startup=-1",
    "reproductions=0",
    "threads=0",
    "size=0",
    "stored=0",
    "stored=-5",
    "batch.embedding=0x4",
    "batch.classification=32x0",
    "batch.embedding=-8x-4",
    "optimiser.lr=0",
    "optimiser.lr=-1",
    "optimiser.lr=nan",
    "augment.flip=1.5",
    "augment.flip=-0.5",
    "augment.flip=nan",
    "augment.area=0,1",
    "augment.area=1,0.5",
    "augment.area=nan,1",
    "augment.aspect=-1,1",
    "augment.area=0.5,inf",
    "augment.aspect=0.5,inf",
    "optimiser.momentum=-1",
    "optimiser.weight_decay=-1",
    "augment.area=0.5,3",
    "augment.shear=90",
    *(
        f"{field}={value}"
        for field in (
            "optimiser.lr",
            "optimiser.momentum",
            "optimiser.weight_decay",
            "augment.flip",
            "augment.rotation",
            "augment.shear",
        )
        for value in ("nan", "inf", "-inf", "1e999")
    ),
]


def test_a_value_out_of_its_range_is_refused_with_its_field() -> None:
    for setting in OUT_OF_RANGE:
        with pytest.raises(BadInput, match=f"--set {setting.partition('=')[0]}"):
            changed(setting)


def test_a_typo_is_refused_and_the_fields_are_listed() -> None:
    listed = r"no field .*; the fields here are trunk, weights, frozen, pooling, .*size, .*dim, "
    typos = ("dmi=3", "Dim=3", "batchs.embedding=8x4", "fingerprint=3", "training=1", "=3", ".=3")
    for typo in typos:
        with pytest.raises(BadInput, match=listed):
            changed(typo)


def test_a_typo_in_an_inner_field_lists_the_inner_fields() -> None:
    with pytest.raises(
        BadInput, match="no field 'learning_rate'; the fields here are lr, momentum, weight_decay"
    ):
        changed("optimiser.learning_rate=3")


def test_of_an_optional_number_the_refusal_says_that_it_may_be_left_open() -> None:
    with pytest.raises(
        BadInput, match=r"--set prune=none: 'none' is not a finite number, or auto$"
    ):
        changed("prune=none")


def test_a_field_that_is_not_a_setting_cannot_be_set() -> None:
    for name in ("name", "space", "departures", "about", "exceptions", "given"):
        with pytest.raises(BadInput, match=f"no field '{name}'"):
            changed(f"{name}=x")


def test_a_setting_of_settings_says_what_can_be_set() -> None:
    with pytest.raises(BadInput, match=r"set batch\.embedding, batch\.classification"):
        changed("batch=8x4")
    with pytest.raises(BadInput, match=r"set dim=\.\.\."):
        changed("dim.inner=3")


@pytest.mark.parametrize("setting", ["dim", "dim:16", ""])
def test_a_setting_without_a_value_is_refused_with_an_example(setting: str) -> None:
    with pytest.raises(BadInput, match="write field=value"):
        changed(setting)


@given(text=st.text(max_size=20))
def test_no_text_breaks_the_settings(text: str) -> None:
    for setting in (
        text,
        f"dim={text}",
        f"optimiser.lr={text}",
        f"batch.embedding={text}",
        f"{text}=3",
    ):
        with suppress(BadInput):
            assert changed(setting).fingerprint


def test_a_customised_protocol_says_so_in_its_name() -> None:
    custom = changed("dim=16")
    assert custom.name == f"base.v1+custom-{custom.fingerprint[:8]}"
    assert changed("dim=16").name == custom.name != changed("dim=17").name


def test_a_protocol_customised_twice_says_so_once_in_its_name() -> None:
    at_once, in_turn = (
        customise(BASE, ["dim=16", "folds=2"]),
        customise(changed("dim=16"), ["folds=2"]),
    )
    assert in_turn == at_once
    assert in_turn.name == f"base.v1+custom-{in_turn.fingerprint[:8]}"
    thrice = customise(in_turn, ["trials=3"])
    assert thrice.name == f"base.v1+custom-{thrice.fingerprint[:8]}"
    assert customise(thrice, ["trials=3"]) is thrice


@pytest.mark.parametrize(
    "settings", [[], ["dim=128"], ["trunk=auto", "size=auto"], ["dim=3", "dim=128"]]
)
def test_settings_that_change_nothing_leave_the_published_protocol(settings: list[str]) -> None:
    assert customise(BASE, settings) is BASE


def test_the_order_of_settings_does_not_matter() -> None:
    assert customise(BASE, ["dim=3", "folds=2"]) == customise(BASE, ["folds=2", "dim=3"])


# --- Resolving ---

AUTO = Protocol(
    "auto.v1",
    batch=Batch(embedding=None, classification=None),
    optimiser=Optimiser(lr=None, schedule=None),
    shortest_epoch=None,
    epochs=None,
    validate_every=None,
    patience=None,
)
"""A protocol in which everything is left open that can be."""


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_resolved_protocol_has_no_auto_left(modality: Modality) -> None:
    found = resolved(AUTO, modality)
    assert found.trunk != "auto"
    for name, hint in typing.get_type_hints(ResolvedProtocol).items():
        if type(None) not in typing.get_args(hint):
            assert getattr(found, name) is not None, name
    for part in (found.augment, found.batch, found.optimiser):
        assert None not in vars(part).values()
    assert resolved(found, modality) == found


def test_a_field_that_may_be_none_in_a_resolved_protocol_is_no_auto() -> None:
    hints = typing.get_type_hints(ResolvedProtocol)
    optional = {name for name, hint in hints.items() if type(None) in typing.get_args(hint)}
    assert optional == {"stored", "iterations", "refresh", "trial_folds", "prune"}


def test_a_resolved_protocol_cannot_be_made_with_a_setting_left_out() -> None:
    with pytest.raises(TypeError, match="missing"):
        ResolvedProtocol("p.v1")


def test_what_a_run_and_a_preregistration_hold_is_as_it_always_was() -> None:
    """The golden file was written by the code from before `ResolvedProtocol` existed."""

    def facts(trunk: str) -> TrunkFacts:
        kind = find(trunk)
        own = "none" if kind.origin() is None else "f" * 64
        return TrunkFacts(kind.takes, kind.side, kind.smallest, lambda wanted: own)

    assert set(RESOLVED) == set(protocols)
    for name, golden in RESOLVED.items():
        assert protocols[name].fingerprint == golden["fingerprint"]
        for modality in MODALITIES:
            free = ["trunk=auto"] if modality == "features" else []
            found, expected = (
                resolve(customise(protocols[name], free), modality, facts),
                golden[modality],
            )
            assert canonical(found.training) == canonical(expected["training"]), name
            assert digest(found.to_json()) == expected["resolved"], name


def test_a_resolved_protocol_is_read_as_it_was_written() -> None:
    for name, protocol in protocols.items():
        for modality in MODALITIES:
            free = ["trunk=auto"] if modality == "features" else []
            found = resolved(customise(protocol, free), modality)
            assert ResolvedProtocol.from_json(json.loads(canonical(found.to_json()))) == found, name
            of_run = ResolvedProtocol.from_training(json.loads(canonical(found.training)))
            assert of_run.training == found.training, name
            assert resolved(found.declared, modality) == found, name


def test_a_field_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match=r"field 'colour' .* does not know; use a newer one"):
        ResolvedProtocol.from_json({**resolved(BASE).to_json(), "colour": "red"})


def test_each_look_has_its_own_trunk_and_size() -> None:
    found = {
        modality: (resolved(BASE, modality).trunk, resolved(BASE, modality).size)
        for modality in MODALITIES
    }
    assert found == {"drawing": ("conv", 28), "photo": ("conv", 48), "features": ("identity", 0)}


def test_drawings_are_turned_but_not_mirrored_and_photos_the_reverse() -> None:
    drawing, photo = resolved(BASE, "drawing").augment, resolved(BASE, "photo").augment
    assert (drawing.flip, photo.flip) == (0.0, 0.5)
    assert drawing.rotation
    assert not photo.rotation


def test_features_are_not_augmented() -> None:
    assert resolved(BASE, "features").augment == ResolvedAugment(
        area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, rotation=0.0, shear=0.0
    )


def test_settings_for_images_are_ignored_for_features() -> None:
    of_images = replace(
        BASE,
        size=227,
        stored=256,
        resize="short",
        form="jpeg",
        augment=Augment(area=(0.16, 1.0), flip=0.5, rotation=5.0),
    )
    assert resolved(of_images, "features") == resolved(BASE, "features")


@pytest.mark.parametrize("modality", ["drawing", "photo"])
def test_what_the_user_has_set_is_not_resolved_away(modality: Modality) -> None:
    custom = customise(
        BASE, ["size=20", "augment.rotation=45", "augment.area=0.5,0.6", "trunk=mine"]
    )
    found = resolved(custom, modality)
    assert (found.size, found.trunk) == (20, "mine")
    assert (found.augment.rotation, found.augment.area) == (45.0, (0.5, 0.6))
    assert found.augment.aspect == resolved(BASE, modality).augment.aspect


def test_zero_is_a_setting_and_not_auto() -> None:
    assert resolved(customise(BASE, ["augment.rotation=0"]), "drawing").augment.rotation == 0.0
    assert resolved(customise(BASE, ["augment.flip=0"]), "photo").augment.flip == 0.0


def test_only_auto_is_resolved() -> None:
    of_the_trunk = {"trunk", "size", "augment", "weights", "frozen"}
    for modality in MODALITIES:
        found, parts = resolved(BASE, modality), ("batch", "optimiser")
        for name, value in vars(BASE).items():
            if name in parts:
                assert vars(getattr(found, name)) == vars(value)
            elif name not in of_the_trunk:
                assert getattr(found, name) == value, name


@pytest.mark.parametrize(
    ("modality", "trunk", "size"),
    [("photo", "conv", 48), ("drawing", "conv", 28), ("features", "identity", 0)],
)
def test_a_trunk_without_weights_of_its_own_is_trained_from_scratch(
    modality: Any, trunk: str, size: int
) -> None:
    found = resolve(Protocol("p.v1"), modality, trunk_facts)
    assert (found.trunk, found.size, found.weights, found.frozen) == (
        trunk,
        size,
        "none",
        "nothing",
    )


def test_a_pretrained_trunk_is_frozen_unless_told_otherwise_and_named_by_its_weights() -> None:
    lite0 = Protocol("p.v1", trunk="lite0")
    own = weights.resolve_weights("lite0", "pretrained")
    assert own is not None
    found = resolve(lite0, "photo", trunk_facts)
    assert (found.weights, found.frozen, found.size) == (own.digest, "trunk", 224)
    for frozen in ("nothing", "batchnorm"):
        assert resolve(replace(lite0, frozen=frozen), "photo", trunk_facts).frozen == frozen
    assert resolve(replace(lite0, size=64), "photo", trunk_facts).size == 64
    random = resolve(replace(lite0, weights="none"), "photo", trunk_facts)
    assert (random.weights, random.frozen) == ("none", "nothing")
    assert resolve(found, "photo", trunk_facts) == found


def test_a_head_on_a_frozen_trunk_is_trained_as_one_on_features() -> None:
    frozen = resolve(replace(AUTO, trunk="lite0"), "photo", trunk_facts)
    features = resolve(AUTO, "features", trunk_facts)
    for name in ("batch", "optimiser", "epochs", "patience", "validate_every", "shortest_epoch"):
        assert getattr(frozen, name) == getattr(features, name), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_has_a_shape(kind: BatchKind) -> None:
    assert (
        resolved(BASE).batch.shape(kind)
        == {
            "embedding": (8, 4),
            "classification": (32, 1),
            "pairs": (16, 2),
            "episodes": (4, 8),
        }[kind]
    )
    own = ResolvedBatch(embedding=(3, 7), classification=(5, 6))
    assert (
        own.shape(kind)
        == {
            "embedding": (3, 7),
            "classification": (5, 6),
            "pairs": (10, 2),
            "episodes": (3, 7),
        }[kind]
    )


@pytest.mark.parametrize(
    ("embedding", "episodes"),
    [((24, 5), (12, 10)), ((56, 2), (28, 4)), ((2, 4), (2, 4)), ((4, 2), (2, 4)), ((5, 2), (5, 2))],
)
def test_episodes_have_half_the_classes_but_never_a_single_one(
    embedding: tuple[int, int], episodes: tuple[int, int]
) -> None:
    assert ResolvedBatch(embedding=embedding, classification=(7, 1)).shape("episodes") == episodes


@pytest.mark.parametrize(
    ("embedding", "pairs"),
    [((8, 4), (16, 2)), ((24, 5), (60, 2)), ((3, 3), (4, 2)), ((1, 1), (1, 2))],
)
def test_pairs_are_two_of_each_class_and_as_many_images_as_there_can_be(
    embedding: tuple[int, int], pairs: tuple[int, int]
) -> None:
    assert ResolvedBatch(embedding=embedding, classification=(7, 1)).shape("pairs") == pairs


def test_pairs_are_no_setting_of_their_own() -> None:
    with pytest.raises(
        BadInput, match="no field 'pairs'; the fields here are embedding, classification"
    ):
        changed("batch.pairs=8x2")
    assert resolved(changed("batch.embedding=4x8")).batch.shape("pairs") == (16, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_with_classes_enough_the_batch_is_as_the_protocol_says(kind: BatchKind) -> None:
    for protocol in (resolved(BASE), RESOLVED_QUICK):
        wanted = protocol.batch.shape(kind)
        assert (
            protocol.batch_for(kind, wanted[0])
            == protocol.batch_for(kind, wanted[0] + 100)
            == wanted
        )


@pytest.mark.parametrize("kind", ["embedding", "classification"])
def test_with_too_few_classes_quick_takes_more_images_of_each_to_stay_near_32(
    kind: BatchKind,
) -> None:
    wanted = RESOLVED_QUICK.batch.shape(kind)[0]
    for classes in range(1, wanted):
        taken, per_class = RESOLVED_QUICK.batch_for(kind, classes)
        assert taken == classes
        assert per_class >= 1
        assert 2 * abs(taken * per_class - 32) <= classes


def test_with_too_few_classes_pairs_stay_two_of_each() -> None:
    """Such a method wants two of a class: fewer classes are then fewer images."""
    for classes in range(1, 16):
        assert RESOLVED_QUICK.batch_for("pairs", classes) == (classes, 2)


@pytest.mark.parametrize(
    ("kind", "classes", "batch"),
    [
        ("embedding", 6, (6, 5)),
        ("embedding", 4, (4, 8)),
        ("classification", 6, (6, 5)),
        ("classification", 31, (31, 1)),
        ("pairs", 15, (15, 2)),
        ("pairs", 16, (16, 2)),
        ("episodes", 3, (3, 11)),
    ],
)
def test_some_shrunken_batches(kind: BatchKind, classes: int, batch: tuple[int, int]) -> None:
    assert RESOLVED_QUICK.batch_for(kind, classes) == batch


@pytest.mark.parametrize("kind", KINDS)
def test_with_too_few_classes_other_protocols_refuse_and_say_what_would_do(kind: BatchKind) -> None:
    few = 3 if kind == "episodes" else 6
    settings = {"pairs": "embedding=6x2", "episodes": "embedding=3x8"}
    setting = settings.get(kind, f"{kind}=6x")
    match = rf"a fold trains on {few}; .*--set batch\.{setting}"
    with pytest.raises(BadInput, match=match) as raised:
        resolved(BASE).batch_for(kind, few)
    remedy = str(raised.value).rpartition("--set ")[2]
    assert resolved(changed(remedy)).batch_for(kind, few)[0] == few


def test_quick_is_the_whole_procedure_in_minutes() -> None:
    assert QUICK.iterations * QUICK.epochs <= 300
    assert (QUICK.dim, QUICK.folds, QUICK.trials, QUICK.startup, QUICK.reproductions) == (
        64,
        4,
        5,
        2,
        3,
    )
    assert QUICK.trunk == "auto"
    assert QUICK.size is None
    assert QUICK.departures


# --- What a study refuses before anything is written ---


def design(folder: Path, *settings: str) -> ResolvedProtocol:
    """The protocol that a study on the folder would train by."""
    return design_bench(f"folder:{folder}", ["triplet"], customise(QUICK, settings), "cpu", [])[
        0
    ].protocol


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (("size=16", "stored=15"), 16),
        (("stored=20",), 48),
        (("size=40", "stored=39", "resize=short"), 40),
    ],
)
def test_images_stored_smaller_than_they_are_used_are_refused(
    settings: tuple[str, ...], size: int, mini_folder: Path
) -> None:
    stored = next(setting for setting in settings if "stored" in setting)
    with pytest.raises(
        BadInput, match=f"--set {stored}: images are stored at least as large as size={size}"
    ):
        design(mini_folder, *settings)


@pytest.mark.parametrize(
    ("settings", "side"),
    [(("size=16",), 16), (("size=16", "stored=16"), 16), (("size=16", "stored=20"), 20)],
)
def test_images_may_be_stored_larger_than_they_are_used(
    settings: tuple[str, ...], side: int, mini_folder: Path
) -> None:
    assert design(mini_folder, *settings).first_step == FirstStep("square", side)


def test_images_that_keep_their_shapes_are_not_turned(mini_folder: Path) -> None:
    settings = ("size=16", "resize=short", "augment.shear=0")
    with pytest.raises(BadInput, match=r"resize=short: .*augment\.rotation=0"):
        design(mini_folder, *settings, "augment.rotation=5")
    assert design(mini_folder, *settings, "augment.rotation=0").resize == "short"


def test_a_study_resolves_what_was_left_open(mini_folder: Path) -> None:
    found = design(mini_folder)
    assert (found.trunk, found.weights, found.frozen) == ("conv", "none", "nothing")
    assert design(mini_folder, "frozen=batchnorm").frozen == "batchnorm"


# --- Settings of single methods ---


def test_settings_of_single_methods_cannot_be_changed_from_outside() -> None:
    own = {"triplet": {"dim": 7}}
    protocol = replace(BASE, exceptions=own)
    before = protocol.fingerprint
    own["triplet"]["dim"], own["margin"] = 8, {"dim": 9}
    assert protocol.exceptions == {"triplet": {"dim": 7}}
    assert protocol.fingerprint == before
    with pytest.raises(TypeError):
        protocol.exceptions["triplet"]["dim"] = 8  # type: ignore[index]
    assert hash(protocol) == hash(replace(BASE, exceptions={"triplet": {"dim": 7}}))
    assert pickle.loads(pickle.dumps(protocol)) == protocol


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("searches", 8), ("trials", 100), ("trial_folds", 4), ("startup", 9), ("prune", 0.5),
        ("search", "random"), ("reproductions", 20), ("folds", 8), ("iterations", 500),
        ("epochs", 99), ("shortest_epoch", 50), ("patience", 50), ("validate_every", 1),
        ("batch.embedding", (32, 8)), ("seed", 7), ("metrics", ("nmi",)), ("threads", 4),
    ],
)  # fmt: skip
def test_no_exception_gives_a_method_another_budget(path: str, value: SettingValue) -> None:
    with pytest.raises(BadInput, match=f"{path}=.* for triplet changes the budget, .*; leave it"):
        replace(BASE, exceptions={"triplet": {path: value}})


def test_no_exception_leads_to_another_budget_by_way_of_auto(mini_folder: Path) -> None:
    """A frozen trunk trains otherwise, where the protocol leaves that open."""
    frozen = {"triplet": {"trunk": "lite0", "size": 32}}
    protocol = replace(QUICK_V2, name="mine.v1", size=16, exceptions=frozen)
    with pytest.raises(BadInput, match=r"exceptions for triplet lead by way of `auto` to another"):
        design_bench(f"folder:{mini_folder}", ["triplet"], protocol, "cpu", [])
    assert design_bench(f"folder:{mini_folder}", ["contrastive"], protocol, "cpu", [])


def test_every_published_protocol_gives_all_methods_one_budget() -> None:
    assert set(SAME_FOR_ALL) <= {field.name for field in dataclasses.fields(Protocol)}
    excepted = {
        path for name in protocols for own in protocols[name].exceptions.values() for path in own
    }
    assert excepted == {"optimiser.kind", "dim", "trunk", "similarity"}


def test_in_json_settings_of_single_methods_are_texts_as_people_write_them() -> None:
    given = {
        "triplet": {"margin": 0.05, "weights_lr": 5e-4, "over": "all"},
        "arcface": {"scale": 8},
    }
    exceptions = {
        "triplet": {"dim": 7, "augment.area": (0.5, 1.0), "size": None, "layer_norm": True}
    }
    written = resolved(replace(BASE, given=given, exceptions=exceptions)).to_json()
    assert written["given"] == [
        ["triplet", ["margin=0.05", "weights_lr=5e-4", "over=all"]],
        ["arcface", ["scale=8"]],
    ]
    assert written["exceptions"] == [
        ["triplet", ["dim=7", "augment.area=0.5,1", "size=auto", "layer_norm=true"]]
    ]
    read = ResolvedProtocol.from_json(json.loads(canonical(written)))
    assert (read.given, read.exceptions) == (given, exceptions)


@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(),
        st.booleans(),
        st.text("abc0123456789.e+-"),
    )
)
def test_a_given_value_is_read_as_it_was_written(value: Any) -> None:
    name, found = read_given(as_text("name", value))
    assert name == "name"
    assert as_text(name, found) == as_text(name, value)
    if not isinstance(value, str):
        assert type(value)(found) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dmi": 7}, "base.v1: dmi=7: no field 'dmi'"),
        ({"dim": "wide"}, "base.v1: dim=wide: 'wide' is not a whole number"),
        ({"dim": True}, "base.v1: dim=true: True is not a whole number"),
        ({"dim": None}, "base.v1: dim=auto: None is not a whole number"),
        ({"resize": "long"}, "base.v1: resize=long: 'long' is none of square, short, stretch"),
        (
            {"batch.embedding": (4,)},
            r"base.v1: batch.embedding=4: \(4,\) is not two whole numbers such as 8x4, or auto",
        ),
        ({"optimiser": 3}, "base.v1: optimiser=3: set optimiser.lr, "),
        ({"dim": 0}, "dim is at least 1"),
    ],
)
def test_a_value_that_a_field_does_not_take_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        with_settings(BASE, settings)


def test_values_of_fields_are_applied_as_texts_are() -> None:
    settings: Any = {
        "dim": 16,
        "size": None,
        "optimiser.lr": 1,
        "batch.embedding": (4, 2),
        "augment.area": (0.5, 1),
        "metrics": ("nmi", "f1"),
        "frozen": "trunk",
        "compile": True,
    }
    found = with_settings(BASE, settings)
    assert found == customise(BASE, [as_text(*setting) for setting in settings.items()])
    assert type(found.optimiser.lr) is float
    assert with_settings(BASE, {}) is BASE


# --- what was changed ---


CHANGES = [
    ("quick", []),
    ("quick", ["dim=16", "optimiser.lr=0.1", "augment.flip=0.5"]),
    ("quick", ["batch.embedding=4x4", "searches=2"]),
    ("quick", ["epochs=7", "validate_every=2", "prune=0.1"]),
    ("quick", ["trunk=lite0", "size=160", "stored=200", "weights=none"]),
    ("quick", ["trunk=lite0", "frozen=nothing", "trials=3", "augment.area=0.5,1"]),
    ("quick", ["metrics=map_at_r,recall_at_1", "training_metrics=nmi", "compile=true"]),
    ("reality-check/cub", ["trials=3", "trunk=resnet50", "epochs=auto", "optimiser.lr=1e-5"]),
]
"""A protocol, and settings that change it."""


@pytest.mark.parametrize(("name", "settings"), CHANGES)
def test_a_customised_protocol_is_made_again_from_the_settings_that_were_changed(name, settings):
    declared = customise(protocols[name], settings)
    found = protocols.changes(declared)
    assert {*found} == {*settings}
    assert protocols.declared(declared.name, found) == declared


def test_a_published_protocol_has_no_changed_settings():
    for protocol in protocols.values():
        assert protocols.changes(protocol) == ()
        assert protocols.declared(protocol.name, ()) == protocol


def test_a_protocol_that_no_settings_lead_to_has_no_known_changes():
    own = Protocol("own.v1", dim=8)
    searched = replace(customise(protocols["quick"], ["dim=8"]), space=Space(margin=Real(0, 1)))
    for protocol in (own, searched):
        assert protocols.changes(protocol) == ()
        assert protocols.declared(protocol.name, ()) is None
