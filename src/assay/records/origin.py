"""Where the parameters of a study come from, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from assay.records.codec import Record, Tagged
from assay.space import Value


@dataclass(frozen=True)
class Searched(Tagged):
    """Parameters that the study searches itself, or the defaults where nothing is searched."""

    kind: ClassVar[str] = "searched"

    def __str__(self) -> str:
        return "searched"


@dataclass(frozen=True)
class Given(Tagged):
    """Parameters that a person has given."""

    kind: ClassVar[str] = "given"

    def __str__(self) -> str:
        return "given"


@dataclass(frozen=True)
class Published(Tagged):
    """Parameters that a paper reports for a data set.

    Args:
        paper: authors and year.
        data: name of the data set.
    """

    kind: ClassVar[str] = "published"
    paper: str
    data: str

    def __str__(self) -> str:
        return f"published by {self.paper} for {self.data}"


@dataclass(frozen=True)
class SelectedBy(Tagged):
    """Parameters that another study selected.

    Args:
        study: key of that study.
    """

    kind: ClassVar[str] = "selected by"
    study: str

    def __str__(self) -> str:
        return f"selected by study {self.study}"


ParameterOrigin = Searched | Given | Published | SelectedBy
"""Where parameters come from. `str` of an origin says it in words, for people only."""


@dataclass(frozen=True)
class GivenParameters(Record):
    """Parameters that were chosen elsewhere, so that nothing is searched."""

    parameters: Mapping[str, Value]
    origin: Given | Published | SelectedBy


@dataclass(frozen=True)
class SweepPoint(Record):
    """One value of a sweep.

    Args:
        field: field of the protocol that the sweep varies.
        value: value of the field in this study, as it was written.
        values: all values of the sweep.
        base: key of the study whose selected parameters are run.
        protocol: name of the protocol of that study.
    """

    field: str
    value: str
    values: tuple[str, ...]
    base: str
    protocol: str
