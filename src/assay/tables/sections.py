"""The sections of a report of a store, and the tables of each section."""

from assay.records.reported import Extent
from assay.records.store import Store
from assay.tables.across import Across, across, rank_tables
from assay.tables.comparison import SETTINGS, Comparison, comparisons, ended
from assay.tables.gains import gains
from assay.tables.length import length
from assay.tables.peeking import peeking
from assay.tables.reproduced import (
    beside_other_studies,
    beside_the_papers,
    published_or_measured,
)
from assay.tables.scores import over_folds, scores, training
from assay.tables.searches import parameters, trials
from assay.tables.sources import classes, sources
from assay.tables.sweep import Sweep, sweep_table, sweeps
from assay.tables.table import Table
from assay.tables.verdicts import differences, needed

Section = Comparison | Across | Sweep


def sections(store: Store, extent: Extent | None = None) -> list[Section]:
    """Return comparisons, ranks over data sets and sweeps.

    With an extent, return them as they were when the store had got that far.
    """
    compared = comparisons(store, extent)
    return [*compared, *across(compared), *sweeps(store, extent)]


def tables_of(section: Section) -> list[Table]:
    """Return all tables of a section, in the order of the report."""
    if isinstance(section, Across):
        return rank_tables(section)
    if isinstance(section, Sweep):
        return [sweep_table(section)] if section.records else []
    if not ended(section):  # they would change with every trial, and no check could compute them
        return []
    return [*_tested(section), parameters(section), trials(section)]


def _tested(comparison: Comparison) -> list[Table]:
    """Return the tables that need test scores."""
    if not comparison.records:
        return []
    single = [
        scores(comparison),
        *(differences(comparison, setting) for setting in reversed(SETTINGS)),
        length(comparison),
        sources(comparison),
        *(classes(comparison, setting) for setting in reversed(SETTINGS)),
        *(needed(comparison, setting) for setting in reversed(SETTINGS)),
        published_or_measured(comparison),
        beside_other_studies(comparison),
        beside_the_papers(comparison),
        over_folds(comparison),
        training(comparison),
        *gains(comparison),
        peeking(comparison),
    ]
    return [table for table in single if table is not None]
