"""The one door for writing a method, and all methods with every part imported.

A file for `assay bench --import mine.py` needs no other import from Assay than these names, and
`assay.pairs` for the mathematics that losses share:

    from assay.methods import Loss, Method, Paper, Real, Space, losses, methods
"""

from assay.bank import Bank
from assay.fitters import Fitter
from assay.heads import HeadShape
from assay.losses import losses, methods
from assay.losses.adopt import adopt
from assay.losses.loss import WEIGHTS_LR, Loss, Method, Seen
from assay.methods.describe import describe, methods_by_year
from assay.methods.parameters import (
    BuiltMethod,
    assemble,
    defaults,
    departures,
    fitter_of,
    read_parameters,
    space_of,
    with_given,
)
from assay.methods.plugins import import_parts, source_of, trunk_source
from assay.miners import Miner, miners
from assay.pairs import Mined, Pairs, References, Triplets
from assay.registry import Paper
from assay.samplers import fixed_pattern, plans, samplers
from assay.space import (
    Choice,
    Integer,
    Real,
    Space,
    above,
    at_least,
    between,
    inside,
    one_of,
    whole_number,
)
from assay.trunks import Trunk, trunks

__all__ = [
    "WEIGHTS_LR",
    "Bank",
    "BuiltMethod",
    "Choice",
    "Fitter",
    "HeadShape",
    "Integer",
    "Loss",
    "Method",
    "Mined",
    "Miner",
    "Pairs",
    "Paper",
    "Real",
    "References",
    "Seen",
    "Space",
    "Triplets",
    "Trunk",
    "above",
    "adopt",
    "assemble",
    "at_least",
    "between",
    "defaults",
    "departures",
    "describe",
    "fitter_of",
    "fixed_pattern",
    "import_parts",
    "inside",
    "losses",
    "methods",
    "methods_by_year",
    "miners",
    "one_of",
    "plans",
    "read_parameters",
    "samplers",
    "source_of",
    "space_of",
    "trunk_source",
    "trunks",
    "whole_number",
    "with_given",
]
