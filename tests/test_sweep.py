"""Sweeps: chosen parameters over the values of one field, each value a study with a seal of its
own.
"""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import Execution, run_bench, run_sweep
from assay.study.sweep import read_values
from miniature import MINI, snapshot
from options import set_options

INLINE = Execution(InlineEngine())
SMALL = customise(protocols["quick"], MINI)
METHODS = ("triplet", "normalized_softmax", "pretrained")


def sweep(data, out, vary="dim=4,8,16", methods=METHODS):
    return run_sweep(f"features:{data}", methods, SMALL, vary, out, INLINE)


@pytest.fixture
def swept(mini_features, tmp_path):
    done = sweep(mini_features, tmp_path / "store")
    return done, {record.key: record for record in study_records(Store(tmp_path / "store"))}


def test_every_value_runs_the_parameters_that_were_selected_under_the_protocol_itself(swept):
    done, records = swept
    assert len(done.bases) == len(METHODS) and len(done.studies) == 3 * len(METHODS)
    for key in done.studies:
        record = records[key]
        base = records[record.announced.sweep.base]
        assert base.key in done.bases and base.method == record.method
        assert not record.trials and record.announced.budget.trials == 0
        assert (
            record.selection.parameters
            == base.selection.parameters
            == record.announced.given.parameters
        )
        assert record.announced.protocol.resolved.dim == int(record.announced.sweep.value)


def test_every_value_has_a_sealed_study_with_all_its_reproductions(swept):
    done, records = swept
    for key in done.studies:
        assert records[key].complete and records[key].seal
        assert len(records[key].tests) == records[key].announced.budget.reproductions


def test_the_value_that_the_protocol_has_computes_no_run_again(swept):
    done, records = swept
    same = [
        records[key] for key in done.studies if records[key].announced.sweep.value == str(SMALL.dim)
    ]
    assert len(same) == len(METHODS)
    for record in same:
        base = records[record.announced.sweep.base]
        assert [entry.key for entry in record.reproductions] == [
            entry.key for entry in base.reproductions
        ]
        assert record.scores("separated", "map_at_r") == base.scores("separated", "map_at_r")


def test_a_sweep_uses_the_bench_that_the_store_has_and_adds_nothing_when_run_again(
    mini_features, tmp_path
):
    out = tmp_path / "store"
    benched = run_bench(f"features:{mini_features}", METHODS, SMALL, out, INLINE)
    before = snapshot(out)
    done = sweep(mini_features, out, "dim=4,8")
    assert done.bases == benched.studies[: len(METHODS)]  # the bench has as_is too
    after = snapshot(out)
    assert before.items() <= after.items()
    assert sweep(mini_features, out, "dim=4,8") == done and snapshot(out) == after


def test_a_sweep_of_fewer_values_prints_its_own_table(assay, mini_features, tmp_path):
    words = ["--data", f"features:{mini_features}", "--methods", "triplet", "--engine", "inline"]
    words += [part for setting in MINI for part in ("--set", setting)]
    for values in ("4,8,16", "4,16"):
        done = assay("sweep", *words, "--vary", f"dim={values}", "--out", tmp_path / "store")
        assert done[0] == 0, done[2]
        rows = [line.split() for line in done[1].splitlines() if line.startswith("triplet")]
        # the parameters were searched at 8, so that value has a row in every sweep
        assert [row[1] for row in rows] == ["4", "8", "16"]


def test_what_a_field_cannot_be_is_refused_before_anything_is_begun(mini_features, tmp_path):
    for vary in (
        "dim=4,zero",
        "dmi=4",
        "dim",
        "dim=",
        "dim=4,4",
        "trials=1,2",
        "folds=2,1000",
        "sampler=none,balanced",
        "optimiser.lr=1e-4,0.0001",
    ):
        with pytest.raises(BadInput):
            sweep(mini_features, tmp_path / "store", vary)
    assert not (tmp_path / "store").exists()


def test_a_value_that_a_method_has_for_itself_cannot_be_varied(mini_features, tmp_path):
    own = replace(SMALL, name="mine.v1", exceptions={"triplet": {"optimiser.kind": "adam"}})
    for vary in ("optimiser.kind=adam,sgd", "optimiser.weight_decay=0,1"):
        refused = vary.startswith("optimiser.kind")
        with pytest.raises(BadInput, match="of its own for triplet") if refused else nullcontext():
            run_sweep(
                f"features:{mini_features}",
                ["triplet"],
                own,
                vary,
                tmp_path / "store",
                INLINE,
            )


