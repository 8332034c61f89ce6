"""From a method and its parameters to a loss and a miner, and the user's own files."""

import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay import fitters
from assay.errors import BadInput
from assay.fitters import pca
from assay.hashing import digest
from assay.losses import baselines, losses
from assay.losses.contrastive import Contrastive
from assay.losses.loss import Loss, Method, methods
from assay.losses.multi_similarity import MultiSimilarity
from assay.losses.normalized_softmax import NormalizedSoftmax
from assay.losses.triplet import Triplet
from assay.losses.triplet_semihard import TripletSquared
from assay.methods import (
    assemble,
    defaults,
    departures,
    import_parts,
    source_of,
    space_of,
)
from assay.methods.parameters import signature
from assay.miners import miners
from assay.miners.miner import Miner
from assay.miners.multi_similarity import MultiSimilarityMiner
from assay.miners.random import RandomMiner
from assay.miners.semihard import SemihardMiner
from assay.pairs import Pairs, References, all_pairs
from assay.protocols import BatchKind, Optimiser, Protocol, resolve
from assay.records.source import PACKAGE, foreign_hash, source_hash
from assay.registry import UnknownName
from assay.samplers import samplers
from assay.space import Choice, Integer, Range, Real, Space
from assay.trunks import trunk_facts, trunks
from loops import for_each
from miniature import resolved

DECLARED = Protocol("quick-like.v1", optimiser=Optimiser(lr=1e-3))
QUICK = resolved(DECLARED)
RESOLVED = resolve(DECLARED, "drawing", trunk_facts)
TRAINED = [name for name in methods if methods[name].loss is not None]
every_method = for_each("name", list(methods))
every_trained_method = for_each("name", TRAINED)

MINE = """
from torch import Tensor

from assay.losses.loss import losses
from assay.losses.loss import Loss, Method, methods
from assay.space import Real, Space


@losses("{name}")
class Mine(Loss):
    def __init__(self, *, scale: float = {scale}) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, z, y, mined=None, references=None):
        return self.scale * z.square().sum()


methods.add(Method("{name}", Mine, space=Space(scale=Real(0, 10)), about="mine"))
"""
BASELINE = Path(str(baselines.__file__))
"""Where the baseline is declared, which has no loss."""

FITTERS = Path(str(fitters.__file__))


class Plain(Loss):
    """A loss without parameters."""

    def forward(self, z: torch.Tensor, *_: Any) -> torch.Tensor:
        return z.sum()


class WithEpsilon(Plain):
    """A loss with a parameter that the multi-similarity miner has too."""

    def __init__(self, *, epsilon: float = 7.0) -> None:
        super().__init__()
        self.epsilon = epsilon


class WithLr(Plain):
    """A loss with a parameter that training has too."""

    def __init__(self, *, lr: float = 7.0) -> None:
        super().__init__()
        self.lr = lr


class WithoutDefault(Plain):
    """A loss that does not say what its parameter is when nobody has chosen it."""

    def __init__(self, *, margin: float) -> None:
        super().__init__()
        self.margin = margin


def file_of(part: Any) -> Path:
    return Path(str(sys.modules[part.__module__].__file__))


def source(*files: Path, trunk: str = "conv") -> str:
    """The hash of a method that is written in these files, on a trunk and the balanced sampler."""
    own = (file_of(trunks[trunk]), file_of(samplers["balanced"]), *files)
    return digest(
        [
            source_hash([_module_of(file)]) if file.is_relative_to(PACKAGE) else foreign_hash(file)
            for file in own
        ]
    )


def _module_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def write_mine(path: Path, name: str = "mine", scale: float = 3.0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE.format(name=name, scale=scale))
    return str(path)


@every_method
def test_every_method_has_a_default_for_its_whole_space_and_inside_it(name: str) -> None:
    method = methods[name]
    found = defaults(method, QUICK)
    assert list(found) == list(space_of(method, QUICK))
    for parameter, range_ in space_of(method, QUICK).items():
        value = found[parameter]
        if isinstance(range_, Choice):
            assert value in range_.options
        else:
            assert isinstance(value, int | float)
            assert range_.low <= value <= range_.high


