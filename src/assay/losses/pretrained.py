"""The baseline: the trunk as it is before any training, reduced by PCA. It has no loss and nothing to search."""

from assay.method import Method, methods
from assay.space import Space

methods.add(Method("pretrained", None, space=Space(), about="the untrained trunk with PCA, the baseline"))
