"""The examples show what they promise: metrics that mislead, and NMI that rises by itself."""

import itertools
import runpy
import struct
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def example(name):
    return runpy.run_path(str(ROOT / "examples" / name))


# --- misleading_metrics.py ---


@pytest.fixture(scope="module")
def misleading():
    return example("misleading_metrics.py")


@pytest.fixture(scope="module")
def shown(misleading, tmp_path_factory):
    """What the script prints, and the picture that it writes."""
    picture, printed = tmp_path_factory.mktemp("examples") / "misleading.png", StringIO()
    with redirect_stdout(printed):
        misleading["main"](["--out", str(picture)])
    return [line for line in printed.getvalue().splitlines() if line.startswith("| ")], picture


@pytest.fixture(scope="module", params=["clean", "some points astray"])
def scores(shown, request):
    """By metric, the scores of the three embeddings in percent."""
    head, _, *rows = shown[0][:5] if request.param == "clean" else shown[0][5:]
    columns = zip(*(line.strip("| ").split(" | ") for line in (head, *rows)), strict=True)
    return {name: [float(cell) for cell in cells] for name, *cells in list(columns)[1:]}


@pytest.mark.parametrize("name", ["R@1", "NMI", "AMI", "F1"])
def test_a_misleading_metric_scores_all_three_alike(scores, name):
    assert len(scores[name]) == 3
    assert max(scores[name]) - min(scores[name]) <= 2


def test_map_at_r_tells_neighbours_apart(scores):
    assert all(after - before >= 10 for before, after in itertools.pairwise(scores["MAP@R"]))


@pytest.mark.parametrize("scores", ["some points astray"], indirect=True)
def test_points_astray_take_the_misleading_metrics_off_the_ceiling(scores):
    assert max(scores["R@1"] + scores["NMI"] + scores["F1"]) < 95


def test_only_the_spacing_differs(misleading):
    near, far = (misleading["embedding"](spacing) for spacing in (2.2, 4.0))
    moved = far[0] - near[0]
    assert np.array_equal(near[1], far[1])
    np.testing.assert_allclose(moved, 1.8 * misleading["CENTRES"][near[1]], atol=1e-12)


def test_tables_and_picture_are_those_of_the_documentation(shown):
    rows, picture = shown
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert len(rows) == 10
    assert [row for row in rows if row not in page] == []
    assert size_of(picture) == size_of(ROOT / "docs" / "images" / "misleading_metrics.png")


def size_of(picture):
    """Width and height of a PNG that is neither empty nor heavy."""
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert 20_000 < len(content) < 150_000
    width, height = struct.unpack(">II", content[16:24])
    assert 1000 <= width <= 2000
    assert 400 <= height <= 1000
    return width, height


# --- nmi_rises.py ---


@pytest.fixture(scope="module")
def rises():
    return example("nmi_rises.py")


@pytest.fixture(scope="module")
def of_the_trunk(rises):
    """NMI, AMI, and both of shuffled labels: 10, 5, 2 images per class of the first 100 classes."""
    z, y = rises["untrained_trunk"]()
    return np.array(list(rises["of_fewer_images"]((z[y < 100], y[y < 100]), (10, 5, 2))))


def test_random_vectors_gain_nmi_by_the_number_of_classes_alone(rises):
    found = rises["of_random_vectors"]({"few": (600, 6), "some": (600, 60), "many": (600, 200)})
    per_class, nmi, ami = np.array(list(found)).T
    assert per_class.tolist() == [100, 10, 3]
    assert (np.diff(nmi) > 20).all()
    assert (abs(ami) < 2).all()


def test_nmi_of_an_untrained_trunk_rises_as_images_per_class_fall(of_the_trunk):
    nmi, ami, _, _ = of_the_trunk.T
    assert (np.diff(nmi) > 3).all()
    assert ami[-1] < ami[0]


def test_shuffled_labels_are_worth_nothing_to_ami_and_much_to_nmi(of_the_trunk):
    _, _, nmi, ami = of_the_trunk.T
    assert (abs(ami) < 2).all()
    assert (nmi > 40).all()


def test_each_class_keeps_as_many_images_as_asked_for(rises):
    y = np.repeat(np.arange(4), [3, 5, 9, 7])
    z, kept = rises["only_some"]((y[:, None], y), 3)
    assert kept.tolist() == z[:, 0].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_both_tables_are_printed(rises, capsys, monkeypatch):
    small = {
        "SIZES": {"small": (60, 6)},
        "IMAGES_PER_CLASS": (2,),
        "untrained_trunk": lambda: rises["random_vectors"](60, 6),
    }
    for name, value in small.items():
        monkeypatch.setitem(rises["main"].__globals__, name, value)
    rises["main"]([])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line]
    assert [len(row) for row in rows] == [6, 6, 6, 5, 5, 5]
    assert rows[2][:4] == ["| small", "60", "6", "10.0"]
