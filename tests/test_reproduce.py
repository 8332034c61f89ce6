"""The reproduction path, end to end on a miniature laid out like CUB, with a file laid out like
BN-Inception's.
"""

import json
import re

import pytest
import torch

from assay.errors import BadInput
from assay.methods import methods
from assay.protocols import protocols
from assay.published import BEST_FOR, DATA, best_parameters
from assay.records.origin import Published
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import as_published, data_of, methods_published
from assay.trunks import build
from miniature import resolved
from official import make_cub, shrink

SMALL = (
    "size=64", "stored=72", "iterations=1", "epochs=1", "validate_every=1", "reproductions=2",
    "batch.embedding=4x2", "batch.classification=4x1", "folds=2",
)  # fmt: skip
CHOSEN = ("contrastive", "soft_triple", "pretrained")


@pytest.fixture(scope="module")
def cub(tmp_path_factory):
    """Return a folder with a miniature in CUB's layout, weights in the public file's, and one store
    for all tests: a second command finds the runs of the first.
    """
    root = tmp_path_factory.mktemp("cub")
    make_cub(root / "data")
    torch.manual_seed(0)
    torch.save(build("bn_inception", 3).body.state_dict(), root / "bn_inception-52deb4733.pth")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, "cub")
        yield root


def reproduce(assay, cub, *words, store="store"):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    weights = ("--weights", cub / "bn_inception-52deb4733.pth", "--pretrained-on", "ImageNet")
    return assay(
        "reproduce",
        "--engine",
        "inline",
        "--data",
        f"cub:{cub / 'data'}",
        "--out",
        cub / store,
        *weights,
        *settings,
        *words,
    )


def test_one_command_runs_the_published_parameters_and_judges_each_method(assay, cub):
    code, out, err = reproduce(assay, cub, "--methods", ",".join(CHOSEN))
    assert code == 0, err
    records = {record.method: record for record in study_records(Store(cub / "store"))}
    assert set(records) == set(CHOSEN) and all(record.complete for record in records.values())
    for name in ("contrastive", "soft_triple"):
        record, published = records[name], best_parameters(name, "cub")
        assert not record.trials
        assert record.selection.parameters == record.announced.given.parameters
        assert {key: record.selection.parameters[key] for key in published} == pytest.approx(
            published
        )
        assert record.announced.given.origin == Published("Musgrave et al. 2020", "cub")
        assert f"{name}: under changed settings the measured mean lies" in out
    assert re.search(r"^\d of [23] methods lie in the published interval", out, re.MULTILINE)
    page = (cub / "store" / "report" / "index.html").read_text()
    assert "Published versus measured" in page
    assert assay("verify", cub / "store")[0] == 0
    for name, record in records.items():
        assert set(methods[name].space) <= set(record.selection.parameters), "others at defaults"


def test_all_fourteen_methods_and_the_baseline_have_published_parameters():
    for data in BEST_FOR:
        names = methods_published(data)
        assert len(names) == 15 and "pretrained" in names


def test_every_published_setting_can_be_run():
    """Also those outside the declared ranges: a space bounds the search, not the constructor."""
    from assay.methods import assemble, with_given

    for data in BEST_FOR:
        protocol = resolved(protocols[f"reality-check/{data}.v1"])
        for name in methods_published(data):
            if name != "pretrained":
                found = best_parameters(name, data)
                assemble(methods[name], with_given(methods[name], protocol, found), protocol)


@pytest.mark.parametrize(
    "name", ["quick.v1", "reality-check/any.v1", "revisiting/cub.v1", "reality-check/birds.v1"]
)
def test_a_protocol_without_published_parameters_is_refused(name):
    with pytest.raises(BadInput, match="reality-check/cub"):
        data_of(name)


def test_published_parameters_are_run_under_the_version_with_the_paper_s_one_search(assay, cub):
    assert [as_published(f"reality-check/{data}") for data in DATA] == [
        f"reality-check/{data}.v1" for data in DATA
    ]
    assert as_published("reality-check/cub.v2") == "reality-check/cub.v2"
    assert (
        protocols["reality-check/cub"].searches
        > protocols[as_published("reality-check/cub")].searches
        == 1
    )
    code, _, err = reproduce(
        assay, cub, "--methods", "contrastive", "--protocol", "reality-check/cub.v2"
    )
    assert code == 2 and "which is reality-check/cub.v1; use that" in err


def test_a_custom_protocol_belongs_to_the_data_set_of_the_published_one():
    assert data_of("reality-check/sop.v1+custom-0123abcd") == "sop"


def test_batches_of_256_are_run_with_their_own_parameters_and_held_against_no_score(assay, cub):
    """The published scores are those of batches of 32."""
    protocol = ("--protocol", "reality-check/cub-256")
    code, out, err = reproduce(assay, cub, "--methods", "triplet", *protocol, store="large")
    assert code == 0, err
    (record,) = study_records(Store(cub / "large"))
    assert record.announced.given.origin == Published("Musgrave et al. 2020", "cub-256")
    assert record.selection.parameters == {"margin": 0.1368}
    assert "published interval" not in out
    assert assay("verify", cub / "large")[0] == 0


def test_batches_of_256_belong_to_cub():
    assert as_published("reality-check/cub-256") == "reality-check/cub-256.v1"
    assert data_of("reality-check/cub-256.v1+custom-0123abcd") == "cub-256"


def test_published_parameters_of_another_data_set_are_refused(assay, cub):
    code, _, err = reproduce(
        assay, cub, "--methods", "contrastive", "--protocol", "reality-check/cars"
    )
    assert code == 2 and "use --protocol reality-check/cub" in err


def test_a_method_without_published_parameters_is_refused(assay, cub):
    code, _, err = reproduce(assay, cub, "--methods", "supcon", store="refused")
    assert code == 2 and "supcon" in err and "contrastive" in err
    assert not (cub / "refused").exists()


def test_the_result_for_programs_has_every_comparison(assay, cub):
    code, out, _ = reproduce(assay, cub, "--methods", "contrastive", "--json")
    assert code == 0
    (comparison,) = json.loads(out)["comparisons"]
    assert comparison["published"][0]["method"] == "contrastive"
