"""What a study announced, made again from the data and the code: an announcement that was made up
as a whole, before anything ran, is found with the data.
"""

from dataclasses import replace

import pytest

from again import retest
from assay.engines import InlineEngine
from assay.protocols import customise, protocols
from assay.records.store import Store
from assay.space import Real, Space
from assay.study import design_bench
from assay.verify import verify
from assay.verify.announced_again import TITLE
from forgery import announce
from miniature import make_features


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"features:{make_features(tmp_path_factory.mktemp('announced') / 'mini.npz')}"


def announced(data, place, change=lambda announced: announced, protocol="quick.v2", settings=()):
    """Return a store with a study of triplet that was announced, and perhaps changed, by a forger
    who had every hash follow from it.
    """
    chosen = customise(protocols[protocol], settings) if settings else protocols[protocol]
    designs = design_bench(data, ["triplet"], chosen, "cpu", ())
    return announce(Store.create(place), designs, change)


def found_in(store, data):
    (found,) = [one for one in retest(store, InlineEngine(), data) if one.what.endswith(TITLE)]
    return found


def of_data(**changes):
    return lambda said: replace(said, data=replace(said.data, **changes))


def of_method(**changes):
    return lambda said: replace(said, method=replace(said.method, **changes))


def of_settings(**changes):
    def change(said):
        resolved = replace(said.protocol.resolved, **changes)
        return replace(said, protocol=replace(said.protocol, resolved=resolved))

    return change


FORGED = {
    "tuned defaults": (of_method(defaults={"margin": 0.3141}), "method.defaults"),
    "fixed parameters": (of_method(fixed={"margin": 0.3}), "method.fixed"),
    "a narrower space of its own": (
        lambda said: replace(said, space=Space(margin=Real(0.31, 0.32))),
        "space.margin",
    ),
    "fewer epochs under a published name": (of_settings(epochs=2), "protocol.resolved.epochs"),
    "another smallest difference under a published name": (
        of_settings(smallest_difference=0.2),
        "protocol.resolved.smallest_difference",
    ),
    "another question": (
        lambda said: replace(said, protocol=replace(said.protocol, question="0" * 64)),
        "protocol.question",
    ),
    "another budget": (
        lambda said: replace(said, budget=replace(said.budget, trials=99)),
        "budget.trials",
    ),
    "problems of the data": (of_data(problems=("1 copy",)), "data.problems"),
    "what the features have seen": (of_data(pretrained_on="ImageNet"), "data.pretrained_on"),
    "the size of the data": (of_data(classes=100, samples=5924), "data.classes"),
}


@pytest.mark.parametrize("settings", [(), ("dim=4", "trials=2")], ids=["published", "changed"])
def test_an_honest_announcement_comes_out_again(data, tmp_path, settings):
    found = found_in(announced(data, tmp_path / "store", settings=settings), data)
    assert (found.problem, found.note, found.trusted) == ("", "", "")


@pytest.mark.forgery("verify --data", what="an announcement made up as a whole: {}")
@pytest.mark.parametrize("name", FORGED)
def test_an_announcement_that_was_made_up_is_found_with_the_data(data, tmp_path, name):
    change, entry = FORGED[name]
    found = found_in(announced(data, tmp_path / "store", change), data)
    assert found.problem.startswith(f"preregistration: {entry} is ")


CUSTOM = ("dim=4", "trials=2")


def of_protocol(**changes):
    return lambda said: replace(said, protocol=replace(said.protocol, **changes))


@pytest.mark.forgery("verify --data", what="a setting of a protocol changed with --set: {}")
@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 2), ("smallest_difference", 0.2), ("dim", 8), ("seed", 1)]
)
def test_a_setting_that_set_did_not_announce_is_found_with_the_data(data, tmp_path, name, value):
    forged = of_settings(**{name: value})
    found = found_in(announced(data, tmp_path / "store", forged, settings=CUSTOM), data)
    assert found.problem.startswith(f"preregistration: protocol.resolved.{name} is {value} in the")


OTHER_WORDS = {
    "another value": (of_protocol(settings=("dim=4", "trials=3")), "fingerprint"),
    "a setting left out": (of_protocol(settings=("dim=4",)), "fingerprint"),
    "another question": (of_protocol(question="0" * 64), "question"),
    "a setting that there is not": (of_protocol(settings=("dim=4", "luck=9")), "no field 'luck'"),
}


@pytest.mark.forgery("verify", what="the words of --set in an announcement: {}")
@pytest.mark.parametrize("name", OTHER_WORDS)
def test_name_fingerprint_and_question_follow_from_the_settings(data, tmp_path, name):
    forge, words = OTHER_WORDS[name]
    store = announced(data, tmp_path / "store", forge, settings=CUSTOM)
    found = [one.problem for one in verify(store) if one.problem]
    assert any(words in problem for problem in found), found


@pytest.mark.forgery("nothing", what="the words of --set left out of an announcement")
def test_settings_that_were_left_out_are_taken_on_trust_and_said(data, tmp_path):
    store = announced(data, tmp_path / "store", of_protocol(settings=()), settings=CUSTOM)
    found = found_in(store, data)
    assert found.problem == ""
    assert found.trusted.startswith("that quick.v2+custom-")
    assert "has the settings that triplet on features:mini.npz announced" in found.trusted


def test_what_another_version_announced_is_taken_on_trust_and_said(data, tmp_path):
    def elsewhere(said):
        other = replace(
            said,
            versions=replace(said.versions, source="0" * 64),
            environment=replace(said.environment, source="0" * 64),
        )
        return FORGED["tuned defaults"][0](other)

    found = found_in(announced(data, tmp_path / "store", elsewhere), data)
    assert found.problem == ""
    assert "another version of Assay announced it: method.defaults" in found.note
    assert "announces method.defaults as the ledger has them" in found.trusted


def test_another_name_of_the_data_is_noted(data, tmp_path):
    found = found_in(announced(data, tmp_path / "store", of_data(name="CUB200")), data)
    assert found.problem == ""
    assert found.note == "the announcement calls the data CUB200, here they are features:mini.npz"
