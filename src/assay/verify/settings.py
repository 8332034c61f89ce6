"""Settings of a resolved protocol that have to follow from others: those at a point of a sweep from
those of its base, and those of a method with an exception from those of the other methods.

What is known of a trunk alone, its own weights and its size, is taken as it was announced.
"""

from collections.abc import Collection

from assay.protocols import (
    RANDOM_WEIGHTS,
    Modality,
    Protocol,
    ResolvedProtocol,
    TrunkFacts,
    kind_of,
    resolve,
    with_settings,
)
from assay.protocols.changes import settings_by_path
from assay.trunks.weights import PRETRAINED

BY_WHAT_TRAINS = (
    "optimiser.lr", "optimiser.schedule", "batch.embedding", "batch.classification",
    "shortest_epoch", "epochs", "validate_every", "patience",
)  # fmt: skip
"""Settings whose `auto` depends on whether the trunk trains."""

BY_TRUNK = ("weights", "size")
"""Settings whose `auto` depends on the trunk."""


def differing_settings(
    declared: Protocol, announced: ResolvedProtocol, modality: Modality
) -> list[str]:
    """Return the settings that were announced and are not those of the declared protocol."""
    expected = settings_by_path(_resolve_as(declared, announced, modality))
    found = settings_by_path(announced)
    return [path for path, value in found.items() if value != expected[path]]


def unexplained_settings(
    ours: ResolvedProtocol, theirs: ResolvedProtocol, own: Collection[str], modality: Modality
) -> list[str]:
    """Return the settings in which two protocols differ for no reason.

    A reason is that a setting is among `own`, or that both have what `auto` makes of those.
    """
    left, right = settings_by_path(ours), settings_by_path(theirs)
    differ = [path for path in left if left[path] != right[path] and path not in own]
    auto = [settings_by_path(_by_auto(one, modality)) for one in (ours, theirs)]

    def follows(path: str) -> bool:
        if path in BY_TRUNK:
            return ours.trunk != theirs.trunk
        if path == "frozen":
            return all(one.frozen == _frozen_by_auto(one) for one in (ours, theirs))
        values = (left[path], right[path])
        return path in BY_WHAT_TRAINS and values == tuple(one[path] for one in auto)

    return [path for path in differ if not follows(path)]


def _by_auto(one: ResolvedProtocol, modality: Modality) -> ResolvedProtocol:
    """Return the protocol with what `auto` gives where that depends on what trains."""
    left_open = with_settings(one.declared, dict.fromkeys(BY_WHAT_TRAINS))
    return _resolve_as(left_open, one, modality)


def _frozen_by_auto(one: ResolvedProtocol) -> str:
    return "nothing" if one.weights == RANDOM_WEIGHTS else "trunk"


def _resolve_as(
    declared: Protocol, announced: ResolvedProtocol, modality: Modality
) -> ResolvedProtocol:
    """Resolve a protocol with the trunk's own weights and size of the announced one."""

    def find_weights(wanted: str) -> str:
        return announced.weights if wanted == PRETRAINED else wanted

    facts = TrunkFacts(kind_of(modality), announced.size, 0, find_weights)
    return resolve(declared, modality, lambda trunk: facts)
