"""The settings in which a customised protocol differs from the published one that it comes from."""

import dataclasses
from collections.abc import Iterator

from assay.errors import BadInput
from assay.protocols.protocol import Frozen, Modality, Protocol, SettingValue, as_text
from assay.protocols.resolve import (
    RANDOM_WEIGHTS,
    ResolvedProtocol,
    TrunkFacts,
    kind_of,
    resolve,
)
from assay.protocols.settings import FIXED, with_settings


def settings_changed(
    published: Protocol, fingerprint: str, resolved: ResolvedProtocol, modality: Modality
) -> list[str]:
    """Return the settings that were changed, as `--set` takes them; weights are not among them.

    What `auto` stands for on these data is no change. The size of images may be that of the trunk:
    then the fingerprint of the declared protocol decides.

    >>> from assay.protocols import customise, protocols
    >>> published = protocols["quick"]
    >>> declared = customise(published, ["dim=16", "optimiser.lr=0.1"])
    >>> facts = TrunkFacts("images", None, 1, lambda wanted: "none")
    >>> resolved = resolve(declared, "photo", lambda trunk: facts)
    >>> settings_changed(published, declared.fingerprint, resolved, "photo")
    ['dim=16', 'optimiser.lr=0.1']
    """
    facts = TrunkFacts(kind_of(modality), None, 1, lambda wanted: resolved.weights)
    same_kind = dataclasses.replace(published, frozen=resolved.frozen)  # which `auto` goes by
    try:
        usual = resolve(same_kind, modality, lambda trunk: facts)
        before = {**dict(_settings(usual)), "frozen": _usually_frozen(published, resolved)}
    except BadInput:  # a published protocol that does not go with these data as it is
        before = dict(_settings(published))
    changed = {path: value for path, value in _settings(resolved) if before[path] != value}
    changed.pop("weights", None)
    others = {path: value for path, value in changed.items() if path != "size"}
    unseen = {"weights": resolved.weights, "frozen": resolved.frozen}  # perhaps set to the usual
    candidates = [
        {**others, **{path: unseen[path] for path in chosen}}
        for chosen in ((), ("weights",), ("frozen",), ("weights", "frozen"))
    ]
    if published.size is None and any(
        with_settings(published, one).fingerprint == fingerprint for one in candidates
    ):
        changed = others
    return [as_text(path, value) for path, value in changed.items()]


def _usually_frozen(published: Protocol, resolved: ResolvedProtocol) -> Frozen:
    """Return what the published protocol keeps frozen of a trunk with these weights."""
    return published.frozen or ("nothing" if resolved.weights == RANDOM_WEIGHTS else "trunk")


def _settings(protocol: Protocol | ResolvedProtocol) -> Iterator[tuple[str, SettingValue]]:
    """Yield path and value of every field that can be set."""
    for field in dataclasses.fields(Protocol):
        value = getattr(protocol, field.name)
        if field.name in FIXED:
            continue
        if dataclasses.is_dataclass(value):
            for name, own in vars(value).items():
                yield f"{field.name}.{name}", own
        else:
            yield field.name, value
