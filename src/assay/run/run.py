"""One run: a protocol, a method, its parameters, a fold and a seed."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from assay.hashing import digest, plain
from assay.protocols import ResolvedProtocol
from assay.run.environment import Environment
from assay.space import Value


@dataclass(frozen=True)
class Run:
    """All that determines a run.

    Args:
        protocol: under which it trains.
        trainval: fingerprint of the half it may see.
        method: name of the method.
        source: hash of the method's source.
        parameters: of the method.
        batch: classes x images per class.
        fold: which fold is validated; None where a deterministic baseline needs no folds.
        seed: of everything random in it.
        environment: where it runs.
    """

    protocol: ResolvedProtocol
    trainval: str
    method: str
    source: str
    parameters: dict[str, Value]
    batch: tuple[int, int]
    fold: int | None
    seed: int
    environment: Environment

    @cached_property
    def config(self) -> dict[str, Any]:
        """The same as plain data, the protocol by its training fields only."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(
            plain({**own, "protocol": {**self.protocol.training, "folds": self.protocol.folds}})
        )

    @cached_property
    def key(self) -> str:
        """Content address: equal runs have equal keys."""
        return digest(self.config)