@every_trained_method
def test_every_method_is_built_from_its_defaults_and_from_the_ends_of_its_space(name: str) -> None:
    method = methods[name]
    ends = [
        {parameter: range_.at(share) for parameter, range_ in method.space.items()}
        for share in (0, 0.5, 1)
    ]
    for parameters in ({}, defaults(method, QUICK), *ends):
        parts = assemble(method, parameters, QUICK)
        assert isinstance(parts.loss, Loss)
        assert (parts.miner is None) == (method.miner is None)


@every_method
def test_every_method_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    method = methods[name]
    assert method.name == name
    assert method.about
    assert "\n" not in method.about
    if method.loss is None:
        assert method.paper is None
    else:
        assert method.paper is not None
        assert method.paper.title
        assert method.paper.url
        assert 1990 < method.paper.year < 2100


@every_trained_method
def test_every_method_trains_on_a_batch_that_the_protocol_has(name: str) -> None:
    assert methods[name].batch in typing.get_args(BatchKind)
    classes, per_class = RESOLVED.batch.shape(methods[name].batch)
    assert classes * per_class == 32


@every_trained_method
def test_every_fixed_parameter_is_one_that_the_method_takes(name: str) -> None:
    method = methods[name]
    taken = {*signature(method.loss), *(signature(miners[method.miner]) if method.miner else ())}
    assert set(method.fixed) <= taken
    assemble(method, {}, QUICK)


@every_trained_method
def test_every_miner_looks_at_what_the_loss_compares(name: str) -> None:
    parts = assemble(methods[name], {}, QUICK)
    assert parts.miner is None or parts.miner.normalise == parts.loss.normalise


@for_each("name", list(losses))
def test_every_weight_that_is_not_decayed_is_a_weight_of_the_loss(name: str) -> None:
    loss = losses[name]()
    loss.setup(8, 5)
    assert set(loss.undecayed) <= {weight for weight, _ in loss.named_parameters()}


def test_only_baselines_have_no_loss_and_nothing_to_search() -> None:
    found = {
        name: (method.head, method.starts)
        for name, method in methods.items()
        if method.loss is None
    }
    assert found == {
        "as_is": ("none", "any"),
        "pretrained": ("pca", "pretrained"),
        "untrained": ("pca", "random"),
    }
    wide = resolved(Protocol("p.v1", space=Space(lr=Real(1e-6, 1, log=True))))
    for name in found:
        assert space_of(methods[name], wide) == Space()
        assert defaults(methods[name], wide) == {}
        fitted = () if name == "as_is" else (FITTERS,)
        assert source_of(methods[name], RESOLVED) == source(*fitted, BASELINE)
        assert methods[name].normalise
        assert methods[name].departures == ()


def test_the_baselines_with_a_pca_say_so() -> None:
    assert all(
        "PCA to the protocol's dim" in methods[name].about for name in ("pretrained", "untrained")
    )
    assert "no PCA" in methods["as_is"].about


def test_a_method_trains_its_head_by_a_loss_or_fits_it_or_is_a_baseline() -> None:
    assert Method("mine", losses["triplet"], Space()).head == "linear"
    assert Method("mine", None, Space(), fitter=pca).head == "pca"
    assert Method("mine", None, Space(), baseline=True).head == "none"
    triplet, some = losses["triplet"], Space(margin=Real(0, 1))
    refused: list[tuple[str, Callable[[], Method]]] = [
        ("has no fitter and is no baseline", lambda: Method("m", triplet, some, fitter=pca)),
        ("has no fitter and is no baseline", lambda: Method("m", triplet, Space(), baseline=True)),
        ("give one of them", lambda: Method("m", None, Space())),
        ("its space is empty", lambda: Method("m", None, some, baseline=True)),
        ("takes no batches", lambda: Method("m", None, Space(), fitter=pca, sampler="balanced")),
    ]
    for problem, make in refused:
        with pytest.raises(ValueError, match=f"^m: .*{problem}"):
            make()


def test_no_two_methods_share_a_name() -> None:
    with pytest.raises(ValueError, match="'triplet' is registered already"):
        methods.add(methods["triplet"])


