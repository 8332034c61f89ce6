"""A trunk by its name: one of this folder's or of the user's, else any of timm's."""

import difflib

from assay.protocols import Pooling
from assay.registry import UnknownName
from assay.trunks import timm
from assay.trunks.trunk import Trunk, trunks


def find(name: str) -> type[Trunk]:
    """The trunk called `name`; a name that is not registered is looked for in timm, with or without
    a pretrained tag.
    """
    if name in trunks:
        return trunks[name]
    if timm.has(name):
        return timm.trunk_of(name)
    near = difflib.get_close_matches(name, dict.fromkeys([*trunks, *timm.names()]), n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise UnknownName(
        f"no trunk is called {name!r}{hint} (all: {', '.join(sorted(trunks))}, and every name of"
        " timm's)"
    )


def build(name: str, inputs: int, pooling: Pooling = "avg") -> Trunk:
    """A new trunk for images of `inputs` channels, or vectors of `inputs` numbers, from torch's
    current random state.
    """
    kind = find(name)
    return (
        kind(inputs) if pooling == "avg" else kind(inputs, pooling)
    )  # a user's own may know of no pooling
