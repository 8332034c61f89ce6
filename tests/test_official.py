"""Published data sets: every form of them is the same data; missing, extra and damaged files are
named.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from assay.data import Dataset, datasets, inspect, load, splits
from assay.data.sources import landmarks, omniglot
from assay.data.sources.cub import CUB_RELEASE
from assay.data.sources.landmarks import group
from assay.data.sources.omniglot import load_omniglot
from assay.errors import BadInput
from assay.protocols import FirstStep, Protocol
from official import (
    CLASSES,
    IMAGES,
    MINIATURES,
    QUERIES,
    TRAINVAL,
    Miniature,
    copy_shuffled,
    image_id,
    jpg,
    make_omniglot_part,
    put,
    shrink,
    write_csv,
)
from sealed import receipt

SHARED = Path(__file__).parents[2] / "shared" / "data"
PROTOCOL = Protocol("p.v1")

every_miniature = pytest.mark.parametrize("name", list(MINIATURES))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make each miniature, unpacked; tests do not change them."""
    folder = tmp_path_factory.mktemp("made")
    for name, mini in MINIATURES.items():
        (folder / name).mkdir()
        mini.make(folder / name)
    return {name: folder / name for name in MINIATURES}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copy(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[str, Path]]:
    """Copy a miniature so that a test can change it; return its `kind:path` and its unpacked
    folder.
    """

    def make(name: str) -> tuple[str, Path]:
        mini = MINIATURES[name]
        shrink(monkeypatch, name)
        shutil.copytree(made[name], tmp_path / "copy")
        root = (
            tmp_path / "copy"
            if mini.kind in ("cars", "omniglot")
            else tmp_path / "copy" / mini.root
        )
        return f"{mini.kind}:{tmp_path / 'copy'}", root

    return make


def everything(dataset: Dataset) -> list[object]:
    """Return all by which two data sets are the same and split alike."""
    rows = np.arange(len(dataset.labels))
    marks = [None if mark is None else mark.tolist() for mark in (dataset.query, dataset.gallery)]
    return [
        *(
            dataset.name,
            dataset.modality,
            dataset.class_names,
            list(dataset.ids),
            dataset.labels.tolist(),
            dataset.trainval,
        ),
        *(dataset.metadata, marks, dataset.fingerprint(rows), splits.parts(dataset, PROTOCOL)),
    ]


def forms(mini: Miniature, unpacked: Path, packed: Path) -> list[Path]:
    """Return the folder of the archives, an archive, the folder above the unpacked folder, and the
    unpacked folder.
    """
    return [packed, packed / next(iter(mini.archives)), unpacked, unpacked / mini.root]


