"""The registry that the modules of this folder fill."""

from assay.method import Loss
from assay.registry import Registry

losses = Registry[type[Loss]]("loss")
