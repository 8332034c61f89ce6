"""Values of arguments: the checks, and that every loss and miner uses them."""

import inspect
import math
import re
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines import choose_engine
from assay.errors import BadInput
from assay.losses import losses
from assay.methods import Method, Space, assemble, methods, read_parameters
from assay.miners import miners
from assay.protocols import Protocol, customise, protocols
from assay.protocols.settings import check_ranges
from assay.space import Choice, above, at_least, between, inside, one_of, whole_number
from assay.study import design_bench
from loops import for_each
from miniature import QUICK

NOT_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, True, False, "2", "", None, [2], 2 + 0j]
LITTLE = 1e-9


# --- The checks ---

CHECKS: dict[str, tuple[Callable[[Any], Any], list[float], list[float], str]] = {
    "at_least": (
        lambda value: at_least(0.5, "margin", value),
        [0.5, 0.5 + LITTLE, 7, 1e300],
        [0.5 - LITTLE, 0, -1],
        "at least 0.5",
    ),
    "above": (
        lambda value: above(0, "margin", value),
        [LITTLE, 5e-324, 7, 1e300],
        [0, 0.0, -0.0, -LITTLE, -1],
        "above 0",
    ),
    "between": (
        lambda value: between(-1, 1.5, "margin", value),
        [-1, -1.0, 0, 1.5],
        [-1 - LITTLE, 1.5 + LITTLE, 2, -1e300],
        "from -1 to 1.5",
    ),
    "inside": (
        lambda value: inside(0, 90, "margin", value),
        [LITTLE, 45, 90 - LITTLE],
        [0, 0.0, 90, 90.0, -1, 91],
        "above 0 and below 90",
    ),
    "whole": (
        lambda value: whole_number(2, "margin", value),
        [2, 2.0, 3, 1e6],
        [1, 0, -2, 2.5, 2 + LITTLE, 1.9999999],
        "a whole number of at least 2",
    ),
}
"""Each with what it takes, what it refuses, and how it says what is allowed."""

every_check = for_each("name", list(CHECKS))


@every_check
def test_a_check_returns_what_it_takes(name: str) -> None:
    check, taken, _, _ = CHECKS[name]
    for value in taken:
        assert check(value) == value


@every_check
def test_a_check_refuses_what_is_outside_with_the_name_the_value_and_what_is_allowed(
    name: str,
) -> None:
    check, _, refused, allowed = CHECKS[name]
    for value in refused:
        with pytest.raises(
            ValueError, match=rf"^margin is .*{re.escape(allowed)}, got {re.escape(repr(value))}$"
        ):
            check(value)


@every_check
@for_each("value", NOT_NUMBERS, ids=repr)
def test_a_check_refuses_what_is_no_finite_number(name: str, value: Any) -> None:
    check, _, _, allowed = CHECKS[name]
    with pytest.raises(
        ValueError, match=rf"^margin is .*{re.escape(allowed)}, got {re.escape(repr(value))}$"
    ):
        check(value)


@every_check
def test_a_number_of_numpy_is_a_number(name: str) -> None:
    """At least its double, which is what optuna and numpy's generators give."""
    check, taken, _, _ = CHECKS[name]
    assert check(np.float64(taken[-1])) == taken[-1]


def test_a_whole_number_becomes_an_int() -> None:
    """A range over its bins would fail on 10.0."""
    for value in (10, 10.0, np.float64(10)):
        found = whole_number(2, "bins", value)  # type: ignore[arg-type]
        assert found == 10
        assert type(found) is int


def test_one_of_a_few_words_is_taken_and_others_are_refused_with_all_of_them() -> None:
    options = ("semihard", "hard")
    for word in options:
        assert one_of(options, "negatives", word) == word
    for other in ("Hard", "", "semi", None, 3):
        with pytest.raises(
            ValueError, match=rf"^negatives is one of 'semihard', 'hard', got {other!r}$"
        ):
            one_of(options, "negatives", other)  # type: ignore[arg-type]


# --- Losses and miners ---

AT_LEAST_0 = ([0, 0.0, 3.5, 1e6], [-LITTLE, -1])
ABOVE_0 = ([LITTLE, 3.5, 1e6], [0, 0.0, -LITTLE, -1])
DEGREES = ([0, 90, 180], [-LITTLE, -1, 181])
BINS = ([2, 10.0, 300], [1, 0, -1, 2.5])

MEMORY = {
    "memory": ([LITTLE, 0.5, 1], [0, -LITTLE, 1.1]),
    "warmup": AT_LEAST_0,
    "weight": AT_LEAST_0,
}

