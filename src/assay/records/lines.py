"""The lines of a ledger as types, in the order in which a study writes them.

Attributes have the names that the JSON has. See `assay.records.codec` for how they are written and
read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from assay.protocols import ResolvedProtocol
from assay.records.announced_data import AnnouncedData
from assay.records.codec import Document, Record
from assay.records.keys import Environment
from assay.records.origin import GivenParameters, ParameterOrigin, Searched, SweepPoint
from assay.registry import Paper
from assay.space import Edge, Parameters, Space, Value

Scores = Mapping[str, float]
"""Scores by the name of the metric; `queries` and `skipped` count what they are over."""

Setting = Literal["separated", "concatenated"]
"""How the models of the folds are scored: each by itself, or their vectors side by side."""

RunStatus = Literal["finished", "diverged"]
TrialStatus = Literal["finished", "failed", "pruned"]


@dataclass(frozen=True)
class AnnouncedProtocol(Record):
    """The protocol of a study.

    Args:
        name: name of the protocol as declared.
        fingerprint: hash of its settings as declared.
        question: the same without the numbers of searches and reproductions, the seed and such.
        resolved: the settings without any `auto`, for this method.
        settings: what was changed in the published protocol, as `--set` takes it: name and
            fingerprint follow from these.
    """

    name: str
    fingerprint: str
    question: str
    resolved: ResolvedProtocol
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Weights(Record):
    """Weights that a trunk starts from.

    Args:
        digest: SHA-256 of the tensors with their names, types and shapes, the same on every
            machine.
        pretrained_on: the data they were trained on.
        source: the file, package or address they came from.
    """

    digest: str
    pretrained_on: str
    source: str


@dataclass(frozen=True)
class AnnouncedMethod(Record):
    """The method of a study.

    Args:
        name: name of the method; a twin has a suffix.
        baseline: whether nothing is trained.
        source: hash of the files in which it is written.
        head: the layer after the trunk: `linear` where it is trained by steps.
        about: one line for lists.
        miner: name of its miner.
        fixed: parameters that the method fixes.
        batch: classes x images per class of a batch.
        batch_shrunk: whether the data have too few classes for the protocol's batch.
        defaults: parameters of trial 0.
        departures: differences to the paper.
        paper: the paper it follows.
        sampler: name of its own sampler; None: the protocol's.
    """

    name: str
    baseline: bool
    source: str
    head: str
    about: str
    miner: str | None
    fixed: Mapping[str, Value]
    batch: tuple[int, int]
    batch_shrunk: bool
    defaults: Mapping[str, Value]
    departures: tuple[str, ...]
    paper: Paper | None
    sampler: str | None = None


@dataclass(frozen=True)
class Budget(Record):
    """How much a study computes.

    Args:
        searches: independent searches; 1 where nothing is searched.
        trials: trials of each search; 0 where nothing is searched.
        trial_folds: runs of a trial.
        startup: trials after the defaults that depend on no other.
        reproductions: reproductions of each search's choice.
        reproduction_runs: runs of all reproductions of all searches.
        folds: folds of trainval.
    """

    searches: int
    trials: int
    trial_folds: int
    startup: int
    reproductions: int
    reproduction_runs: int
    folds: int


@dataclass(frozen=True)
class Versions(Record):
    """Versions that a search depends on; `source` and `search` are hashes of Assay's own files."""

    assay: str
    source: str
    python: str
    torch: str
    optuna: str
    scipy: str
    search: str


@dataclass(frozen=True)
class Preregistration(Document):
    """The first line: everything that is announced before the first trial.

    Args:
        protocol: equal conditions.
        data: the half that the study works on.
        weights: weights that the trunk starts from; None: random ones.
        method: the method that is studied.
        space: ranges that are searched.
        budget: numbers of searches, trials and reproductions.
        versions: versions of Assay and of the libraries.
        environment: where runs execute.
        twin_of: the method that this one is a control twin of.
        given: parameters that were chosen elsewhere.
        sweep: the point of a sweep that this study is.
        generation: how many studies of its kind were begun before (`--new-study`).
    """

    kind: ClassVar[Literal["preregistration"]] = "preregistration"
    protocol: AnnouncedProtocol
    data: AnnouncedData
    weights: Weights | None
    method: AnnouncedMethod
    space: Space
    budget: Budget
    versions: Versions
    environment: Environment
    twin_of: str | None = None
    given: GivenParameters | None = None
    sweep: SweepPoint | None = None
    generation: int = 0

    @property
    def origin(self) -> ParameterOrigin:
        """Where the parameters come from."""
        return Searched() if self.given is None else self.given.origin


@dataclass(frozen=True, kw_only=True)
class RunEntry(Record):
    """A finished run, as the lines of trials and reproductions hold it.

    Args:
        key: key of the run.
        status: finished or diverged.
        validation: scores of the chosen checkpoint on the validation fold.
        best_epoch: epoch of the chosen checkpoint.
        last_epoch: epoch of the last validation.
        result: SHA-256 of its `result.json`, which holds the hashes of weights and history.
        training: scores of the training samples, where the protocol asks for them.
    """

    key: str
    status: RunStatus
    validation: Scores
    best_epoch: int
    last_epoch: int
    result: str
    training: Scores | None = None