@every_miniature
def test_all_forms_are_the_same_data(
    name: str, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini = MINIATURES[name]
    shrink(monkeypatch, name)
    found = forms(mini, made[name], mini.pack(made[name], tmp_path / "packed"))
    if name == "omniglot":
        found = [found[0], found[2]]  # one archive or folder is one part of it, which is other data
    first, *others = [everything(load(f"{mini.kind}:{path}")) for path in found]
    assert all(other == first for other in others)


@every_miniature
def test_relative_paths_will_do(
    name: str, made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, name)
    kind = MINIATURES[name].kind
    whole = everything(load(f"{kind}:{made[name]}"))
    monkeypatch.chdir(made[name])
    assert everything(load(f"{kind}:.")) == whole


def test_a_home_is_meant_by_its_sign(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(MINIATURES))
    shrink(monkeypatch, name)
    kind = MINIATURES[name].kind
    whole = everything(load(f"{kind}:{made[name]}"))
    monkeypatch.setenv("HOME", str(made[name].parent))
    assert everything(load(f"{kind}:~/{made[name].name}")) == whole
    with pytest.raises(BadInput, match="there is no ~nobody-of-this-name/birds"):
        load(f"{kind}:~nobody-of-this-name/birds")


@every_miniature
def test_neither_place_nor_order_on_disk_matters(
    name: str, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, name)
    kind = MINIATURES[name].kind
    copies = [copy_shuffled(made[name], tmp_path / f"copy {seed}", seed) for seed in range(2)]
    first, *others = [everything(load(f"{kind}:{folder}")) for folder in (made[name], *copies)]
    assert all(other == first for other in others)


@every_miniature
def test_one_changed_image_changes_the_fingerprint(
    name: str, copy: Callable[[str], tuple[str, Path]]
) -> None:
    asked, _ = copy(name)
    before = load(asked)
    rows = np.arange(len(before.labels))
    put(before.items.paths[7], jpg(999))
    after = load(asked)
    assert after.fingerprint(rows) != before.fingerprint(rows)
    assert after.fingerprint(np.delete(rows, 7)) == before.fingerprint(np.delete(rows, 7))


@every_miniature
def test_the_official_split_is_taken(
    name: str, copy: Callable[[str], tuple[str, Path]], tmp_path: Path
) -> None:
    asked, _ = copy(name)
    dataset = load(asked)
    trainval, sealed = splits.of(dataset, PROTOCOL)
    test = sealed.open(receipt(tmp_path, trainval.fingerprint))
    expected = CLASSES if name == "landmarks" else TRAINVAL
    assert (
        dataset.trainval == len(trainval.class_names) == expected != len(dataset.class_names) // 2
    )
    assert test.class_names == dataset.class_names[expected:]
    assert (trainval.query, trainval.gallery) == (None, None)


@every_miniature
def test_the_official_counts_are_asked_of_the_data(name: str, made: dict[str, Path]) -> None:
    with pytest.raises(
        BadInput,
        match=r" has [\d,]+ [a-z ,]+, officially [\d,]+: [\d,]+ too few.*; get .* from https://",
    ):
        load(f"{MINIATURES[name].kind}:{made[name]}")


@every_miniature
def test_a_folder_without_the_data_set_is_refused_with_what_belongs_there(
    name: str, tmp_path: Path
) -> None:
    kind = MINIATURES[name].kind
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    with pytest.raises(BadInput) as refused:
        load(f"{kind}:{tmp_path / 'empty'}")
    said = str(refused.value)
    assert "\n" not in said
    assert "does not hold the data set, which is " in said
    assert " from https://" in said
    assert "unpack" in said
    assert any(command in said for command in ("tar -x", "unzip"))


@every_miniature
def test_a_file_that_is_no_archive_is_no_data_set(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not hold the data set"):
        load(f"{MINIATURES[name].kind}:{put(tmp_path / 'some' / 'thing.txt', 'text')}")


@every_miniature
def test_missing_images_are_counted_and_the_first_named(
    name: str, copy: Callable[[str], tuple[str, Path]]
) -> None:
    asked, _ = copy(name)
    dataset = load(asked)
    gone = sorted(zip(dataset.ids, dataset.items.paths, strict=True))[:4]
    for _, path in gone:
        path.unlink()
    with pytest.raises(
        BadInput, match=f"{re.escape(', '.join(name for name, _ in gone[:3]))}, \\.\\.\\.; get "
    ) as refused:
        load(asked)
    assert re.search(r"lacks 4 of \d+ images|4 too few", str(refused.value))


@every_miniature
def test_a_damaged_image_is_named_by_load_and_let_through_by_inspect(
    name: str, copy: Callable[[str], tuple[str, Path]]
) -> None:
    asked, _ = copy(name)
    path = load(asked).items.paths[5]
    put(path, path.read_bytes()[:20])
    with pytest.raises(BadInput, match=f"^{re.escape(str(path))} cannot be read as an image"):
        load(asked)
    dataset = inspect(asked)
    assert [row for row in range(len(dataset.labels)) if dataset.items.problem(row)] == [5]


def test_several_damaged_images_are_counted(copy: Callable[[str], tuple[str, Path]]) -> None:
    asked, _ = copy("cub")
    for path in load(asked).items.paths[3:6]:
        put(path, b"")
    with pytest.raises(
        BadInput, match=r"the file is empty.* \(3 such samples; `assay data show cub:"
    ):
        load(asked)


@every_miniature
def test_a_link_out_of_the_data_is_refused(
    name: str, copy: Callable[[str], tuple[str, Path]], tmp_path: Path
) -> None:
    asked, _ = copy(name)
    path = load(asked).items.paths[5]
    path.rename(tmp_path / "secret.jpg")
    path.symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(BadInput, match=f"{re.escape(str(path))} leads out of "):
        load(asked)


@every_miniature
def test_an_archive_that_is_cut_off_is_refused(
    name: str, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini = MINIATURES[name]
    shrink(monkeypatch, name)
    packed = mini.pack(made[name], tmp_path / "packed")
    archive = packed / next(iter(mini.archives))
    put(archive, archive.read_bytes()[: archive.stat().st_size * 2 // 3])
    with pytest.raises(
        BadInput, match=f"{re.escape(archive.name)} .*cannot be unpacked.*fetch it again"
    ):
        load(f"{mini.kind}:{packed}")


@pytest.mark.parametrize("name", ["cub", "cars", "later cars", "sop", "inshop"])
def test_files_that_no_list_has_are_left_out_with_a_note(
    name: str, copy: Callable[[str], tuple[str, Path]]
) -> None:
    asked, _ = copy(name)
    before = load(asked)
    stray = before.items.paths[0].with_name("stray.jpg")
    put(stray, jpg(1))
    put(stray.with_name("._stray.jpg"), b"what a Mac leaves")
    after = load(asked)
    assert everything(after) == everything(before)
    assert len(after.notes) == 1
    assert re.fullmatch(
        r"1 files left out that are not in the official list: .*stray\.jpg", after.notes[0]
    )


def test_two_copies_side_by_side_are_not_chosen_between(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("cub")
    shutil.copytree(root, root.with_name("CUB again"))
    with pytest.raises(
        BadInput,
        match="holds the data set twice, in CUB again and CUB_200_2011; give one of the two",
    ):
        load(asked)


def test_cub_is_numbered_as_its_lists_say(copy: Callable[[str], tuple[str, Path]]) -> None:
    dataset = load(copy("cub")[0])
    assert dataset.class_names[:2] == ("001.Bird_z", "002.Bird_y")
    assert dataset.ids[3:5] == [
        "images/002.Bird_y/Bird_y_0001_796001.jpg",
        "images/002.Bird_y/Bird_y_0002_796001.jpg",
    ]
    assert dataset.labels.tolist() == np.repeat(np.arange(CLASSES), IMAGES).tolist()
    assert (dataset.modality, dataset.items.inputs, dataset.name) == ("photo", 3, "cub")


def test_cub_listed_in_another_order_is_the_same(copy: Callable[[str], tuple[str, Path]]) -> None:
    asked, root = copy("cub")
    before = everything(load(asked))
    for name in ("images.txt", "image_class_labels.txt"):
        lines = (root / name).read_text().splitlines(keepends=True)
        put(root / name, "".join(reversed(lines)))
    assert everything(load(asked)) == before


Change = Callable[[str], str]


def drop_last(text: str) -> str:
    return text[: text[:-1].rindex("\n") + 1]


@pytest.mark.parametrize(
    ("file", "change", "word"),
    [
        ("images.txt", drop_last, "image 60 is in image_class_labels.txt but not in images.txt"),
        (
            "image_class_labels.txt",
            drop_last,
            "image 60 is in images.txt but not in image_class_labels.txt",
        ),
        (
            "image_class_labels.txt",
            lambda text: text.replace("\n7 3\n", "\n7 x\n"),
            "a word where a number belongs",
        ),
        (
            "image_class_labels.txt",
            lambda text: text.replace("\n7 3\n", "\n7\n"),
            "line 7 of .* has 1 words, not 2",
        ),
        (
            "image_class_labels.txt",
            lambda text: text.replace("\n7 3\n", "\n7 0\n"),
            "21 classes, officially 20: 1 too many",
        ),
        (
            "image_class_labels.txt",
            lambda text: text.replace(" 20\n", " 21\n"),
            "classes are not numbered from 1 to 20",
        ),
        (
            "image_class_labels.txt",
            lambda text: text.replace("\n7 3\n", "\n6 3\n"),
            "lists 6 twice",
        ),
        ("images.txt", lambda text: text.replace("_0002_", "_0001_"), "lists images/001.* twice"),
        ("images.txt", lambda text: text.replace("001.Bird_z/", "../../"), "leads out of "),
        ("images.txt", lambda text: text.replace("001.Bird_z/", "/etc/"), "lacks 3 of 60 images"),
        ("classes.txt", drop_last, "19 classes, officially 20: 1 too few"),
    ],
)
def test_lists_of_cub_that_are_wrong_are_named(
    copy: Callable[[str], tuple[str, Path]], file: str, change: Change, word: str
) -> None:
    asked, root = copy("cub")
    put(root / file, change((root / file).read_text()))
    with pytest.raises(BadInput, match=word):
        load(asked)


def test_a_list_that_is_not_there_or_not_text_is_named(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("cub")
    put(root / "classes.txt", b"1 Gro\xdfe\n")
    with pytest.raises(BadInput, match=r"classes\.txt cannot be read: it is not UTF-8"):
        load(asked)
    (root / "classes.txt").unlink()
    with pytest.raises(BadInput, match=r"classes\.txt cannot be read: No such file"):
        load(asked)


def test_both_editions_of_cars_have_the_same_classes(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "cars")
    first, later = (load(f"cars:{made[name]}") for name in ("cars", "later cars"))
    assert first.class_names == later.class_names
    assert first.class_names[:2] == ("Maker Model z 2000", "Maker Model y 2001")
    assert (
        first.labels.tolist()
        == later.labels.tolist()
        == np.repeat(np.arange(CLASSES), IMAGES).tolist()
    )
    assert first.ids[:2] == ["car_ims/000001.jpg", "car_ims/000002.jpg"]
    assert Counter(id_.partition("/")[0] for id_ in later.ids) == {
        "cars_train": 2 * CLASSES,
        "cars_test": CLASSES,
    }


@pytest.mark.parametrize(
    ("name", "file", "word"),
    [
        ("cars", "car_ims", "has cars_annos.mat but neither car_ims/ nor car_ims.tgz"),
        ("cars", "cars_annos.mat", "does not hold the data set"),
        (
            "later cars",
            "cars_test",
            "has cars_test_annos_withlabels.mat but neither cars_test/ nor cars_test.tgz",
        ),
        (
            "later cars",
            "devkit/cars_test_annos_withlabels.mat",
            "without which half of the labels are unknown",
        ),
    ],
)
def test_a_piece_of_cars_that_is_not_there_is_named(
    copy: Callable[[str], tuple[str, Path]], name: str, file: str, word: str
) -> None:
    asked, root = copy(name)
    (root / file).rename(root.parent / "away")
    with pytest.raises(BadInput, match=word):
        load(asked)


def test_lists_of_cars_may_lie_beside_the_devkit_and_images_in_a_folder_of_the_same_name(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("later cars")
    before = everything(load(asked))
    (root / "devkit" / "cars_test_annos_withlabels.mat").rename(
        root / "cars_test_annos_withlabels.mat"
    )
    (root / "cars_train").rename(root / "inner")
    (root / "cars_train").mkdir()
    (root / "inner").rename(root / "cars_train" / "cars_train")
    assert everything(load(asked)) == before


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"text", "cannot be read as a MATLAB file"),
        ({"annotations": np.zeros(3)}, "has no class_names"),
        (
            {"annotations": np.zeros(3), "class_names": np.zeros(3)},
            "have no field relative_im_path",
        ),
    ],
)
def test_a_damaged_mat_file_is_named(
    copy: Callable[[str], tuple[str, Path]], content: bytes | dict[str, object], word: str
) -> None:
    asked, root = copy("cars")
    if isinstance(content, bytes):
        put(root / "cars_annos.mat", content)
    else:
        savemat(root / "cars_annos.mat", content)
    with pytest.raises(BadInput, match=rf"cars_annos\.mat {word}") as refused:
        load(asked)
    assert "cars_annos.mat" in str(refused.value)


def test_sop_goes_by_its_lists_and_keeps_super_classes(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("sop")
    dataset = load(asked)
    assert dataset.class_names == tuple(str(number) for number in range(1, CLASSES + 1))
    assert dataset.ids[0] == "toaster_final/111085122871_0.JPG"
    assert [dataset.metadata["category"][row] for row in (0, 3, 6)] == [
        "toaster",
        "bicycle",
        "sofa",
    ]
    train, test = ((root / f"Ebay_{part}.txt").read_text() for part in ("train", "test"))
    put(root / "Ebay_train.txt", train.replace("\n1 1 ", "\n1 20 "))
    with pytest.raises(BadInput, match=r"class 20 is in both Ebay_train\.txt and Ebay_test\.txt"):
        load(asked)
    put(root / "Ebay_train.txt", train)
    put(root / "Ebay_test.txt", drop_last(test))
    with pytest.raises(BadInput, match="59 images, officially 60: 1 too few"):
        load(asked)


def test_inshop_marks_query_and_gallery_of_the_test_half(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    dataset = load(copy("inshop")[0])
    assert dataset.query is not None
    assert dataset.gallery is not None
    rows = {id_: row for row, id_ in enumerate(dataset.ids)}
    for id_, row in rows.items():
        tested = dataset.labels[row] >= TRAINVAL
        assert dataset.query[row] == (tested and id_.endswith("01_1_front.jpg"))
        assert dataset.gallery[row] == (tested and not id_.endswith("01_1_front.jpg"))
    assert dataset.class_names[0] == "id_00000001"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (drop_last, "says on its first line that it has 60 rows but has 59"),
        (lambda text: "", "list_eval_partition.txt is empty; "),
        (
            lambda text: drop_last(text).replace("60\n", "59\n", 1),
            "59 images, officially 60: 1 too few",
        ),
        (
            lambda text: text.replace(" gallery\n", " val\n", 1),
            "in part 'val', not in train, query, gallery",
        ),
        (
            lambda text: text.replace(" query\n", " train\n", 1),
            "item id_00000012 is both in train and in the test half",
        ),
        (
            lambda text: text.replace(" query\n", " gallery\n", 1),
            "8 queries, officially 9: 1 too few",
        ),
    ],
)
def test_a_list_of_inshop_that_is_wrong_is_named(
    copy: Callable[[str], tuple[str, Path]], change: Change, word: str
) -> None:
    asked, root = copy("inshop")
    listed = root / "Eval" / "list_eval_partition.txt"
    put(listed, change(listed.read_text()))
    with pytest.raises(BadInput, match=word):
        load(asked)


def test_inshop_without_the_folders_in_between_is_the_same(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("inshop")
    before = everything(load(asked))
    (root / "Eval" / "list_eval_partition.txt").rename(root / "list_eval_partition.txt")
    (root / "Img" / "img").rename(root / "img")
    assert everything(load(asked)) == before
    shutil.rmtree(root / "img")
    with pytest.raises(BadInput, match=r"neither Img/img/ nor Img/img\.zip"):
        load(asked)


def test_landmarks_become_classes_that_say_what_the_lists_say(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    dataset = load(copy("landmarks")[0])
    assert dataset.query is not None
    assert dataset.gallery is not None
    assert dataset.class_names[:2] == ("867", "874")
    assert dataset.class_names[-1] == "distractors"
    label = {
        Path(id_).stem: int(label) for id_, label in zip(dataset.ids, dataset.labels, strict=True)
    }
    gallery = [Path(dataset.ids[row]).stem for row in np.flatnonzero(dataset.gallery)]
    assert sorted(gallery) == sorted(image_id("index", number) for number in range(10))
    asked = [Path(dataset.ids[row]).stem for row in np.flatnonzero(dataset.query)]
    assert sorted(asked) == sorted(image_id("test", query) for query in (0, 1, 2, 6))
    for query in (0, 1, 2, 6):
        listed = {image_id("index", number) for number in QUERIES[query] or ()}
        assert {
            image for image in gallery if label[image] == label[image_id("test", query)]
        } == listed
    distractors = {image for image in gallery if label[image] == len(dataset.class_names) - 1}
    assert distractors == {image_id("index", number) for number in (7, 8, 9)}
    assert not distractors & set(asked)
    assert [note[:18] for note in dataset.notes] == ["1 queries left out", "2 queries left out"]
    assert Counter(dataset.metadata["usage"]) == {"public": 4, "": 60 + 10}


def test_lists_of_landmarks_may_be_quoted_and_images_lie_without_the_folder_of_their_part(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("landmarks")
    before = everything(load(asked))
    listed = (root / "train_clean.csv").read_text().splitlines()
    quoted = "\r\n".join(
        ",".join(f'"{cell}"' for cell in line.split(",")) for line in reversed(listed[1:])
    )
    put(root / "train_clean.csv", f"{listed[0]}\r\n{quoted}\r\n")
    for part in ("train", "index", "test"):
        shutil.copytree(root / part, root, dirs_exist_ok=True)
        shutil.rmtree(root / part)
    assert everything(load(asked)) == before


@pytest.mark.parametrize("file", ["train_clean.csv", "index.csv", "retrieval_solution_v2.1.csv"])
def test_a_list_of_landmarks_that_is_not_there_is_named(
    copy: Callable[[str], tuple[str, Path]], file: str
) -> None:
    asked, root = copy("landmarks")
    (root / file).unlink()
    with pytest.raises(BadInput, match=f"has no {re.escape(file)}; get "):
        load(asked)


@pytest.mark.parametrize(
    ("file", "change", "word"),
    [
        (
            "index.csv",
            lambda text: text.replace("id\n", "name\n"),
            "row 2 of .*index.csv has no id",
        ),
        (
            "index.csv",
            lambda text: text.replace("id\n", "id\n../../x\n"),
            r"has '\.\./\.\./x' where the id of an image belongs",
        ),
        ("index.csv", lambda text: text + text.splitlines()[-1] + "\n", "lists .* twice"),
        (
            "train_clean.csv",
            lambda text: text.replace("\n1000,", "\nTower,"),
            "a word where a number belongs",
        ),
        ("train_clean.csv", drop_last, "19 classes in trainval, officially 20"),
        (
            "retrieval_solution_v2.1.csv",
            lambda text: text.replace(image_id("index", 6), "abcdef"),
            "does not have, such as abcdef",
        ),
        ("retrieval_solution_v2.1.csv", lambda text: text + '"', "cannot be read as a table"),
    ],
)
def test_lists_of_landmarks_that_are_wrong_are_named(
    copy: Callable[[str], tuple[str, Path]], file: str, change: Change, word: str
) -> None:
    asked, root = copy("landmarks")
    put(root / file, change((root / file).read_text()))
    with pytest.raises(BadInput, match=word):
        load(asked)


def test_a_landmark_with_very_many_images_can_be_read(tmp_path: Path) -> None:
    images = " ".join(image_id("train", number) for number in range(10_000))
    file = write_csv(tmp_path / "train_clean.csv", ["landmark_id", "images"], [[7, images]])
    names, found = landmarks._read_train(file)
    assert (names, len(found)) == (["7"], 10_000)


def test_grouping_of_landmarks_matches_its_definition_written_out() -> None:
    draw = np.random.default_rng(0)
    index = [f"i{number:02}" for number in range(30)]
    for _ in range(50):
        lists = [draw.choice(6, draw.integers(0, 3), replace=False) for _ in range(6)]
        queries = [
            {"id": f"q{row}", "images": " ".join(index[5 * k + i] for k in some for i in range(3))}
            for row, some in enumerate(lists)
        ]
        found = group(index, queries)
        listed = {
            image: frozenset(q["id"] for q in queries if image in q["images"].split())
            for image in index
        }
        for one in index:
            for other in index:
                assert (found.index[one] == found.index[other]) == (listed[one] == listed[other])
        for query in queries:
            classes = {found.index[image] for image in query["images"].split()}
            assert found.queries.get(query["id"]) == (classes.pop() if len(classes) == 1 else None)
        left_out = sum(int(note.split()[0]) for note in found.notes)
        assert left_out == len(queries) - len(found.queries)


def test_omniglot_goes_by_the_numbers_of_its_characters(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("omniglot")
    dataset = load(asked)
    assert dataset.class_names[:7] == (
        *(f"Greek/character{n:02}" for n in range(1, 7)),
        "Atemayar/character01",
    )
    assert dataset.class_names[11] == "Tengwar/character01"
    assert dataset.ids[20] == "Greek/character02/0002_01.png"
    assert (dataset.modality, dataset.items.inputs, dataset.trainval) == ("drawing", 1, 11)
    for part in ("images_background", "images_evaluation"):
        alone = load_omniglot(root / part)
        assert alone.trainval is None
        assert len(alone.class_names) == {"images_background": 11, "images_evaluation": 9}[part]


def test_one_archive_of_omniglot_is_that_part_alone(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "omniglot")
    packed = MINIATURES["omniglot"].pack(made["omniglot"], tmp_path / "packed")
    alone = load(f"omniglot:{packed / 'images_evaluation.zip'}")
    assert len(alone.class_names) == 9
    assert alone.trainval is None


def make_small(folder: Path) -> None:
    make_omniglot_part(
        folder, "images_background_small1", {"Greek": range(1, 4), "Korean": range(4, 6)}
    )
    make_omniglot_part(
        folder, "images_background_small2", {"Greek": range(1, 4), "Tagalog": range(7, 8)}
    )


def test_what_the_small_sets_share_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "omniglot")
    make_small(tmp_path / "small")
    dataset = load(f"omniglot:{tmp_path / 'small'}")
    assert len(dataset.ids) == len(set(dataset.ids)) == 6 * 20
    assert dataset.class_names[3:] == (
        "Korean/character01",
        "Korean/character02",
        "Tagalog/character01",
    )
    assert dataset.notes[0].startswith(
        "3 classes are in both small sets and are taken once: Greek/character01, "
    )
    make_omniglot_part(tmp_path / "small", "images_evaluation", {"Angelic": range(12, 21)})
    assert load(f"omniglot:{tmp_path / 'small'}").trainval == 6
    twin = tmp_path / "small" / "images_background_small2" / "Greek" / "character02" / "0002_09.png"
    put(twin, twin.with_name("0002_10.png").read_bytes())
    with pytest.raises(BadInput, match="should be the same drawing"):
        load(f"omniglot:{tmp_path / 'small'}")


def test_small_sets_beside_the_whole_background_add_nothing(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("omniglot")
    before = everything(load(asked))
    make_small(root)
    assert everything(load(asked)) == before


def test_drawings_of_omniglot_that_do_not_belong_are_named(
    copy: Callable[[str], tuple[str, Path]],
) -> None:
    asked, root = copy("omniglot")
    folder = root / "images_background" / "Greek" / "character01"
    put(folder / ".DS_Store", b"")
    assert load(asked)
    stray = put(folder / "0001_21.png", (folder / "0001_01.png").read_bytes())
    with pytest.raises(BadInput, match="221 images, officially 220: 1 too many"):
        load(asked)
    stray.rename(folder / "0005_20.png")
    with pytest.raises(BadInput, match="character01 has drawings of 2 characters, 0001 and 0005"):
        load(asked)
    (folder / "0005_20.png").rename(folder / "notes.txt")
    with pytest.raises(BadInput, match=r"notes\.txt is not named like a drawing"):
        load(asked)
    (folder / "notes.txt").unlink()
    (folder / "0001_07.png").unlink()
    with pytest.raises(
        BadInput,
        match=r"1 too few: Greek/character01/0001_07\.png; get images_background\.zip from ",
    ):
        load(asked)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the small sets of Omniglot are not here")
@pytest.mark.slow
def test_the_real_small_sets_of_omniglot(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "ASSAY_CACHE", str(tmp_path_factory.getbasetemp().parent / "assay-cache")
    )  # unpacked once, not every time
    one, other = (
        load(f"omniglot:{SHARED / f'omniglot_background_small{number}.zip'}") for number in (1, 2)
    )
    assert (len(one.class_names), len(one.ids), len(other.class_names), len(other.ids)) == (
        136,
        2720,
        156,
        3120,
    )
    both = load(f"omniglot:{SHARED}")
    assert set(both.class_names) == {*one.class_names, *other.class_names}
    assert (len(both.class_names), len(both.ids), both.trainval) == (242, 4840, None)
    assert {name.partition("/")[0] for name in {*one.class_names} & {*other.class_names}} == {
        "Greek",
        "Latin",
    }
    pixels = np.asarray(both.items.arrays(np.array([0, 4839]), FirstStep("square", 105)))
    assert pixels.shape == (2, 105, 105, 1)
    assert set(np.unique(pixels)) == {0, 255}
    assert len(splits.of(both, PROTOCOL)[0].class_names) == 121


def test_counts_that_the_papers_give() -> None:
    from assay.data.sources.cars import CARS_RELEASE
    from assay.data.sources.inshop import INSHOP_RELEASE
    from assay.data.sources.sop import SOP_RELEASE

    for official, classes, images, half in (
        (CUB_RELEASE, 200, 11_788, 100),
        (CARS_RELEASE, 196, 16_185, 98),
        (SOP_RELEASE, 22_634, 120_053, 11_318),
        (INSHOP_RELEASE, 7_982, 52_712, 3_997),
    ):
        found = [official.counts[what] for what in ("classes", "images", "classes in trainval")]
        assert found == [classes, images, half]
    assert (
        INSHOP_RELEASE.counts["queries"]
        + INSHOP_RELEASE.counts["gallery images"]
        + INSHOP_RELEASE.counts["images in trainval"]
        == 52_712
    )
    parts = omniglot.PARTS["images_background"], omniglot.PARTS["images_evaluation"]
    assert [part.counts["classes"] for part in parts] == [964, 659]
    assert sum(part.counts["images"] for part in parts) == 32_460


def test_every_kind_says_in_a_line_what_it_is() -> None:
    assert {mini.kind + ":" for mini in MINIATURES.values()} | {"table:"} <= set(datasets)
    for name, loader in datasets.items():
        assert len((loader.__doc__ or "").strip().partition("\n")[0]) > 20, name
