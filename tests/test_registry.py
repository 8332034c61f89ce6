"""Named parts: no name twice, and a miss that helps."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.registry import Paper, Registry, UnknownName, import_folder, replacing


@pytest.fixture
def shapes() -> Registry[type]:
    registry = Registry[type]("shape")

    @registry("triangle")
    class Triangle:
        pass

    @registry("circle")
    class Circle:
        pass

    return registry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package `some_parts` that can be imported."""
    folder = tmp_path / "some_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_parts"]:
        del sys.modules[name]


def test_parts_keep_the_order_in_which_they_were_added(shapes: Registry[type]) -> None:
    assert list(shapes) == ["triangle", "circle"]
    assert len(shapes) == 2
    assert [part.__name__ for part in shapes.values()] == ["Triangle", "Circle"]


def test_the_decorator_hands_back_what_it_decorates(shapes: Registry[type]) -> None:
    class Square:
        pass

    assert shapes("square")(Square) is Square
    assert shapes["square"] is Square


def test_a_duplicate_raises_and_the_first_stays(shapes: Registry[type]) -> None:
    first = shapes["circle"]
    with pytest.raises(ValueError, match="a shape called 'circle' is registered already"):
        shapes("circle")(int)
    with pytest.raises(ValueError, match="'circle'"):
        shapes.set("circle", first)
    assert shapes["circle"] is first
    assert len(shapes) == 2


def test_a_miss_suggests_the_nearest_name(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownName, match="no shape is called 'circel'; did you mean 'circle'\\?"):
        shapes["circel"]


def test_a_miss_without_a_near_name_lists_them_all(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownName) as raised:
        shapes["zzz"]
    assert "did you mean" not in str(raised.value)
    assert "(all: circle, triangle)" in str(raised.value)


def test_a_miss_is_both_bad_input_and_a_key_error(shapes: Registry[type]) -> None:
    assert issubclass(UnknownName, BadInput)
    assert issubclass(UnknownName, KeyError)
    with pytest.raises(BadInput):
        shapes["square"]
    with pytest.raises(KeyError):
        shapes["square"]


def test_the_message_of_a_miss_is_not_quoted_as_a_key_errors_is(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownName) as raised:
        shapes["circel"]
    assert str(raised.value).startswith("no shape")


def test_a_miss_in_an_empty_registry_is_a_miss() -> None:
    with pytest.raises(UnknownName, match="no shape is called 'x'"):
        Registry[int]("shape")["x"]


def test_asking_whether_a_name_is_there_raises_nothing(shapes: Registry[type]) -> None:
    assert "circle" in shapes
    assert "square" not in shapes
    assert shapes.get("square") is None


def test_names_are_told_apart_by_case(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownName, match="did you mean 'circle'"):
        shapes["Circle"]


def test_two_registries_share_nothing(shapes: Registry[type]) -> None:
    assert "circle" not in Registry[type]("shape")


def add(module: str, registry: Registry[Any], name: str, part: object) -> None:
    """Add a part as the code of that module would."""
    exec(
        "registry.set(name, part)",
        {"__name__": module, "registry": registry, "name": name, "part": part},
    )


def test_parts_of_one_origin_take_the_place_of_those_it_added_before(
    shapes: Registry[type],
) -> None:
    with replacing("mine"):
        add("mine", shapes, "square", int)
        add("mine", shapes, "line", int)
    with replacing("mine"):
        add("mine", shapes, "square", float)
    assert shapes["square"] is float
    assert list(shapes) == ["triangle", "circle", "square"]


def test_replacing_reaches_every_registry(shapes: Registry[type]) -> None:
    sizes = Registry[int]("size")
    with replacing("mine"):
        add("mine", shapes, "square", int)
        add("mine", sizes, "small", 1)
    with replacing("mine"):
        pass
    assert "square" not in shapes
    assert "small" not in sizes


def test_one_origin_does_not_replace_the_parts_of_another(shapes: Registry[type]) -> None:
    with replacing("mine"):
        add("mine", shapes, "square", int)
    with pytest.raises(ValueError, match="'square' is registered already"), replacing("yours"):
        add("yours", shapes, "square", float)
    with pytest.raises(ValueError, match="'circle' is registered already"), replacing("yours"):
        add("yours", shapes, "circle", float)
    assert shapes["square"] is int


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_of_an_origin_that_fails_no_part_stays(
    shapes: Registry[type], error: type[BaseException]
) -> None:
    def fail() -> None:
        with replacing("mine"):
            add("mine", shapes, "square", int)
            raise error

    with replacing("mine"):
        add("mine", shapes, "old", int)
    with pytest.raises(error):
        fail()
    assert list(shapes) == ["triangle", "circle"]
    with replacing("mine"):
        add("mine", shapes, "square", float)
    assert shapes["square"] is float


def test_parts_added_afterwards_belong_to_no_origin(shapes: Registry[type]) -> None:
    with replacing("mine"):
        pass
    shapes.set("square", int)
    with replacing("mine"):
        pass
    assert shapes["square"] is int


def test_every_module_of_a_folder_is_imported_in_the_order_of_names(package: Path) -> None:
    for name in ("b", "a", "c"):
        (package / f"{name}.py").write_text(f"from some_parts import seen\nseen.append({name!r})\n")
    (package / "notes.txt").write_text("no module")
    import_folder("some_parts", [str(package)])
    assert sys.modules["some_parts"].seen == ["a", "b", "c"]


def test_a_module_that_fails_is_not_passed_over(package: Path) -> None:
    (package / "a.py").write_text("raise RuntimeError('broken part')\n")
    with pytest.raises(RuntimeError, match="broken part"):
        import_folder("some_parts", [str(package)])


def test_papers_are_values() -> None:
    assert Paper("Title", 2019, "url") == Paper("Title", 2019, "url", equation="")
    assert hash(Paper("Title", 2019, "url")) == hash(Paper("Title", 2019, "url"))
