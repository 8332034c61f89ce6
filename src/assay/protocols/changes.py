"""The settings in which a customised protocol differs from the published one that it comes from."""

import dataclasses
from collections.abc import Iterator

from assay.protocols.protocol import Protocol, SettingValue, as_text
from assay.protocols.settings import FIXED


def settings_changed(published: Protocol, declared: Protocol) -> tuple[str, ...]:
    """Return the settings that were changed in a published protocol, as `--set` takes them.

    >>> from assay.protocols import customise, protocols
    >>> declared = customise(protocols["quick"], ["optimiser.lr=0.1", "dim=16"])
    >>> settings_changed(protocols["quick"], declared)
    ('dim=16', 'optimiser.lr=0.1')
    """
    before, after = settings_by_path(published), settings_by_path(declared)
    return tuple(as_text(path, value) for path, value in after.items() if value != before[path])


def settings_by_path(protocol: Protocol) -> dict[str, SettingValue]:
    """Return the value of every field that can be set, by its path.

    >>> settings_by_path(Protocol("p.v1"))["optimiser.momentum"]
    0.9
    """
    return dict(_settings(protocol))


def _settings(protocol: Protocol) -> Iterator[tuple[str, SettingValue]]:
    for field in dataclasses.fields(Protocol):
        value = getattr(protocol, field.name)
        if field.name in FIXED:
            continue
        if dataclasses.is_dataclass(value):
            for name, own in vars(value).items():
                yield f"{field.name}.{name}", own
        else:
            yield field.name, value
