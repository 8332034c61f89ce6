"""The share of the chance of a false verdict that each look at a growing study may spend."""

FIRST_LOOK = 0.04
"""Chance of a false "better" that the first look may spend."""
LATER_LOOKS = 0.01
"""Chance of a false verdict that all later looks may spend together."""


def alpha_of_look(look: int) -> float:
    """Return the chance of a false "better" that a look may spend: 0.04, then 0.01 / 2^(k-1).

    All looks together have 0.05.

    >>> [alpha_of_look(look) for look in (1, 2, 3)]
    [0.04, 0.005, 0.0025]
    """
    if look < 1:
        raise ValueError(f"looks are counted from 1, got {look}")
    return FIRST_LOOK if look == 1 else LATER_LOOKS / 2 ** (look - 1)
