"""Tables of scores from the store, as Markdown, CSV and LaTeX.

The same studies give the same bytes.
"""

from assay.tables.across import Across, across
from assay.tables.answer import Answer, answer, method_to_train
from assay.tables.comparison import Comparison, comparisons, ended
from assay.tables.cost import Times, costs
from assay.tables.reproduced import published_sentences
from assay.tables.sections import Section, sections, tables_of
from assay.tables.sources import control
from assay.tables.sweep import Sweep, sweep_table, sweeps
from assay.tables.table import RENDERERS, Table, headings, render
from assay.tables.verdicts import covered, estimated, sentence, summary

__all__ = [
    "RENDERERS",
    "Across",
    "Answer",
    "Comparison",
    "Section",
    "Sweep",
    "Table",
    "Times",
    "across",
    "answer",
    "comparisons",
    "control",
    "costs",
    "covered",
    "ended",
    "estimated",
    "headings",
    "method_to_train",
    "published_sentences",
    "render",
    "sections",
    "sentence",
    "summary",
    "sweep_table",
    "sweeps",
    "tables_of",
]