DOMAINS: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {
    "angular": {"alpha": ([LITTLE, 45, 89.9], [0, 90, -1, 91])},
    "angular_n_pairs": {
        "alpha": ([LITTLE, 45, 89.9], [0, 90, -1, 91]),
        "weight": AT_LEAST_0,
        "regularisation": AT_LEAST_0,
    },
    "angular_raw": {"alpha": ([LITTLE, 45, 89.9], [0, 90, -1, 91]), "regularisation": AT_LEAST_0},
    "arcface": {"margin": DEGREES, "scale": ABOVE_0},
    "circle": {"margin": AT_LEAST_0, "gamma": ABOVE_0},
    "circle_class": {"margin": AT_LEAST_0, "gamma": ABOVE_0},
    "contrastive": {"pos_margin": AT_LEAST_0, "neg_margin": AT_LEAST_0},
    "cosface": {"margin": AT_LEAST_0, "scale": ABOVE_0},
    "dreml": {
        "meta_classes": ([2, 12.0, 48], [1, 0, -1, 2.5]),
        "members": ([0, 1, 12.0], [-1, 0.5]),
    },
    "fastap": {"bins": BINS},
    "histogram": {"bins": BINS},
    "lifted": {"margin": AT_LEAST_0},
    "lifted_generalized": {"margin": AT_LEAST_0},
    "margin": {"margin": AT_LEAST_0, "beta": AT_LEAST_0},
    "margin_per_class": {"margin": AT_LEAST_0, "beta": AT_LEAST_0},
    "multi_similarity": {
        "alpha": ABOVE_0,
        "beta": ABOVE_0,
        "base": ([-1, 0, 0.5, 1], [-1 - LITTLE, 1.1]),
    },
    "n_pairs": {"regularisation": AT_LEAST_0},
    "n_pairs_symmetric": {"regularisation": AT_LEAST_0},
    "normalized_softmax": {"temperature": ABOVE_0},
    "nt_xent": {"temperature": ABOVE_0},
    "prototypical": {"scale": ABOVE_0},
    "proxy_anchor": {"alpha": ABOVE_0, "margin": AT_LEAST_0},
    "proxy_nca": {"scale": ABOVE_0},
    "proxy_nca_strict": {"scale": ABOVE_0},
    "proxy_softmax": {"temperature": ABOVE_0, "smoothing": ([0, 0.1, 1], [-LITTLE, 1.1])},
    "proxy_triplet": {"margin": AT_LEAST_0},
    "quadruplet": {"margin": AT_LEAST_0, "pair_margin": AT_LEAST_0},
    "ranked_list": {
        "alpha": ABOVE_0,
        "margin": AT_LEAST_0,
        "temperature": AT_LEAST_0,
        "balance": AT_LEAST_0,
    },
    "smooth_ap": {"temperature": ABOVE_0},
    "snr_contrastive": {
        "pos_margin": AT_LEAST_0,
        "neg_margin": AT_LEAST_0,
        "regularisation": AT_LEAST_0,
    },
    "snr_triplet": {"margin": AT_LEAST_0, "regularisation": AT_LEAST_0},
    "soft_triple": {
        "centres": ([1, 10.0, 40], [0, -1, 1.5]),
        "scale": ABOVE_0,
        "gamma": ABOVE_0,
        "margin": AT_LEAST_0,
        "regularisation": AT_LEAST_0,
    },
    "sphereface": {"margin": ([1, 4.0, 6], [0, -1, 2.5]), "scale": ABOVE_0},
    "structured_clustering": {"gamma": ABOVE_0},
    "supcon": {"temperature": ABOVE_0},
    "triplet": {
        "margin": AT_LEAST_0,
        "distance": (["plain", "squared"], ["square", "", 2]),
        "over": (["active", "all"], ["some", "", 1]),
    },
    "triplet_mean": {"margin": AT_LEAST_0},
    "triplet_squared": {"margin": AT_LEAST_0},
    "tuplet_margin": {"scale": ABOVE_0, "margin": DEGREES},
    "xbm_contrastive": {"pos_margin": AT_LEAST_0, "neg_margin": AT_LEAST_0, **MEMORY},
    "xbm_margin": {"margin": AT_LEAST_0, "beta": AT_LEAST_0, **MEMORY},
    "xbm_multi_similarity": {
        "alpha": ABOVE_0,
        "beta": ABOVE_0,
        "base": ([-1, 0, 0.5, 1], [-1 - LITTLE, 1.1]),
        "epsilon": AT_LEAST_0,
        **MEMORY,
    },
    "xbm_triplet": {
        "margin": AT_LEAST_0,
        "distance": (["plain", "squared"], ["square", "", 2]),
        "over": (["active", "all"], ["some", "", 1]),
        **MEMORY,
    },
    "miner distance_weighted": {
        "cutoff": ([1e-6, 0.5, 1.4], [0, -1]),
        "limit": ([0.5, 1.4, 3], [0, 0.49, -1]),
    },
    "miner easy_positive": {"negatives": (["semihard", "hard"], ["easy", "Hard", "", 3])},
    "miner multi_similarity": {"epsilon": AT_LEAST_0},
    "miner rho": {
        "swap_probability": ([0, 0.2, 1], [-0.01, 1.01, 2]),
        "cutoff": ([1e-6, 0.5, 1.4], [0, -1]),
        "limit": ([0.5, 1.4, 3], [0, 0.49, -1]),
    },
    "miner random": {"of": (["pairs", "triplets"], ["pair", "", 3])},
}
"""Of every parameter: values that it takes, its ends among them, and values that it refuses."""

