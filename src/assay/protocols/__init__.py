"""Protocols by name; without a version the newest: `protocols["quick"]`, `protocols["quick.v1"]`."""

from assay.protocol import Protocol
from assay.protocols.quick import QUICK
from assay.registry import Registry

__all__ = ["Protocol", "protocols"]


class Protocols(Registry[Protocol]):
    """Published protocols; none is ever edited, a change is a new version."""

    def __getitem__(self, name: str) -> Protocol:
        versions = [full for full in self if full.rpartition(".v")[0] == name]
        newest = max(versions, key=lambda full: int(full.rpartition(".v")[2]), default=name)
        return super().__getitem__(newest)


protocols = Protocols("protocol")
for _protocol in (QUICK,):
    protocols.set(_protocol.name, _protocol)
