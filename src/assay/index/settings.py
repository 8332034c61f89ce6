"""Back ends by name, with settings that were given in words or stored in an index."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import get_type_hints

from assay.errors import BadInput
from assay.index.backends import Backend, backends
from assay.index.manifest import DamagedIndex, Manifest
from assay.protocols import Similarity
from assay.space import Value, read_number, read_whole


def make_backend(name: str, settings: Mapping[str, Value]) -> Backend:
    """Return a back end with its settings; raise `BadInput` for a setting that it does not have."""
    kind = backends[name]
    known = [one.name for one in fields(kind) if one.init]  # type: ignore[arg-type]
    for wrong in sorted(set(settings) - set(known)):
        has = ", ".join(known) or "none"
        raise BadInput(f"the back end {name} has no setting {wrong!r} (it has {has})")
    try:
        return kind(**settings)
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"the back end {name}: {error}") from None


def parse_settings(name: str, given: Sequence[str]) -> dict[str, Value]:
    """Return settings of a back end from `name=value`, typed as its fields are.

    >>> parse_settings("hnsw", ["links=24"])
    {'links': 24}
    """
    kinds = get_type_hints(backends[name])
    found: dict[str, Value] = {}
    for text in given:
        setting, sign, value = text.partition("=")
        if not sign or not setting:
            raise BadInput(f"--param {text!r} is not a setting; write it as NAME=VALUE")
        if setting in found:
            raise BadInput(f"--param {setting} is given twice; leave out one of the two")
        read = {int: read_whole, float: read_number}.get(kinds.get(setting, str), str)
        try:
            found[setting] = read(value)
        except ValueError as error:
            raise BadInput(f"--param {setting}: {error}") from None
    make_backend(name, found)
    return found


def settings_of(backend: Backend) -> dict[str, Value]:
    """Return the settings of a back end by name."""
    declared = [one.name for one in fields(backend) if one.init]  # type: ignore[arg-type]
    return {name: getattr(backend, name) for name in declared}


def backends_for(similarity: Similarity) -> list[str]:
    """Return the names of the back ends that search by a similarity."""
    return [name for name in backends if similarity in backends[name].similarities]


def settled_backend(manifest: Manifest) -> Backend:
    """Return the back end of an index with its settings."""
    try:
        return backends[manifest.backend](**manifest.settings)
    except TypeError as error:
        raise DamagedIndex(f"{manifest.backend} has no such settings ({error})") from None