PARTS: dict[str, Any] = {
    **losses,
    **{f"miner {name}": miner for name, miner in miners.items()},
}
BUILT_IN = [name for name, part in PARTS.items() if part.__module__.startswith("assay.")]


def parameters_of(name: str) -> list[inspect.Parameter]:
    """The arguments of a part's constructor; one without a constructor has none."""
    if PARTS[name].__init__ is object.__init__:
        return []
    return list(inspect.signature(PARTS[name]).parameters.values())


EVERY = [(name, parameter.name) for name in BUILT_IN for parameter in parameters_of(name)]
NUMERIC = [
    (name, parameter.name)
    for name in BUILT_IN
    for parameter in parameters_of(name)
    if not isinstance(parameter.default, str)
]
every_parameter = for_each(("part", "parameter"), EVERY)
every_number = for_each(("part", "parameter"), NUMERIC)


def refuses(part: str, parameter: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{parameter} is .*, got {re.escape(repr(value))}$"):
        PARTS[part](**{parameter: value})


def test_every_parameter_has_its_domain_written_down() -> None:
    written = {(part, parameter) for part, domains in DOMAINS.items() for parameter in domains}
    assert written == set(EVERY)


@every_parameter
def test_every_part_takes_its_whole_domain(part: str, parameter: str) -> None:
    taken, _ = DOMAINS[part][parameter]
    for value in taken:
        PARTS[part](**{parameter: value})


@every_parameter
def test_every_part_refuses_what_is_outside_of_its_domain(part: str, parameter: str) -> None:
    """By name and value, at once and not when the first batch comes."""
    _, refused = DOMAINS[part][parameter]
    for value in refused:
        refuses(part, parameter, value)


@every_number
def test_every_part_refuses_what_is_no_finite_number(part: str, parameter: str) -> None:
    for value in (math.nan, math.inf, -math.inf, True, "0.5", None):
        refuses(part, parameter, value)


@every_parameter
def test_every_default_is_in_its_domain(part: str, parameter: str) -> None:
    default = inspect.signature(PARTS[part]).parameters[parameter].default
    assert default is not inspect.Parameter.empty
    PARTS[part](**{parameter: default})


@for_each(
    "name", [name for name, method in methods.items() if method.loss is not None and method.space]
)
def test_every_end_of_a_declared_space_is_taken(name: str) -> None:
    """One at a time: else a search would fail in the middle."""
    method = methods[name]
    for parameter, range_ in method.space.items():
        ends = (
            range_.options
            if isinstance(range_, Choice)
            else (range_.low, range_.high, range_.at(0), range_.at(1))
        )
        for value in ends:
            assemble(method, {parameter: value}, QUICK)


# --- Numbers of settings and of parameters ---

WHOLE = [
    "dim", "folds", "iterations", "shortest_epoch", "epochs", "validate_every", "patience",
    "trials", "startup", "reproductions", "threads", "size", "stored", "searches", "trial_folds",
    "seed", "refresh",
]  # fmt: skip
REAL = [
    "optimiser.lr", "optimiser.momentum", "optimiser.weight_decay", "prune", "smallest_difference",
    "augment.flip", "augment.rotation", "augment.shear",
]  # fmt: skip
PAIRS = ["batch.embedding", "batch.classification", "augment.area", "augment.aspect"]


def test_every_number_of_a_protocol_is_tried_below() -> None:
    hints = typing.get_type_hints(Protocol)
    kinds = {int: set(WHOLE), float: set(REAL)}
    for kind, names in kinds.items():
        found = {name for name, hint in hints.items() if hint in (kind, kind | None)}
        assert found == {name for name in names if "." not in name}


@for_each(
    "text", ["", " ", "nan", "inf", "-inf", "1e400", "1_0", "0x10", "٣", "1e3x", "--1", "9" * 5000]
)
def test_a_text_that_is_no_number_in_digits_is_refused(text: str) -> None:
    for name in (*WHOLE, *REAL):
        with pytest.raises(BadInput, match=rf"--set {name}=.*'{re.escape(text.strip())}' is not a"):
            customise(protocols["quick"], [f"{name}={text}"])
    for name in PAIRS:
        with pytest.raises(BadInput, match=rf"--set {name}=.* is not two (whole|finite) numbers"):
            customise(protocols["quick"], [f"{name}={text}x4"])


@for_each("value", ["100000000000000000000", "1" + "0" * 39])
def test_a_number_that_no_run_could_have_is_refused_with_the_bound(value: str) -> None:
    for name in WHOLE:
        with pytest.raises(
            BadInput, match=rf"^--set {name}={value}: {name} is at most \d+; set it lower$"
        ):
            customise(protocols["quick"], [f"{name}={value}"])
    for name in REAL:
        with pytest.raises(BadInput, match=rf"^--set {name}=1e\+.*: {name} is a number .*\d+"):
            customise(protocols["quick"], [f"{name}={value}"])
    for batch in (f"batch.embedding={value}x4", f"batch={4 * int(value)}"):
        with pytest.raises(BadInput, match="a batch holds at most 32768 images; set it smaller"):
            customise(protocols["quick"], [batch])
    with pytest.raises(BadInput, match=r"^--set augment.aspect=.*low <= high <= 1000$"):
        customise(protocols["quick"], [f"augment.aspect=1x{value}"])


def test_the_bounds_hold_for_a_protocol_that_python_made(mini_features: Path) -> None:
    for wrong in (
        replace(protocols["quick"], name="mine", dim=10**20),
        Protocol("mine", metrics=()),
    ):
        with pytest.raises(BadInput, match=r"dim is at most 65536|name at least one metric"):
            design_bench(f"features:{mini_features}", ["triplet"], wrong, "cpu", ())


def test_every_published_protocol_is_within_the_bounds() -> None:
    for protocol in protocols.values():
        check_ranges(protocol)


@for_each("text", [",", " , ,", ""])
def test_a_protocol_without_a_metric_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--set metrics=.*map_at_r"):
        customise(protocols["quick"], [f"metrics={text}"])
    assert customise(protocols["quick"], ["training_metrics="]) == protocols["quick"]


@for_each("workers", [0, -1, 10**30])
def test_a_number_of_workers_that_no_machine_has_is_refused(workers: int) -> None:
    with pytest.raises(BadInput, match=f"--workers {workers}: give a number from 1 to 1024"):
        choose_engine("local", workers)


@for_each("text", ["nan", "inf", "1e400", "1_0", ""])
def test_a_parameter_that_is_no_number_in_digits_is_refused(text: str) -> None:
    for name in ("margin", "lr"):
        with pytest.raises(
            BadInput, match=f"--param {name}={text}: '{text}' is not a finite number"
        ):
            read_parameters(methods["triplet"], QUICK, [f"{name}={text}"])
    with pytest.raises(BadInput, match="lr is a learning rate, a number above 0 and at most 1000"):
        read_parameters(methods["triplet"], QUICK, ["lr=1e30"])


# --- Names of methods ---


@for_each("name", ["", " a", "a ", "a,b", "all", "a\nb", "a\tb", "a\0", "a" * 101, "a.twin"])
def test_a_name_that_tables_or_options_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^a method cannot be called .*printable"):
        Method(name, None, space=Space(), baseline=True)


@for_each("name", ["a$b$", "x_{", "\\alpha", "_a", "a b", "a/b<c>", "a" * 100])
def test_other_names_are_taken(name: str) -> None:
    assert Method(name, None, space=Space(), baseline=True).name == name


@pytest.mark.forgery("the command", what="a method whose name looks like that of another")
@for_each(
    ("name", "letter"),
    [
        ("tr\u0456plet", "'\u0456' (CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I)"),
        ("Gr\u00f6\u00dfe", "'\u00f6' (LATIN SMALL LETTER O WITH DIAERESIS)"),
        ("triplet\u200b", "'\\u200b' (ZERO WIDTH SPACE)"),
        ("a\ud800", "'\\ud800' (unnamed)"),
    ],
)
def test_a_letter_that_may_look_like_another_is_refused_and_named(name: str, letter: str) -> None:
    with pytest.raises(ValueError, match=r"^a method cannot be called .* is not ASCII") as refused:
        Method(name, None, space=Space(), baseline=True)
    assert letter in str(refused.value)
