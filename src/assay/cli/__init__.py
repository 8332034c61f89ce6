"""The command `assay`."""

from assay.cli.app import main

__all__ = ["main"]
