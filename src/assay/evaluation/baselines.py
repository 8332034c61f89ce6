"""What trunks are worth before any metric learning: their features, reduced by a PCA, as a search.

This is Table 1 of the reality check (Musgrave et al. 2020, arxiv.org/abs/2003.08505) on any data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from assay.data import splits
from assay.data.dataset import Dataset, Half
from assay.data.seal import Reason
from assay.data.splits import TrainVal
from assay.devices import choose_device
from assay.embedding import fit_pca, trunk_features
from assay.errors import BadInput
from assay.metrics import Scores
from assay.progress import Progress
from assay.protocols import Protocol, kind_of, resolve
from assay.registry import UnknownName
from assay.run import HalfLabels
from assay.trunks import trunk_facts, trunks
from assay.trunks import weights as trunk_weights


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
    trainval, sealed = splits.of(dataset, protocol)
    tested = sealed.look(Reason.BASELINE) if test else None
    for name in names or _suitable(dataset):
        for start in ("none", protocol.weights if protocol.weights != "none" else "pretrained"):
            settings = replace(protocol, trunk=name, weights=start, frozen="nothing")
            found = _baseline(trainval, tested, settings, metrics, progress)
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
    trainval: TrainVal,
    test: Half | None,
    protocol: Protocol,
    metrics: Sequence[str],
    progress: Progress,
) -> Baseline | None:
    """Score a trunk with one kind of weights; None where it has no such weights."""
    halves = [trainval] if test is None else [trainval, test]
    try:
        resolved = resolve(protocol, trainval.modality, trunk_facts)
        weights = trunk_weights.resolve(protocol.trunk, protocol.weights)
        if protocol.weights != "none" and weights is None:
            return None
        start = "pretrained" if weights else "random weights"
        device = torch.device(choose_device("auto"))
        features = [
            trunk_features(
                resolved,
                half.some,
                np.arange(len(half.y)),
                half.inputs,
                device,
                lambda stage, *at: progress(f"{stage}, {start}", *at),
            )
            for half in halves
        ]
    except (BadInput, UnknownName) as error:
        return Baseline(protocol.trunk, None, problem=str(error))
    samples, wide = features[0].shape
    width = min(protocol.dim, wide, samples - 1)
    with torch.no_grad():
        z = F.normalize(fit_pca(features[0], width)(features[-1]), dim=1)
    if test is not None:
        scores = {"test": HalfLabels.of(test).evaluate(z, metrics)}
    else:
        scores = {
            f"fold {number}": HalfLabels(trainval.y[rows]).evaluate(z[rows], metrics)
            for number, rows in enumerate(
                fold.validation for fold in splits.folds(trainval, protocol.folds)
            )
        }
    return Baseline(protocol.trunk, weights.pretrained_on if weights else None, wide, width, scores)