def test_defaults_come_from_loss_miner_and_training() -> None:
    method = Method(
        "m",
        MultiSimilarity,
        miner="multi_similarity",
        space=Space(alpha=Real(0, 9), epsilon=Real(0, 1), weights_lr=Real(0, 1), lr=Real(0, 1)),
    )
    assert defaults(method, QUICK) == {"alpha": 2.0, "epsilon": 0.1, "lr": 1e-3, "weights_lr": 3e-3}


def test_a_protocol_adds_its_own_parameters_to_every_method() -> None:
    space = Space(lr=Real(1e-6, 1e-3, log=True))
    wide = resolved(Protocol("p.v1", space=space, optimiser=Optimiser(lr=5e-5)))
    assert set(space_of(methods["triplet"], wide)) == {"margin", "lr"}
    assert defaults(methods["triplet"], wide) == {"margin": 0.1, "lr": 5e-5}


def test_a_parameter_in_the_space_of_method_and_protocol_raises() -> None:
    wide = Protocol("p.v1", space=Space(margin=Real(0, 1)))
    with pytest.raises(BadInput, match="'margin' is in both"):
        space_of(methods["triplet"], wide)


def test_a_parameter_that_nothing_takes_raises() -> None:
    method = Method("m", Triplet, space=Space(margn=Real(0, 1)))
    with pytest.raises(BadInput, match=r"^m: the parameter 'margn' is taken by nothing$"):
        defaults(method, QUICK)
    with pytest.raises(BadInput, match=r"^m: the parameter 'margn' is taken by nothing$"):
        assemble(method, {"margn": 0.1}, QUICK)


def test_each_parameter_goes_by_its_name_to_loss_miner_or_training() -> None:
    chosen = {"alpha": 3.0, "base": 0.25, "epsilon": 0.5, "lr": 0.125, "weights_lr": 0.25}
    parts = assemble(methods["multi_similarity_mined"], chosen, QUICK)
    assert isinstance(parts.loss, MultiSimilarity)
    assert isinstance(parts.miner, MultiSimilarityMiner)
    assert (parts.loss.alpha, parts.loss.beta, parts.loss.base) == (3.0, 50.0, 0.25)
    assert parts.miner.epsilon == 0.5
    assert (parts.lr, parts.weights_lr) == (0.125, 0.25)


def test_without_a_choice_training_goes_by_the_protocol() -> None:
    parts = assemble(methods["triplet"], {}, QUICK)
    assert (parts.lr, parts.weights_lr) == (1e-3, 3e-3)
    assert parts.miner is None


def test_a_space_bounds_the_search_and_not_the_constructor() -> None:
    loss = assemble(methods["triplet"], {"margin": 99.0}, QUICK).loss
    assert isinstance(loss, Triplet)
    assert loss.margin == 99.0


# --- Fixed parameters, miners, departures ---


def test_a_fixed_parameter_goes_by_its_name_to_loss_miner_or_training() -> None:
    method = Method(
        "m",
        Triplet,
        Space(),
        miner="random",
        fixed={"margin": 0.75, "of": "pairs", "lr": 0.5, "weights_lr": 0.25},
    )
    parts = assemble(method, {}, QUICK)
    assert isinstance(parts.loss, Triplet)
    assert isinstance(parts.miner, RandomMiner)
    assert (parts.loss.margin, parts.miner.of, parts.lr, parts.weights_lr) == (
        0.75,
        "pairs",
        0.5,
        0.25,
    )


def test_a_fixed_parameter_is_not_searched_and_needs_no_default() -> None:
    method = Method("m", WithoutDefault, Space(lr=Real(0, 1)), fixed={"margin": 2.0})
    assert set(space_of(method, QUICK)) == {"lr"}
    assert defaults(method, QUICK) == {"lr": 1e-3}
    loss = assemble(method, {"lr": 0.5}, QUICK).loss
    assert isinstance(loss, WithoutDefault)
    assert loss.margin == 2.0


