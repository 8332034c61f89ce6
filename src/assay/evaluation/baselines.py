"""Scores of trunks before any metric learning: their features, reduced by a PCA, as a search.

This is Table 1 of the reality check (Musgrave et al. 2020, arxiv.org/abs/2003.08505) on any data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from assay.data import Dataset, load, splits
from assay.data.dataset import Half
from assay.data.seal import Reason
from assay.data.splits import TrainVal
from assay.devices import choose_device
from assay.errors import BadInput
from assay.evaluation.look import LookedAt, Looker, looking
from assay.features import FrozenTrunk
from assay.fitters import pca
from assay.metric_names import DEFAULT_METRICS
from assay.metrics import Scores
from assay.model import Architecture
from assay.progress import Progress, silent
from assay.protocols import Protocol, customise, kind_of, protocols, resolve
from assay.records.halves import prints_of
from assay.run import HalfLabels
from assay.trunks import find, trunk_facts, trunks, with_weights
from assay.trunks import weights as trunk_weights


@dataclass(frozen=True)
class TrunkBaseline:
    """A trunk without any training on the data.

    Args:
        trunk: name of the trunk.
        pretrained_on: the data that its weights were trained on; None: random weights.
        features: width of its features.
        dim: width after the PCA.
        scores: scores of each part that was searched, by its name.
        problem: why there are no scores, such as weights that are not on this machine.
        notes: sentences that a reader of the scores should know, such as where a look at a test
            half was recorded.
    """

    trunk: str
    pretrained_on: str | None
    features: int = 0
    dim: int = 0
    scores: dict[str, Scores] | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the parts."""
        assert self.scores is not None
        return float(np.mean([scores[metric] for scores in self.scores.values()]))


def baselines(
    data: str | Dataset,
    names: Sequence[str] = (),
    protocol: str | Protocol = "quick",
    *,
    dim: int = 512,
    weights: str | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    test: bool = False,
    progress: Progress = silent,
) -> list[TrunkBaseline]:
    """Score each trunk with random weights and, where it has some, with pretrained weights.

    The PCA is fitted on trainval. The validation part of each fold is searched by itself.

    Args:
        data: a name or kind:path of `assay list datasets`, or a `Dataset`.
        names: names of trunks; where none is given, all of `assay list trunks` that take such
            samples.
        protocol: a name of `assay list protocols`, or a `Protocol`: how images are scaled and data
            are split.
        dim: dimensions after the PCA, at most.
        weights: a file with weights of the one trunk named, instead of its own.
        metrics: names of `assay list metrics`.
        test: search the test half instead of the validation folds. Such a look belongs to no
            study; the index of looks has it.
        progress: called with the stage, the steps done and their total.
    """
    for name in names:
        find(name)  # raises for an unknown name, before any trunk is run
    chosen = protocols[protocol] if isinstance(protocol, str) else protocol
    chosen = customise(chosen, [f"dim={dim}"])
    if weights is not None:
        if len(names) != 1:
            raise BadInput(
                f"--weights {weights}: name the one trunk that the weights are of with --trunks"
            )
        chosen = with_weights(customise(chosen, [f"trunk={names[0]}"]), weights)
    dataset = load(data, progress) if isinstance(data, str) else data
    trainval, sealed = splits.of(dataset, chosen)
    tested = sealed.hand_out(Reason.BASELINE) if test else None
    kind = kind_of(dataset.modality)
    found = []
    searched, asked = (trainval, "") if tested is None else (tested, tested.fingerprint)
    prints, count = prints_of(searched.contents()), 0 if tested is None else len(tested.y)
    at = LookedAt(dataset.name, prints, trainval.fingerprint, asked, count)
    with looking(Looker("assay baselines"), at) as look:
        for name in names or [name for name, trunk in trunks.items() if trunk.takes == kind]:
            for start in ("none", chosen.weights if chosen.weights != "none" else "pretrained"):
                settings = replace(chosen, trunk=name, weights=start, frozen="nothing")
                baseline = _baseline(trainval, tested, settings, metrics, progress)
                if baseline is not None:
                    found.append(baseline)
                    if baseline.problem and start == "none":  # other weights would not help
                        break
        seen = any(baseline.scores for baseline in found)
        if names and not seen:
            raise BadInput(f"--trunks {','.join(names)}: {found[0].problem}")
        notes = tuple(look.record({}, "cosine")) if seen else ()
    return [replace(baseline, notes=notes) for baseline in found]


def _baseline(
    trainval: TrainVal,
    test: Half | None,
    protocol: Protocol,
    metrics: Sequence[str],
    progress: Progress,
) -> TrunkBaseline | None:
    """Score a trunk with one kind of weights; None where it has no such weights."""
    halves = [trainval] if test is None else [trainval, test]
    try:
        resolved = resolve(protocol, trainval.modality, trunk_facts)
        weights = trunk_weights.resolve_weights(protocol.trunk, protocol.weights)
        if protocol.weights != "none" and weights is None:
            return None
        start = "pretrained" if weights else "random weights"
        whole = Architecture.whole(resolved, trainval.inputs)
        trunk = FrozenTrunk(whole, resolved.weights, choose_device("auto"), resolved.seed)

        def reported(stage: str, done: int, total: int) -> None:
            progress(f"{stage}, {start}", done, total)

        features = [torch.from_numpy(trunk.features(half, reported)) for half in halves]
    except BadInput as error:
        return TrunkBaseline(protocol.trunk, None, problem=str(error))
    wide = features[0].shape[1]
    with torch.no_grad():
        layer = pca(features[0], torch.from_numpy(trainval.y), protocol.dim)
        z = F.normalize(layer(features[-1]), dim=1)
    if test is not None:
        scores = {"test": HalfLabels.of(test).evaluate(z, metrics)}
    else:
        folds = splits.folds(trainval, protocol.folds)
        scores = {
            f"fold {number}": HalfLabels(trainval.y[fold.validation]).evaluate(
                z[fold.validation], metrics
            )
            for number, fold in enumerate(folds)
        }
    pretrained_on = weights.pretrained_on if weights else None
    return TrunkBaseline(protocol.trunk, pretrained_on, wide, layer.out_features, scores)