def test_values_are_read_as_they_are_written():
    assert read_values("batch.embedding=4x4, 8x4") == ("batch.embedding", ["4x4", "8x4"])


OFTEN = ("batch=16,32", "optimiser.kind=adam,sgd", "trunk=conv,resnet18")
NOW_AND_THEN = (
    "dim=4,8", "batch.embedding=auto,4x4,8x2", "optimiser.weight_decay=0,0.0001",
    "frozen=nothing,batchnorm", "augment.flip=0,0.5", "augment.area=0.5x1,1x1", "size=32,40",
    "sampler=balanced", "layer_norm=true,false", "pooling=avg,gem", "seed=0,1",
)  # fmt: skip


@pytest.mark.parametrize(
    "vary", [*OFTEN, *(pytest.param(vary, marks=pytest.mark.slow) for vary in NOW_AND_THEN)]
)
def test_any_field_can_be_varied(mini_folder, tmp_path, vary):
    small = customise(
        SMALL,
        [
            "reproductions=1",
            "trials=1",
            "iterations=1",
            "epochs=1",
            "folds=2",
            "weights=none",
            "size=32",
        ],
    )
    done = run_sweep(f"folder:{mini_folder}", ["triplet"], small, vary, tmp_path / "store", INLINE)
    assert len(done.studies) == len(read_values(vary)[1])


def test_a_sampler_is_swept_beside_the_usual_one(assay, as_before, mini_features, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(
        "import numpy as np\n"
        "from assay.samplers import samplers\n\n"
        "@samplers('anything')\n"
        "def anything(y, batch, seed):\n"
        "    draw = np.random.default_rng(seed)\n"
        "    while True:\n"
        "        yield draw.integers(0, len(y), batch[0] * batch[1])\n"
    )
    words = ["--data", f"features:{mini_features}", "--import", own, "--methods", "contrastive"]
    words += ["--engine", "inline", "--out", tmp_path / "store", *set_options(MINI)]
    code, out, err = assay("sweep", *words, "--vary", "sampler=balanced,anything")
    assert code == 0, err
    rows = [line.split()[1] for line in out.splitlines() if line.startswith("contrastive ")]
    assert rows == ["balanced", "anything"]
    points = [
        record.announced.protocol.resolved.sampler
        for record in study_records(Store(tmp_path / "store"))
        if record.announced.sweep
    ]
    assert sorted(points) == ["anything", "balanced"]


SMALL_TRUNK = (
    "trunk=conv", "weights=none", "frozen=nothing", "size=16", "stored=auto", "dim=8", "folds=2",
    "trials=1", "startup=0", "reproductions=1", "iterations=1", "epochs=1",
)  # fmt: skip


def test_batches_of_any_size_are_swept_and_shown_with_their_shapes(assay, tmp_path):
    """The sizes of the unbiased evaluation, which its 5 images per class do not divide."""
    words = ["--data", "glyphs", "--protocol", "unbiased/inception-bn", "--engine", "inline"]
    words += ["--methods", "contrastive,normalized_softmax", *set_options(SMALL_TRUNK)]
    sizes = "2,16,128"
    code, out, err = assay("sweep", *words, "--vary", f"batch={sizes}", "--out", tmp_path / "store")
    assert code == 0, err
    assert re.findall(r"^(\w+ +\d+ \(\d+ x \d+\))", re.sub(" +", " ", out), re.MULTILINE) == [
        "contrastive 2 (1 x 2)",
        "contrastive 16 (4 x 4)",
        "contrastive 120 (24 x 5)",  # the protocol's own, where the parameters were selected
        "contrastive 128 (32 x 4)",
        "normalized_softmax 2 (1 x 2)",
        "normalized_softmax 16 (8 x 2)",
        "normalized_softmax 120 (60 x 2)",
        "normalized_softmax 128 (64 x 2)",
    ]
    page = " ".join((tmp_path / "store" / "report" / "index.html").read_text().split())
    assert "contrastive at batch=2: each batch was 2 images of one class" in page
    assert "contrastive at batch=16: each batch" not in page