@pytest.mark.parametrize(
    ("name", "of", "margins"),
    [("contrastive_sampled", "pairs", {}), ("triplet_sampled", "triplets", {"margin": 1.0})],
)
def test_the_weak_baselines_of_the_literature_search_nothing(
    name: str, of: str, margins: dict[str, float]
) -> None:
    parts = assemble(methods[name], {}, QUICK)
    assert methods[name].space == Space()
    assert isinstance(parts.miner, RandomMiner)
    assert parts.miner.of == of
    assert {margin: getattr(parts.loss, margin) for margin in margins} == margins


def test_a_parameter_that_is_fixed_and_searched_raises() -> None:
    with pytest.raises(
        ValueError, match=r"^m: the parameter 'margin' is both fixed and searched; choose one$"
    ):
        Method("m", Triplet, Space(margin=Real(0, 1)), fixed={"margin": 0.5})


def test_a_fixed_parameter_that_nothing_takes_raises() -> None:
    with pytest.raises(BadInput, match=r"^m: the parameter 'margn' is taken by nothing$"):
        assemble(Method("m", Triplet, Space(), fixed={"margn": 0.5}), {}, QUICK)


def test_a_fixed_parameter_that_nothing_takes_raises_before_the_first_trial() -> None:
    with pytest.raises(BadInput, match=r"^m: the parameter 'margn' is taken by nothing$"):
        defaults(Method("m", Triplet, Space(), fixed={"margn": 0.5}), QUICK)


@pytest.mark.parametrize("loss", [NormalizedSoftmax, None])
def test_a_miner_for_a_loss_that_compares_no_samples_raises(loss: type[Loss] | None) -> None:
    with pytest.raises(
        ValueError, match=r"^m: its loss takes no mined pairs or triplets; leave the miner out$"
    ):
        Method("m", loss, Space(), miner="hard", fitter=pca if loss is None else None)


def test_a_miner_sees_unit_vectors_where_the_loss_does() -> None:
    for loss, normalise in ((Triplet, True), (TripletSquared, False)):
        parts = assemble(Method("m", loss, Space(), miner="semihard"), {}, QUICK)
        assert isinstance(parts.miner, SemihardMiner)
        assert parts.miner.normalise is normalise
    assert SemihardMiner.normalise
    assert SemihardMiner().normalise


def test_a_method_departs_from_its_paper_where_its_loss_does_and_in_its_own_ways() -> None:
    assert Triplet.departures
    assert Method("m", Triplet, Space()).departures == Triplet.departures
    assert Method("m", Triplet, Space(), own_departures=("also so",)).departures == (
        *Triplet.departures,
        "also so",
    )
    own = Method("m", None, Space(), fitter=pca, own_departures=("only so",))
    assert own.departures == ("only so",)


def test_departures_of_one_method_are_not_those_of_another_with_the_same_loss() -> None:
    assert methods["contrastive"].departures == Contrastive.departures
    assert methods["contrastive_sampled"].departures[:-1] == Contrastive.departures


def test_a_miner_departs_in_its_own_ways_too() -> None:
    own = Method("m", Triplet, Space(), miner="semihard", own_departures=("also so",))
    assert SemihardMiner.departures
    assert departures(own) == (*Triplet.departures, "also so", *SemihardMiner.departures)
    assert departures(Method("m", Triplet, Space())) == Triplet.departures
    assert departures(methods["pretrained"]) == ()


# --- Clashes ---

every_clash = pytest.mark.parametrize(
    ("method", "parameter", "takers"),
    [
        (
            Method("m", WithEpsilon, Space(epsilon=Real(0, 9)), miner="multi_similarity"),
            "epsilon",
            "loss and miner",
        ),
        (Method("m", WithLr, Space(lr=Real(0, 9))), "lr", "loss and training"),
    ],
)


@every_clash
def test_a_clash_of_names_raises(method: Method, parameter: str, takers: str) -> None:
    with pytest.raises(BadInput, match=f"^m: the parameter '{parameter}' is taken by {takers}$"):
        assemble(method, {parameter: 0.5}, QUICK)


@every_clash
def test_a_clash_of_names_raises_before_the_first_trial(
    method: Method, parameter: str, takers: str
) -> None:
    with pytest.raises(BadInput, match=f"^m: the parameter '{parameter}' is taken by {takers}$"):
        defaults(method, QUICK)


