"""A data set looked over before anything is trained on it: counts, sizes, problems, a contact
sheet.
"""

from assay.survey.facts import Survey, survey
from assay.survey.sheet import check_sheet, write_sheet

__all__ = ["Survey", "check_sheet", "survey", "write_sheet"]
