"""Runs, ledgers and studies of a store, as typed values. Imports neither torch nor optuna."""

from assay.records.study import StudyRecord, study_records

__all__ = ["StudyRecord", "study_records"]