def test_a_parameter_without_a_default_raises_before_the_first_trial() -> None:
    with pytest.raises(BadInput, match="margin"):
        defaults(Method("m", WithoutDefault, Space(margin=Real(0, 1))), QUICK)


def test_a_loss_without_parameters_is_built() -> None:
    method = Method("m", Plain, Space())
    assert defaults(method, QUICK) == {}
    assert isinstance(assemble(method, {}, QUICK).loss, Plain)


def test_a_miner_without_parameters_is_built(as_before: None) -> None:
    @miners("nothing_to_set")
    class NothingToSet(Miner):
        def mine(self, z: torch.Tensor, y: torch.Tensor, references: References) -> Pairs:
            return all_pairs(y, references)

    parts = assemble(Method("m", Plain, Space(), miner="nothing_to_set"), {}, QUICK)
    assert isinstance(parts.miner, NothingToSet)


def test_a_parameter_without_any_value_raises_before_the_first_trial() -> None:
    with pytest.raises(
        BadInput, match="'margin' has no value; give it a default, search it or fix it"
    ):
        defaults(Method("m", WithoutDefault, Space()), QUICK)
    assert defaults(Method("m", WithoutDefault, Space(), fixed={"margin": 0.5}), QUICK) == {}


def test_a_batch_of_an_unknown_kind_raises() -> None:
    kinds = "embedding, classification, pairs, episodes"
    with pytest.raises(ValueError, match=rf"^m: the batch is one of {kinds}, got 'embeding'$"):
        Method("m", Plain, Space(), batch="embeding")  # type: ignore[arg-type]


def test_a_loss_that_compares_nothing_known_raises() -> None:
    with pytest.raises(ValueError, match=r"^Typo\.compares is one of pairs, .*, got 'pair'$"):
        type("Typo", (Plain,), {"compares": "pair"})


def test_a_loss_that_gives_more_than_one_number_raises_with_its_name() -> None:
    class PerSample(Loss):
        def forward(self, z: torch.Tensor, *_: Any) -> torch.Tensor:
            return z.sum(1)

    with pytest.raises(ValueError, match=r"^PerSample gave shape \(4,\)"):
        PerSample()(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))


def test_weights_of_a_loss_of_classes_may_be_a_module_of_their_own() -> None:
    class Linear(Loss):
        compares = "classes"

        def setup(self, dim: int, classes: int) -> None:
            self.classify = torch.nn.Linear(dim, classes)

        def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.classify(z), y)

    loss = Linear()
    z, y = torch.ones(4, 2), torch.arange(4) % 2
    with pytest.raises(ValueError, match=r"call setup\(dim, classes\) first"):
        loss(z, y)
    loss.setup(2, 2)
    assert torch.isfinite(loss(z, y))


def test_an_unknown_miner_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'multi_similarity'"):
        assemble(Method("m", Plain, Space(), miner="multi_similarty"), {}, QUICK)


def test_a_loss_of_ones_own_needs_no_paper() -> None:
    assert Loss.paper is None
    assert Method("m", Plain, Space()).paper is None


def test_whole_numbers_and_words_are_parameters_too() -> None:
    class Worded(Plain):
        def __init__(self, *, centres: int = 2, kind: str = "soft") -> None:
            super().__init__()
            self.chosen = (centres, kind)

    method = Method("m", Worded, Space(centres=Integer(1, 10), kind=Choice(("soft", "hard"))))
    assert defaults(method, QUICK) == {"centres": 2, "kind": "soft"}
    loss = assemble(method, {"centres": 5, "kind": "hard"}, QUICK).loss
    assert isinstance(loss, Worded)
    assert loss.chosen == (5, "hard")


def test_the_source_of_a_method_is_that_of_its_loss_and_its_miner() -> None:
    loss, miner = file_of(MultiSimilarity), file_of(MultiSimilarityMiner)
    assert source_of(methods["multi_similarity"], RESOLVED) == source(loss)
    assert source_of(methods["multi_similarity_mined"], RESOLVED) == source(loss, miner)
    assert len({source(), source(loss), source(miner), source(loss, miner)}) == 4


