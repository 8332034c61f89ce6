"""Old names of modules. Importing a module by its old name fails with its new name."""

import sys
from importlib.machinery import ModuleSpec
from typing import Any

MOVED = {
    "answers": "assay.run",
    "bridge": "assay.methods (adopt)",
    "canonical": "assay.hashing",
    "catalogue": "assay.methods (describe, methods_by_year)",
    "domain": "assay.space",
    "embed": "assay.embedding; assay.embed(model, images) and assay.load(model) are functions",
    "ledger": "assay.records.ledger",
    "memory": "assay.devices",
    "method": "assay.methods",
    "protocol": "assay.protocols",
    "rows": "assay.train.stack_arithmetic",
    "seeds": "assay.records.keys",
    "stack": "assay.train.stack",
    "store": "assay.records.store",
    "survey": "assay.data.survey; assay.survey(data) is a function",
}
"""New home of each old module of the package, for people."""


class OldNames:
    """A finder of modules that finds none, and raises with the new name of an old module."""

    @staticmethod
    def find_spec(name: str, *others: Any) -> ModuleSpec | None:
        """Raise `ModuleNotFoundError` for an old name; it is asked after all other finders."""
        package, _dot, module = name.partition(".")
        if package == "assay" and module in MOVED:
            # without name=, by which `from assay import old` would hide this message
            raise ModuleNotFoundError(f"{name} was moved to {MOVED[module]}")
        return None


def point_to_new_names() -> None:
    """Make imports of old names fail with the new name."""
    if OldNames not in sys.meta_path:
        sys.meta_path.append(OldNames)