@dataclass(frozen=True)
class Trial(Record):
    """A finished trial of a search.

    Args:
        search: number of the search.
        trial: number of the trial in the search.
        parameters: parameters that were tried.
        status: finished; failed, where a fold diverged; pruned, where it was given up early.
        map_at_r: mean validation MAP@R over its folds; None unless it is finished.
        runs: a run for each fold.
        estimate: MAP@R that a pruned trial would have come to.
    """

    kind: ClassVar[Literal["trial"]] = "trial"
    search: int
    trial: int
    parameters: Parameters
    status: TrialStatus
    map_at_r: float | None
    runs: tuple[RunEntry, ...]
    estimate: float | None = None

    @property
    def value(self) -> float | None:
        """MAP@R as the search sees it: the estimate of a pruned trial, None for a failed one."""
        return self.map_at_r if self.estimate is None else self.estimate


@dataclass(frozen=True)
class Selection(Record):
    """The choice of one search.

    Args:
        search: number of the search.
        trial: number of the selected trial; None where there is none.
        parameters: parameters of that trial, or those that are run without a search; None where
            every trial diverged.
        edges: parameters that lie on an end of their range.
    """

    kind: ClassVar[Literal["selection"]] = "selection"
    search: int
    trial: int | None
    parameters: Parameters | None
    edges: Mapping[str, Edge]


@dataclass(frozen=True, kw_only=True)
class Reproduction(RunEntry):
    """One run of a reproduction.

    Args:
        search: number of the search.
        reproduction: number of the reproduction of that search's choice.
        fold: fold that is validated; None where one run stands for all folds.
    """

    kind: ClassVar[Literal["reproduction"]] = "reproduction"
    search: int
    reproduction: int
    fold: int | None


@dataclass(frozen=True)
class Seal(Record):
    """The opening of the test half.

    Args:
        test: fingerprint of the test half.
        classes: number of its classes.
        samples: number of its samples.
        labels: hash of its labels.
        contents: hash of the file that has the content hash of each of its samples.
        receipt: hash of the line that completed the reproductions.
        problems: problems of the test half, in words.
        left_out: samples that were left out of it, in words.
    """

    kind: ClassVar[Literal["seal"]] = "seal"
    test: str
    classes: int
    samples: int
    labels: str
    contents: str
    receipt: str
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReproductionScores(Record):
    """The scores of the vectors of one reproduction.

    Args:
        concatenated: scores of the vectors of all folds side by side.
        separated: mean over the folds of the scores of each fold's vectors.
        folds: scores of each fold's vectors.
    """

    concatenated: Scores
    separated: Scores
    folds: tuple[Scores, ...]

    def scores(self, setting: Setting) -> Scores:
        """Return the scores in one setting."""
        return self.separated if setting == "separated" else self.concatenated


@dataclass(frozen=True, kw_only=True)
class TestScores(ReproductionScores):
    """The test scores of one reproduction.

    Args:
        search: number of the search.
        reproduction: number of the reproduction.
        test: fingerprint of the test half.
        runs: keys of its runs, one for each fold.
        vectors: SHA-256 of the file of vectors of each run.
        classes: SHA-256 of the file with the scores of single classes.
    """

    __test__: ClassVar[bool] = False  # no test of pytest's
    kind: ClassVar[Literal["test"]] = "test"
    search: int
    reproduction: int
    test: str
    runs: tuple[str, ...]
    vectors: tuple[str, ...]
    classes: str


@dataclass(frozen=True)
class Look(Record):
    """A look at the test half after the study had ended.

    Args:
        run: key of the run whose model looked.
        test: fingerprint of the study's test half.
        data: name of the data set that was searched or embedded.
        samples: number of samples of the test half whose content was among those.
        similarity: how embeddings were compared.
        metrics: scores of all that was searched; none where samples were only embedded.
        queries: number of queries that they are over.
        skipped: number of queries that have nothing to find.
    """

    kind: ClassVar[Literal["look"]] = "look"
    run: str
    test: str
    data: str
    samples: int
    similarity: str
    metrics: Scores
    queries: int
    skipped: int


@dataclass(frozen=True)
class PeekedRun(Record):
    """Test MAP@R of every checkpoint of a reproduction's run.

    Args:
        search: number of the search.
        reproduction: number of the reproduction.
        fold: fold of the run.
        run: key of the run.
        chosen: epoch of the checkpoint that validation chose.
        test: test MAP@R by epoch.
        weights: SHA-256 of each checkpoint by epoch.
    """

    search: int
    reproduction: int
    fold: int | None
    run: str
    chosen: int
    test: Mapping[int, float]
    weights: Mapping[int, str]


@dataclass(frozen=True)
class PeekedTrial(Record):
    """Test MAP@R of the best checkpoints of a trial's runs.

    Args:
        search: number of the search.
        trial: number of the trial.
        validation: mean validation MAP@R of the trial.
        test: test MAP@R of each of its runs.
    """

    search: int
    trial: int
    validation: float | None
    test: tuple[float, ...]


@dataclass(frozen=True)
class Peek(Record):
    """Test scores of checkpoints and trials that were not chosen, for the price of peeking only.

    Args:
        test: fingerprint of the test half.
        epochs: each run of each reproduction.
        trials: each trial.
    """

    kind: ClassVar[Literal["peek"]] = "peek"
    test: str
    epochs: tuple[PeekedRun, ...]
    trials: tuple[PeekedTrial, ...]


Entry = Preregistration | Trial | Selection | Reproduction | Seal | TestScores | Look | Peek
"""What a line of a ledger says."""

ENTRIES: Mapping[str, type[Entry]] = {
    "preregistration": Preregistration,
    "trial": Trial,
    "selection": Selection,
    "reproduction": Reproduction,
    "seal": Seal,
    "test": TestScores,
    "look": Look,
    "peek": Peek,
}
"""The type of each kind of line."""
