"""Announcements with invented words: parameters that nobody published, prose, exceptions and names
of protocols. Each was announced before anything ran, so that all else follows from it.
"""

import re
from dataclasses import replace

import pytest

from again import retest
from assay.engines import InlineEngine
from assay.errors import BadInput
from assay.protocols import customise, protocols
from assay.records.origin import Published
from assay.records.store import Store
from assay.records.study import study_records
from assay.study import design_bench
from assay.study.reproduce import methods_published, with_published
from assay.verify import verify
from assay.verify.announced_again import TITLE
from assay.verify.preregistration import check_conditions
from forgery import announce
from miniature import make_features

CUSTOM = customise(protocols["quick"], ["dim=4", "trials=2"])
CUB = customise(
    protocols["reality-check/cub.v1"],
    ["trunk=auto", "weights=none", "frozen=nothing", "batch=16", "batch.classification=4x1"],
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"features:{make_features(tmp_path_factory.mktemp('announced') / 'mini.npz')}"


def problems(store):
    return [
        one.problem
        for one in verify(store)
        if one.problem and "no bench in benches/" not in one.problem
    ]


def found_in(store, data):
    (found,) = [one for one in retest(store, InlineEngine(), data) if one.what.endswith(TITLE)]
    return found


# --- published parameters -------------------------------------------------------------------------


def published(data, place, method, change=lambda given: given):
    designs = [with_published(one) for one in design_bench(data, [method], CUB, "cpu", ())]
    return announce(
        Store.create(place), designs, lambda said: replace(said, given=change(said.given))
    )


def test_what_was_published_passes_for_every_method(data, tmp_path):
    for name in methods_published("cub"):
        assert problems(published(data, tmp_path / name, name)) == [], name


def with_parameters(**more):
    return lambda given: replace(given, parameters={**given.parameters, **more})


def by(paper):
    return lambda given: replace(given, origin=Published(paper, "cub"))


UNPUBLISHED = {
    "a parameter beside them": (
        "triplet", with_parameters(distance="squared"), "no distance of triplet was published",
    ),
    "another value for a default": (
        "normalized_softmax", with_parameters(proxy_lr=0.5), "was published",
    ),
    "a paper that is not theirs": (
        "triplet", by("Max Planck Institute 2024"), "published by Max Planck Institute 2024",
    ),
}  # fmt: skip


@pytest.mark.forgery("verify", what="published parameters: {}")
@pytest.mark.parametrize("name", UNPUBLISHED)
def test_parameters_and_a_paper_that_were_made_up_are_found(data, tmp_path, name):
    method, change, words = UNPUBLISHED[name]
    found = problems(published(data, tmp_path / "store", method, change))
    assert any(words in problem for problem in found), found


# --- prose ----------------------------------------------------------------------------------------


def custom(data, place, change=lambda said: said):
    return announce(Store.create(place), design_bench(data, ["triplet"], CUSTOM, "cpu", ()), change)


def of_protocol(**prose):
    def change(said):
        resolved = replace(said.protocol.resolved, **prose)
        return replace(said, protocol=replace(said.protocol, resolved=resolved))

    return change


def of_method(**prose):
    return lambda said: replace(said, method=replace(said.method, **prose))


PROSE = {
    "departures": (of_protocol(departures=("none",)), "the departures of the protocol is"),
    "about": (of_protocol(about="exactly as in the paper"), "the about of the protocol is"),
    "name": (of_protocol(name="quick.v2+custom-01234567"), "the name of the protocol is"),
}


@pytest.mark.forgery("verify", what="the words of a published protocol: its {}")
@pytest.mark.parametrize("name", PROSE)
def test_words_about_a_protocol_are_those_of_the_published_one(data, tmp_path, name):
    change, words = PROSE[name]
    found = problems(custom(data, tmp_path / "store", change))
    assert any(words in problem for problem in found), found
    assert problems(custom(data, tmp_path / "honest")) == []


@pytest.mark.forgery("verify --data", what="the words of a method: its {}")
@pytest.mark.parametrize(
    ("name", "words"), [("about", "exactly as in the paper"), ("departures", ("none",))]
)
def test_words_about_a_method_are_those_of_its_file(data, tmp_path, name, words):
    found = found_in(custom(data, tmp_path / "store", of_method(**{name: words})), data)
    assert found.problem.startswith(f"preregistration: method.{name} is ")


def test_words_of_another_version_accuse_nobody(data, tmp_path):
    def elsewhere(said):
        changed = of_protocol(about="as it was")(of_method(about="as it was")(said))
        return replace(changed, versions=replace(changed.versions, assay="0.0.9"))

    store = custom(data, tmp_path / "store", elsewhere)
    found = found_in(store, data)
    assert problems(store) == []
    assert found.problem == "" and "method.about" in found.trusted


@pytest.mark.forgery("verify --data", what="what was left out of the data, in the announcement")
def test_what_was_left_out_of_the_data_is_noted(data, tmp_path):
    """Files may have been removed since: that is no proof."""
    change = lambda said: replace(said, data=replace(said.data, left_out=("3 files",)))  # noqa: E731
    found = found_in(custom(data, tmp_path / "store", change), data)
    assert found.problem == ""
    assert "left out of the data: 3 files in the ledger, nothing here" in found.note
    assert "announced as left out of the data" in found.trusted


# --- exceptions -----------------------------------------------------------------------------------

HONEST = {
    "settings": ("features", {"optimiser.lr": 0.05, "dim": 5}),
    "auto": ("features", {"optimiser.lr": None, "optimiser.schedule": None}),
    "what vectors ignore": ("features", {"augment.flip": 0.5, "size": 20}),
    "a pretrained trunk": ("folder", {"trunk": "lite0", "frozen": "nothing"}),
    "random weights": ("folder", {"trunk": "lite0", "weights": "none"}),
    "augmentation": ("folder", {"augment.flip": 0.25, "augment.area": (0.5, 1.0)}),
}


def excepted(data, place, own, change=lambda said: said):
    """The records of three studies under a protocol with an exception for one of them."""
    protocol = replace(CUSTOM, name="mine.v1", exceptions={"triplet": own})
    names = ["triplet", "contrastive", "nt_xent"]
    return study_records(
        announce(Store.create(place), design_bench(data, names, protocol, "cpu", ()), change)
    )


def unequal(records):
    return [one.problem for one in check_conditions(records) if one.problem]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_exception_passes(data, mini_folder, tmp_path, name):
    kind, own = HONEST[name]
    where = data if kind == "features" else f"folder:{mini_folder}"
    records = excepted(where, tmp_path / "store", own)
    assert unequal(records) == unequal(records[::-1]) == []


HARMLESS = {
    "another that holds for all": ({"triplet": {"dim": 4}}, "different values of optimiser.lr"),
    "another that does not hold": ({"triplet": {"dim": 9}}, "without the exception made for it"),
    "none for the method": ({"triplet": {}}, "different values of optimiser"),
    "one for another method": ({"nt_xent": {"dim": 4}}, "different values of optimiser"),
}


@pytest.mark.forgery("verify", what="the exception of a protocol rewritten: {}")
@pytest.mark.parametrize("name", HARMLESS)
def test_an_exception_that_was_rewritten_in_all_studies_is_found(data, tmp_path, name):
    exceptions, words = HARMLESS[name]
    forged = excepted(
        data, tmp_path / "store", {"optimiser.lr": 0.05}, of_protocol(exceptions=exceptions)
    )
    (found,) = unequal(forged)
    assert words in found


def test_a_protocol_that_got_another_name_in_between_is_the_same(data, tmp_path):
    """Its settings are the same, and so its studies are compared."""
    designs = [
        design
        for name in ("mine.v1", "ours.v1")
        for design in design_bench(
            data,
            ["triplet" if name == "mine.v1" else "nt_xent"],
            replace(CUSTOM, name=name),
            "cpu",
            (),
        )
    ]
    assert unequal(study_records(announce(Store.create(tmp_path / "store"), designs))) == []


# --- names of protocols ---------------------------------------------------------------------------

NAMES = {
    "an invisible character": ("quick.v2\u200b", "ZERO WIDTH SPACE) is not ASCII"),
    "a letter that looks like another": ("qu\u0456ck.v2", "is not ASCII and may look like another"),
    "a control character": ("quick.v2\x1b[2K", "which cannot be printed"),
    "a space": ("quick.v2 ", "no such version of it is published here"),
    "capital letters": ("Quick.v2", "no such version of it is published here"),
    "a version that there is not": ("revisiting/cub.v9", "no such version of it is published here"),
    "changes of such a version": ("quick.v9+custom-01234567", "no such version of it is published"),
}


@pytest.mark.forgery("verify", what="the name of a protocol like a published one: {}")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_looks_published_is_refused_and_found(data, tmp_path, name):
    called, words = NAMES[name]
    with pytest.raises(BadInput, match=re.escape(words)):
        design_bench(data, ["triplet"], replace(CUSTOM, name=called), "cpu", ())

    def change(said):
        return of_protocol(name=called)(replace(said, protocol=replace(said.protocol, name=called)))

    found = problems(custom(data, tmp_path / "store", change))
    assert any(words in problem for problem in found), found


@pytest.mark.forgery("verify", what="the name of a published protocol in the settings alone")
def test_settings_have_the_name_of_their_protocol(data, tmp_path):
    designs = design_bench(data, ["triplet"], replace(CUSTOM, name="mine.v1"), "cpu", ())
    forged = announce(Store.create(tmp_path / "store"), designs, of_protocol(name="quick.v2"))
    assert any("called mine.v1, and its settings quick.v2" in one for one in problems(forged))


@pytest.mark.parametrize("name", ["mine.v1", "mine", "my-quick.v2", "quick-birds.v1", "v2"])
def test_a_name_of_ones_own_passes(data, tmp_path, name):
    designs = design_bench(data, ["triplet"], replace(CUSTOM, name=name), "cpu", ())
    assert problems(announce(Store.create(tmp_path / "store"), designs)) == []


# --- questions ------------------------------------------------------------------------------------


def asked_twice(data, place, *asked, change=lambda said: said):
    """The findings on a method that was studied under two protocols."""
    designs = [one for each in asked for one in design_bench(data, ["triplet"], each, "cpu", ())]
    first, *more = designs
    store = announce(Store.create(place), [first])
    announce(store, more, change)
    return [one for one in verify(store) if one.what == "questions"]


def of_another_question(said):
    return replace(said, protocol=replace(said.protocol, question="ab" * 32, settings=()))


@pytest.mark.forgery("verify", what="a second look hidden: its question is called another: {}")
@pytest.mark.parametrize("name", ["quick.v2", "mine.v1"])
def test_one_question_that_is_called_two_is_found_or_named(data, tmp_path, name):
    """A protocol of one's own may have declared what is auto in the other: it is only named."""
    own = replace(CUSTOM, name=name) if name == "mine.v1" else CUSTOM
    again = customise(own, ["seed=5"])
    (found,) = asked_twice(data, tmp_path / "s", own, again, change=of_another_question)
    words = f"{own.name} and {again.name}, whose settings are the same, as two questions"
    assert words in (found.note if name == "mine.v1" else found.problem)
    assert bool(found.trusted) == (name == "mine.v1")


def test_a_changed_protocol_of_python_with_what_is_auto_elsewhere_is_only_named(
    mini_folder, tmp_path
):
    """Its name comes from a published one, and no words of `--set` give its parameters."""
    own = replace(protocols["quick"], given={"triplet": {"margin": 0.3}})
    words = ["trunk=lite0", "size=32", "dim=4", "trials=2"]
    asked = [customise(own, words), customise(own, [*words, "frozen=trunk"])]
    assert all(not protocols.changes(one) and one.name.startswith("quick.v2+") for one in asked)
    (found,) = asked_twice(f"folder:{mini_folder}", tmp_path / "s", *asked)
    assert found.problem == "" and "as two questions" in found.note and found.trusted


@pytest.mark.parametrize(
    "settings", ["seed=5", "dim=5", "patience=2", "optimiser.lr=2e-3", "trials=3"]
)
def test_honest_second_benches_pass(data, tmp_path, settings):
    """Among them those that name what `auto` is on vectors."""
    assert asked_twice(data, tmp_path / "s", CUSTOM, customise(CUSTOM, [settings])) == []


# --- what is printed ------------------------------------------------------------------------------

INVENTED = (
    "mini: runs\nok    mini: all runs trained again, same bytes\nok    \x1b[2K\x1b[1A\u202emini"
)


@pytest.mark.forgery("the command", what="line breaks and commands to the terminal in a record: {}")
@pytest.mark.parametrize("command", ["verify", "verify --data", "status"])
def test_no_record_adds_a_line_to_what_is_printed(assay, data, tmp_path, command):
    """The line of a real finding would be erased, and others invented."""
    store = custom(data, tmp_path / "store", lambda said: replace(said, data=invented(said.data)))
    words = ["--data", data, "--engine", "inline"] if command.endswith("data") else []
    _, out, _ = assay(command.partition(" ")[0], store.root, *words)
    lines = out.splitlines()
    assert "\\nok    mini: all runs trained again, same bytes\\nok    \\x1b[2K" in out
    assert not [line for line in lines if line.startswith("ok    mini: all runs trained")]
    assert all(line.isprintable() for line in lines)


def invented(announced):
    return replace(announced, name=INVENTED)
