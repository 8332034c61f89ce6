"""The start of training: which trunk and weights a protocol means."""

from pathlib import Path

from assay.errors import BadInput
from assay.protocols import RANDOM_WEIGHTS, Protocol, TrunkFacts, customise
from assay.trunks import weights
from assay.trunks.lookup import find


def trunk_facts(name: str) -> TrunkFacts:
    """Return the facts about a trunk that a protocol depends on."""
    kind = find(name)

    def find_weights(wanted: str) -> str:
        found = weights.resolve(name, wanted)
        return found.digest if found else RANDOM_WEIGHTS

    return TrunkFacts(kind.takes, kind.side, kind.smallest, find_weights)


def with_weights(protocol: Protocol, given: str, pretrained_on: str | None = None) -> Protocol:
    """Return the protocol with the weights that `--weights` names: `none`, `pretrained`, or a file,
    which is brought into the cache.
    """
    if given == RANDOM_WEIGHTS:
        return customise(protocol, [f"weights={given}"])
    if given == weights.PRETRAINED:
        if protocol.trunk == "auto" or weights.resolve(protocol.trunk, given) is None:
            raise BadInput(
                "--weights pretrained: this trunk has none; choose one that has, for example --set"
                " trunk=lite0"
            )
        return customise(protocol, [f"weights={given}"])
    if protocol.trunk == "auto":
        raise BadInput(
            f"--weights {given}: say which trunk they are of, for example --set trunk=resnet50"
        )
    added = weights.add_file(protocol.trunk, Path(given), pretrained_on)
    return customise(protocol, [f"weights={added.digest}"])
