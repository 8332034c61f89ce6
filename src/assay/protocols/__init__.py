"""Protocols by name: `protocols["reality-check/cub.v1"]`; a name without a version is the newest.

`Protocol` is what a bench takes, with settings left open as `auto`. `resolve` makes a
`ResolvedProtocol` of it, which is what runs take.
"""

import difflib
from collections.abc import Sequence

from assay.protocols import reality_check, revisiting, unbiased
from assay.protocols.batch import Batch, BatchKind
from assay.protocols.changes import settings_changed
from assay.protocols.protocol import (
    FEWEST_CLASSES,
    NOT_ASKED,
    PROSE,
    SAME_FOR_ALL,
    Augment,
    Frozen,
    ImageForm,
    Modality,
    Optimiser,
    OptimiserKind,
    Pooling,
    Protocol,
    Resize,
    SampleKind,
    Schedule,
    Search,
    SettingValue,
    Similarity,
    Supervision,
    as_text,
)
from assay.protocols.quick import QUICK, QUICK_V2
from assay.protocols.resolve import (
    RANDOM_WEIGHTS,
    FirstStep,
    ResolvedAugment,
    ResolvedBatch,
    ResolvedOptimiser,
    ResolvedProtocol,
    TrunkFacts,
    kind_of,
    resolve,
)
from assay.protocols.settings import CUSTOM, customise, published_name, with_settings
from assay.registry import Registry, foreign_letter

__all__ = [
    "CUSTOM",
    "FEWEST_CLASSES",
    "NOT_ASKED",
    "PROSE",
    "RANDOM_WEIGHTS",
    "SAME_FOR_ALL",
    "Augment",
    "Batch",
    "BatchKind",
    "FirstStep",
    "Frozen",
    "ImageForm",
    "Modality",
    "Optimiser",
    "OptimiserKind",
    "Pooling",
    "Protocol",
    "Resize",
    "ResolvedAugment",
    "ResolvedBatch",
    "ResolvedOptimiser",
    "ResolvedProtocol",
    "SampleKind",
    "Schedule",
    "Search",
    "SettingValue",
    "Similarity",
    "Supervision",
    "TrunkFacts",
    "as_text",
    "customise",
    "kind_of",
    "protocols",
    "published_name",
    "resolve",
    "with_settings",
]


class Protocols(Registry[Protocol]):
    """Published protocols; none is ever edited, a change is a new version."""

    def __getitem__(self, name: str) -> Protocol:
        versions = [full for full in self if full.rpartition(".v")[0] == name]
        newest = max(versions, key=lambda full: int(full.rpartition(".v")[2]), default=name)
        return super().__getitem__(newest)

    def misnamed(self, name: str, fingerprint: str) -> str | None:
        """Return why a protocol with this fingerprint may not have this name; None where it may.

        The name of a published protocol, and that of a customised one, stand for their settings. No
        other name looks like one of these.
        """
        if foreign := foreign_letter(name):
            return f"it is called {name!r}: {foreign}"
        if not name.isprintable():
            return f"it is called {name!r}, which cannot be printed"
        published, custom, own = name.partition(CUSTOM)
        if published not in self and self._stem(published) in map(self._stem, self):
            return f"it is called {name}, and no such version of it is published here"
        if not custom and name in self and self[name].fingerprint != fingerprint:
            return f"it is called {name}, which is published with other settings"
        if custom and published in self and own != fingerprint[:8]:
            return f"it is called {name}, and its settings have the fingerprint {fingerprint[:8]}"
        return None

    @staticmethod
    def _stem(name: str) -> str:
        """Return a name without its version, in small letters."""
        plain = name.strip().casefold()
        return plain.rpartition(".v")[0] or plain

    def changes(self, declared: Protocol) -> tuple[str, ...]:
        """Return what was changed in the published protocol that one comes from, as `--set` takes
        it; empty where no settings lead from the one to the other.
        """
        published = published_name(declared.name)
        changed = settings_changed(self[published], declared) if published in self else ()
        again = self.declared(declared.name, changed)
        return changed if again and again.fingerprint == declared.fingerprint else ()

    def declared(self, name: str, settings: Sequence[str]) -> Protocol | None:
        """Return the protocol that has a name, with what was changed in the published one.

        None where that is not known: the name is no published one, or its changes are missing.
        """
        published = published_name(name)
        if published not in self or (name != published and not settings):
            return None
        return customise(self[published], settings)

    def miss(self, name: str) -> str:
        """Return the message for a name that no protocol has.

        It suggests the protocols whose names contain it, else those with the most similar names.
        """
        word = name.casefold().strip("/")
        near = [full for full in self if word and word in full] or difflib.get_close_matches(
            word, self, n=3
        )
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"no protocol is called {name!r}{hint} (all: {', '.join(self)})"


protocols = Protocols("protocol")
for _protocol in (
    QUICK,
    QUICK_V2,
    reality_check.CUB,
    reality_check.CARS,
    reality_check.SOP,
    reality_check.ANY,
    reality_check.CUB_V2,
    reality_check.CARS_V2,
    reality_check.SOP_V2,
    reality_check.ANY_V2,
    reality_check.CUB_BATCH256,
    unbiased.INCEPTION_BN,
    unbiased.RESNET50,
    unbiased.INCEPTION_BN_V2,
    unbiased.RESNET50_V2,
    revisiting.CUB,
    revisiting.CARS,
    revisiting.SOP,
    revisiting.ANY,
):
    protocols.set(_protocol.name, _protocol)
