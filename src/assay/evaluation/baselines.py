"""What trunks are worth before any metric learning: their features, reduced by a PCA, as a search.

This is Table 1 of the reality check (Musgrave et al. 2020, arxiv.org/abs/2003.08505) on any data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from assay.data.dataset import Dataset, Labels
from assay.data.splits import parts
from assay.embedding import choose_device, fit_pca, trunk_features
from assay.errors import BadInput
from assay.metrics import Scores
from assay.model import settle
from assay.progress import Progress
from assay.protocols import Protocol, kind_of
from assay.registry import UnknownName
from assay.run.scoring import HalfLabels
from assay.trunks import trunks


@dataclass(frozen=True)
class Baseline:
    """A trunk as it is.

    Args:
        trunk: its name.
        pretrained_on: the data its weights come from; None: random weights.
        features: width of its features.
        dim: width after the PCA.
        scores: of each part that was searched, by its name.
        problem: why there are no scores, such as weights that are not on this machine.
    """

    trunk: str
    pretrained_on: str | None
    features: int = 0
    dim: int = 0
    scores: dict[str, Scores] | None = None
    problem: str | None = None

    def mean(self, metric: str) -> float:
        """Over the parts."""
        assert self.scores is not None
        return float(np.mean([scores[metric] for scores in self.scores.values()]))


def baselines(
    dataset: Dataset,
    protocol: Protocol,
    names: Sequence[str],
    metrics: Sequence[str],
    *,
    test: bool,
    progress: Progress,
) -> Iterator[Baseline]:
    """Each trunk with random and, where it has some, with pretrained weights, under the protocol's
    input and `dim`.

    Weights of a file that the protocol names take the place of a trunk's own. The PCA is fitted on
    trainval; without `test` the validation part of each fold is searched by itself, and the test
    half is left alone.
    """
    for name in names or _suitable(dataset):
        for start in ("none", protocol.weights if protocol.weights != "none" else "pretrained"):
            found = _baseline(
                dataset,
                replace(protocol, trunk=name, weights=start, frozen="nothing"),
                metrics,
                test,
                progress,
            )
            if found is not None:
                yield found
            if (
                found is not None and found.problem and start == "none"
            ):  # nothing that weights would mend
                break


def _suitable(dataset: Dataset) -> list[str]:
    """The trunks that Assay knows by name and that take such samples."""
    return [name for name, kind in trunks.items() if kind.takes == kind_of(dataset.modality)]


def _baseline(
    dataset: Dataset, protocol: Protocol, metrics: Sequence[str], test: bool, progress: Progress
) -> Baseline | None:
    belongs = np.array(parts(dataset, protocol))
    rows = np.flatnonzero((belongs != "test") | test)
    try:
        settled, weights = settle(protocol, dataset.modality)
        if protocol.weights != "none" and weights is None:
            return None
        start = "pretrained" if weights else "random weights"
        device = torch.device(choose_device("auto"))
        features = trunk_features(
            settled,
            dataset.items.arrays,
            rows,
            dataset.items.inputs,
            device,
            lambda stage, *at: progress(f"{stage}, {start}", *at),
        )
    except (BadInput, UnknownName) as error:
        return Baseline(protocol.trunk, None, problem=str(error))
    where = belongs[rows]
    width = min(protocol.dim, features.shape[1], int((where != "test").sum()) - 1)
    with torch.no_grad():
        z = F.normalize(fit_pca(features[where != "test"], width)(features), dim=1)
    names = ["test"] if test else [f"fold {number}" for number in range(protocol.folds)]
    scores = {
        name: _answers(dataset, rows[where == name], test).evaluate(z[where == name], metrics)
        for name in names
    }
    return Baseline(
        protocol.trunk, weights.pretrained_on if weights else None, features.shape[1], width, scores
    )


def _answers(dataset: Dataset, rows: Labels, test: bool) -> HalfLabels:
    """Of these samples: at the test by the roles that the data give them, else all in all."""
    marks = [
        None if mark is None or not test else mark[rows]
        for mark in (dataset.query, dataset.gallery)
    ]
    return HalfLabels(dataset.labels[rows], *marks)