def test_the_source_of_a_method_is_that_of_the_file_that_declares_it_too(
    as_before: None, tmp_path: Path
) -> None:
    """What is fixed and searched, and on which miner and batch, stands in that file and nowhere
    else.
    """
    file, sources = tmp_path / "declared.py", []
    for fixed in (0.25, 0.5):
        file.write_text(
            "from assay.losses.triplet import Triplet\n"
            "from assay.losses.loss import Method, methods\n"
            "from assay.space import Space\n"
            f"methods.add(Method('declared', Triplet, Space(), fixed={{'margin': {fixed}}}))\n"
        )
        import_parts([str(file)])
        sources.append(source_of(methods["declared"], RESOLVED))
        assert sources[-1] == source(file_of(Triplet), file)
    assert sources[0] != sources[1]


def test_a_method_that_is_not_registered_is_declared_in_no_file() -> None:
    own = Method("triplet", Triplet, Space(), miner="multi_similarity")
    assert source_of(own, RESOLVED) == source(file_of(Triplet), file_of(MultiSimilarityMiner))


def test_the_source_of_a_method_is_that_of_every_class_its_loss_is_written_in() -> None:
    class Wrapping(Plain):
        @classmethod
        def written_in(cls) -> tuple[type, ...]:
            return (cls, Triplet)

    assert source_of(Method("m", Wrapping, Space()), RESOLVED) == source(
        Path(__file__), file_of(Triplet)
    )


def test_a_registry_knows_which_module_added_a_part(as_before: None, tmp_path: Path) -> None:
    assert (
        methods.origin("triplet")
        == methods.origin("triplet_sampled")
        == Triplet.__module__
        == "assay.losses.triplet"
    )
    assert losses.origin("triplet") == "assay.losses.triplet"
    assert miners.origin("semihard") == "assay.miners.semihard"
    import_parts([write_mine(tmp_path / "mine.py")])
    assert sys.modules[methods.origin("mine")].__file__ == str(tmp_path / "mine.py")
    methods.add(Method("by_hand", Plain, Space()))
    assert methods.origin("by_hand") == __name__
    with pytest.raises(KeyError):
        methods.origin("silent")


@every_method
def test_the_source_of_every_method_is_that_of_the_protocols_trunk_too(name: str) -> None:
    on_vectors = resolve(DECLARED, "features", trunk_facts)
    assert source_of(methods[name], on_vectors) != source_of(methods[name], RESOLVED)
    assert source_of(methods["as_is"], on_vectors) == source(BASELINE, trunk="identity")


def test_code_in_no_file_has_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "__module__", "not_imported_from_anywhere")
    with pytest.raises(BadInput, match=r"the code of .*Plain.* is in no file"):
        source_of(Method("m", Plain, Space()), RESOLVED)


def test_a_users_file_adds_a_method(as_before: None, tmp_path: Path) -> None:
    import_parts([write_mine(tmp_path / "mine.py")])
    assert defaults(methods["mine"], QUICK) == {"scale": 3.0}
    loss = assemble(methods["mine"], {"scale": 2.0}, QUICK).loss
    assert loss(torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).item() == pytest.approx(8)
    assert source_of(methods["mine"], RESOLVED) == source(tmp_path / "mine.py")


