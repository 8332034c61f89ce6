"""Seeds derived from what they are for, so that no two uses share one and every run can be
repeated.
"""

from assay.hashing import derive


def run_seed(
    seed: int,
    trainval: str,
    stage: str,
    search: int,
    number: int,
    fold: int | None,
    twin: bool = False,
) -> int:
    """Return the seed of one run of a study.

    | ingredient | effect |
    | --- | --- |
    | protocol's seed, fingerprint of trainval | another protocol seed or other data: other runs |
    | stage, number, fold | trial 3 and reproduction 3 differ, and so do folds |
    | search | two searches share no run, even where they choose the same parameters |
    | twin | the control has seeds of its own |

    The method is no ingredient: all methods have the same seeds.
    """
    return derive(seed, trainval, stage, number, fold, *_apart(search, twin))


def question_seed(seed: int, trainval: str, method: str, search: int, twin: bool = False) -> int:
    """Return the seed of the trials that one search of a method asks for."""
    return derive(seed, trainval, "search", method, *_apart(search, twin))


def fold_seed(seed: int, trainval: str, twin: bool = False) -> int:
    """Return the seed of the order in which searches take the folds that their trials are validated
    on.
    """
    return derive(seed, trainval, "trial folds", *_apart(0, twin))


def _apart(search: int, twin: bool) -> tuple[str | int, ...]:
    """Return what tells a search from the first one, and a twin from its method."""
    return (*(("search", search) if search else ()), *(("twin",) if twin else ()))
