"""Score tables from the store, as Markdown, CSV and LaTeX: the same studies give the same bytes."""

from assay.tables.comparison import Comparison, comparisons
from assay.tables.render import RENDERERS, render
from assay.tables.table import Table, ended, tables_of
from assay.tables.verdicts import sentence, summary

__all__ = ["RENDERERS", "Comparison", "Table", "comparisons", "ended", "render", "sentence", "summary", "tables_of"]