def test_a_users_file_is_imported_once(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_mine(tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    import_parts([file, file])
    first = methods["mine"]
    import_parts(["mine.py", "./mine.py"])
    assert methods["mine"] is first


def test_a_users_module_is_imported_by_name(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mine(tmp_path / "my_parts" / "mine.py")
    monkeypatch.syspath_prepend(tmp_path)
    import_parts(["my_parts.mine"])
    assert "mine" in methods


def test_two_files_of_the_same_name_keep_their_own_sources(as_before: None, tmp_path: Path) -> None:
    import_parts(
        [
            write_mine(tmp_path / "a" / "mine.py", "one", 1.0),
            write_mine(tmp_path / "b" / "mine.py", "two", 2.0),
        ]
    )
    assert source_of(methods["one"], RESOLVED) == source(tmp_path / "a" / "mine.py")
    assert source_of(methods["two"], RESOLVED) == source(tmp_path / "b" / "mine.py")


def test_a_users_method_cannot_take_a_name_that_is_taken(as_before: None, tmp_path: Path) -> None:
    before = methods["triplet"]
    with pytest.raises(BadInput, match="'triplet' is registered already"):
        import_parts([write_mine(tmp_path / "mine.py", "triplet")])
    assert methods["triplet"] is before


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for name, said in (("missing.py", "there is no such file"), ("folder.py", "it is not a file")):
        with pytest.raises(BadInput, match=f"--import .*{name}: {said}; give a Python file"):
            import_parts([str(tmp_path / name)])


@pytest.mark.parametrize(
    "name", ["no_such_module_at_all", "assay.no_such_part", "", ".relative", "a folder/mine"]
)
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=rf"--import {name}( failed|: there is no such module)"):
        import_parts([name])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError"),
        ("raise ValueError('by the user')\n", "ValueError: by the user"),
        ("from assay.methods import methods\nmethods['nope']\n", "nope"),
        ("\x00", "null bytes"),
        ("from assay.space import Real\nReal(2, 1)\n", "low < high"),
    ],
)
def test_a_file_that_fails_is_bad_input(
    as_before: None, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(BadInput, match=said):
        import_parts([str(tmp_path / "broken.py")])


@pytest.mark.parametrize("code", [0, 3])
def test_a_file_that_exits_does_not_end_assay(as_before: None, tmp_path: Path, code: int) -> None:
    """Else a script without a main guard makes a bench exit with 0, as if its work were done."""
    (tmp_path / "script.py").write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(BadInput, match=r"script\.py"):
        import_parts([str(tmp_path / "script.py")])


def test_a_file_can_be_mended_and_imported_again(as_before: None, tmp_path: Path) -> None:
    file = write_mine(tmp_path / "mine.py")
    whole = Path(file).read_text()
    Path(file).write_text("1 / 0\n" + whole)
    with pytest.raises(BadInput):
        import_parts([file])
    Path(file).write_text(whole)
    import_parts([file])
    assert "mine" in methods


def test_a_file_that_failed_at_its_end_can_be_mended_and_imported_again(
    as_before: None, tmp_path: Path
) -> None:
    file = write_mine(tmp_path / "mine.py")
    whole = Path(file).read_text()
    Path(file).write_text(whole + "1 / 0\n")
    with pytest.raises(BadInput):
        import_parts([file])
    Path(file).write_text(whole)
    import_parts([file])
    assert source_of(methods["mine"], RESOLVED) == source(tmp_path / "mine.py")


def test_a_file_that_failed_leaves_nothing_registered(as_before: None, tmp_path: Path) -> None:
    before = [list(registry) for registry in (methods, losses)]
    file = write_mine(tmp_path / "mine.py")
    with Path(file).open("a") as stream:
        stream.write("1 / 0\n")
    for _ in range(2):
        with pytest.raises(BadInput, match="ZeroDivisionError"):
            import_parts([file])
        assert [list(registry) for registry in (methods, losses)] == before


def test_a_file_that_clashes_leaves_nothing_registered(as_before: None, tmp_path: Path) -> None:
    before = [list(registry) for registry in (methods, losses)]
    file = write_mine(tmp_path / "mine.py")
    Path(file).write_text(Path(file).read_text().replace('Method("mine"', 'Method("triplet"'))
    with pytest.raises(BadInput, match="'triplet' is registered already"):
        import_parts([file])
    assert [list(registry) for registry in (methods, losses)] == before


def test_an_edited_file_replaces_its_parts(as_before: None, tmp_path: Path) -> None:
    import_parts([write_mine(tmp_path / "mine.py", scale=3.0)])
    import_parts([write_mine(tmp_path / "mine.py", scale=4.0)])
    assert defaults(methods["mine"], QUICK) == {"scale": 4.0}
    assert methods["mine"].loss is losses["mine"]
    assert source_of(methods["mine"], RESOLVED) == source(tmp_path / "mine.py")


def test_a_part_that_was_edited_away_is_gone(as_before: None, tmp_path: Path) -> None:
    import_parts([write_mine(tmp_path / "mine.py", "mine")])
    import_parts([write_mine(tmp_path / "mine.py", "renamed")])
    for registry in (methods, losses):
        assert "renamed" in registry
        assert "mine" not in registry


def test_an_edited_file_leaves_the_parts_of_others_alone(as_before: None, tmp_path: Path) -> None:
    others = [name for name in methods if name != "mine"]
    import_parts(
        [
            write_mine(tmp_path / "other" / "mine.py", "other"),
            write_mine(tmp_path / "mine.py", "mine", 3.0),
        ]
    )
    other = methods["other"]
    import_parts([write_mine(tmp_path / "mine.py", "mine", 4.0)])
    assert methods["other"] is other
    assert [name for name in methods if name not in ("mine", "other")] == others


def test_an_edited_file_cannot_take_a_name_of_another(as_before: None, tmp_path: Path) -> None:
    import_parts(
        [write_mine(tmp_path / "other.py", "other"), write_mine(tmp_path / "mine.py", "mine")]
    )
    other = methods["other"]
    with pytest.raises(BadInput, match="'other' is registered already"):
        import_parts([write_mine(tmp_path / "mine.py", "other")])
    assert methods["other"] is other
    import_parts([write_mine(tmp_path / "mine.py", "mine")])
    assert "mine" in methods


def test_a_file_that_was_edited_into_failing_is_not_passed_over(
    as_before: None, tmp_path: Path
) -> None:
    """Neither now, nor when it is given once more as it is, nor are its old parts used in place of
    it.
    """
    file = write_mine(tmp_path / "mine.py")
    whole = Path(file).read_text()
    import_parts([file])
    Path(file).write_text(whole + "1 / 0\n")
    for _ in range(2):
        with pytest.raises(BadInput, match="ZeroDivisionError"):
            import_parts([file])
        assert "mine" not in methods
    Path(file).write_text(whole)
    import_parts([file])
    assert source_of(methods["mine"], RESOLVED) == source(tmp_path / "mine.py")


def test_parts_registered_by_hand_outlive_a_file_that_fails(
    as_before: None, tmp_path: Path
) -> None:
    methods.add(Method("by_hand", Plain, Space()))
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(BadInput):
        import_parts([str(tmp_path / "broken.py")])
    assert "by_hand" in methods


def test_a_file_that_fails_takes_no_part_of_assay_with_it(tmp_path: Path) -> None:
    """A user's file may be the first to import trunks, samplers or data sets: they stay."""
    (tmp_path / "broken.py").write_text(
        "from assay.data import datasets\nfrom assay.samplers import samplers\nfrom assay.trunks"
        " import trunks\n1 / 0\n"
    )
    code = (
        "import sys\n"
        "from contextlib import suppress\n"
        "from assay.errors import BadInput\n"
        "from assay.methods import import_parts\n"
        "with suppress(BadInput):\n"
        "    import_parts([sys.argv[1]])\n"
        "from assay.data import datasets\n"
        "from assay.samplers import samplers\n"
        "from assay.trunks import trunks\n"
        "print(*datasets, *samplers, *trunks)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "broken.py")], capture_output=True, text=True
    )
    assert {"glyphs", "balanced", "conv", "identity"} <= set(done.stdout.split()), done.stderr


def test_parts_of_a_module_that_a_file_imports_outlive_an_edit_of_the_file(
    as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports a module once, so parts that an edited file drops would not come back."""
    write_mine(tmp_path / "my_helpers.py", "helped")
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(2):
        (tmp_path / "mine.py").write_text(f"import my_helpers\nEDIT = {number}\n")
        import_parts([str(tmp_path / "mine.py")])
        assert "helped" in methods


@pytest.mark.parametrize(
    ("default", "space"),
    [
        (0.0, Real(0.01, 1, log=True)),
        ("c", Choice(("a", "b"))),
        ("much", Real(0, 1)),
        (0.5, Integer(1, 4)),
        (True, Real(0, 1)),
    ],
)
def test_a_default_that_cannot_be_searched_is_refused_before_any_run(
    default: Any, space: Range
) -> None:
    class Odd(Loss):
        def __init__(self, *, knob: Any = default) -> None:
            super().__init__()

    with pytest.raises(BadInput, match=r"odd: the default .* of 'knob' cannot be searched"):
        defaults(Method("odd", Odd, space=Space(knob=space)), QUICK)
