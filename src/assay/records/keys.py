"""Keys and seeds: how each is made, and from what.

Equal ingredients give equal keys and seeds on every machine. A key is the SHA-256 of the canonical
JSON of its ingredients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from assay.hashing import derive, digest
from assay.records.codec import encode
from assay.records.origin import GivenParameters, SweepPoint
from assay.records.source import source_hash


@dataclass(frozen=True)
class Environment:
    """Machine and software, as far as the bytes of a run may depend on them.

    Args:
        device: cpu or cuda.
        threads: torch threads of a run.
        torch: version of torch.
        source: hash of Assay's own source, see `own_source`.
        images: hash of the code and libraries that decode images; empty where there are none.
    """

    device: str
    threads: int
    torch: str
    source: str
    images: str = ""

    @classmethod
    def here(cls, device: str, threads: int, images: str = "") -> "Environment":
        """Return the environment of this process."""
        return cls(device, threads, version("torch"), own_source(), images)


@lru_cache(maxsize=1)
def own_source() -> str:
    """Return the hash of Assay's own code that every run computes with.

    | ingredient | effect |
    | --- | --- |
    | code of `assay.run.training` and of every module that it imports, in turn | another line in
      the training loop, a metric or the base class of losses: other runs |

    Comments and docstrings are no part, nor is code that no run imports (commands, tables,
    studies), nor the single losses, miners, samplers and trunks: a run holds the hash of those that
    it uses (`assay.methods.source_of`). The code that reads images is in `Environment.images`.
    """
    return source_hash(["assay.run.training"])


def search_source() -> str:
    """Return the hash of the code of the search, as `own_source` is that of a run.

    Where it is another one, a search may ask for other trials.
    """
    return source_hash(["assay.study.search"])


def run_key(config: dict[str, Any]) -> str:
    """Return the key of a run: the hash of its `config.json`, which is `Run` (records/run.py).

    `AnnouncedStudy.run` (study/announced.py) is the one place that makes a `Run` for a study.

    | ingredient | effect |
    | --- | --- |
    | format number of the store | another format, other runs |
    | training fields of the resolved protocol, number of folds | all fields of a protocol but
      `NOT_TRAINING`, and without those at their `NEUTRAL` values (protocols/protocol.py). Budgets
      and seeds of a study are no part: studies with other budgets share runs |
    | fingerprint of trainval | other data: other runs; the test half is no part |
    | method, `source`, parameters, batch | all that the method brings; `source` is the hash of
      loss, miner, sampler and trunk, with the versions of their libraries (methods/plugins.py) |
    | fold, seed | the place in the study, see `run_seed` |
    | environment | device, threads, version of torch, hash of Assay's source, decoder of images |
    """
    return digest(config)


def study_key(
    protocol: str,
    trainval: str,
    method: str,
    generation: int,
    given: GivenParameters | None = None,
    point: SweepPoint | None = None,
) -> str:
    """Return the key of a study.

    | ingredient | effect |
    | --- | --- |
    | fingerprint of the protocol, as declared | another setting: another study |
    | fingerprint of trainval | other data: another study; the test half is no part |
    | name of the method (a twin has its own) | one study for each method |
    | generation | `--new-study` begins the next one |
    | given parameters and their origin, point of a sweep | only where parameters are not searched |

    Space and source are no part: they stand in the preregistration, which refuses a change.
    """
    elsewhere = [] if given is None else [encode(given), encode(point)]
    return digest([protocol, trainval, method, generation, *elsewhere])


def bench_key(studies: Sequence[str], reference: str | None) -> str:
    """Return the key of a bench.

    | ingredient | effect |
    | --- | --- |
    | keys of the studies, in order | another method, protocol, data set or generation |
    | reference | other pairs are compared |
    """
    return digest([list(studies), reference])


def commitment_to(salt: str, test: str) -> str:
    """Return the commitment to a test half that a bench announces before the seal is opened.

    | ingredient | effect |
    | --- | --- |
    | salt of the store | without it, nobody can try out which test half it is |
    | fingerprint of the test half | another sample, label or role: another commitment |
    """
    return digest(["test half", salt, test])


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
    """Return the seed of the trials that one search of a method asks for.

    | ingredient | effect |
    | --- | --- |
    | protocol's seed, fingerprint of trainval | another protocol seed or other data |
    | method, search, twin | every search draws its own points |
    """
    return derive(seed, trainval, "search", method, *_apart(search, twin))


def fold_seed(seed: int, trainval: str, twin: bool = False) -> int:
    """Return the seed of the order in which searches take the folds of their trials.

    | ingredient | effect |
    | --- | --- |
    | protocol's seed, fingerprint of trainval, twin | all methods take the folds in one order |
    """
    return derive(seed, trainval, "trial folds", *_apart(0, twin))


def _apart(search: int, twin: bool) -> tuple[str | int, ...]:
    """Return the ingredients of a later search and of a twin; the first search has none."""
    return (*(("search", search) if search else ()), *(("twin",) if twin else ()))
