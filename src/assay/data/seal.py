"""The seal on the test half: the one module that makes a test half, and its reasons to.

`splits.of` returns trainval and a `SealedTest`. Everything that trains, tunes, stops or selects
gets trainval: a training task knows the folder of its pack, and `read_pack` refuses the pack of a
test half. The test half, samples with labels, leaves the seal in these ways and in no other:

| call                         | reason                             | gives   | recorded in     |
| ---------------------------- | ---------------------------------- | ------- | --------------- |
| `open(receipt)`              | a study selected and reproduced;   | samples | ledger: seal,   |
|                              | `verify --data`, `--rerun` embed;  |         | test, look, peek|
|                              | `train --final` trains on it       |         | model card      |
| `read_test(folder, ...)`     | the same, for a task of the study: | samples | ledger          |
|                              | the half on disk                   |         |                 |
| `hand_out(RECORDED_LOOK)`    | a model of no study, but trained   | samples | `looks.jsonl` of|
|                              | on this trainval; a study's model  |         | the model folder|
|                              | joined to its trunk, at the images |         | or ledger       |
| `hand_out(FOREIGN_LOOK)`     | a model or a file of embeddings of | samples | ledger, folder  |
|                              | no study on these data             |         | or index, see   |
|                              |                                    |         | below           |
| `hand_out(BASELINE)`         | a trunk as it is, trained on       | samples | index of looks  |
|                              | nothing of these data              |         |                 |
| `hand_out(EVERY_VECTOR)`,    | a file with a vector of every      | samples | index of looks  |
| `everything(dataset)`        | sample                             |         |                 |
| `read_vectors(folder, half)` | the caller has the half already    | vectors | see above       |
| `fingerprint`                | which test half it is              | a hash  | `data show`     |
| `commitment(salt)`           | the announcement of a bench        | a hash  | `benches/`      |
| `count_in(contents)`         | whether a model was trained on it  | a count | the refusal     |
| `summary`, `references`      | how large it is                    | counts  | `data show`     |
| `pack`, `packed_bytes`       | to fill the cache beforehand       | a size  | nowhere         |
| `flaws`, `left_out`          | what is wrong with it              | words   | ledger: seal    |

Whatever is searched or embedded, test half or not, is compared by content with the test halves that
studies are known to have opened: any sample in common is a look at that half, and is recorded where
`assay.evaluation.look` says.

`assay data show` and `assay data splits` read a data set as a whole, for people and before anything
is trained: `survey`, `contact_sheet` and `splits.listing` print counts, names, problems and
pictures, and nothing that trains or selects calls them.

The seal guards against mistakes; it is not a sandbox. A method is Python code, and code that wants
to read the test images from the disk can. What holds is tested: changed test labels or test images
change no trial, no checkpoint and no selected parameter (tests/test_seal.py), and no other module
makes a test half or reads its rows (tests/test_architecture.py).
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from assay.data.copies import Flaws, find_flaws
from assay.data.dataset import Dataset, Half, Labels, Vectors, references_of
from assay.data.packs import View, expected_bytes, place_pack, read_any
from assay.errors import BadInput
from assay.files import read_json
from assay.progress import Progress, silent
from assay.protocols import FirstStep, ImageForm
from assay.records.keys import commitment_to
from assay.records.ledger import Receipt, SealError


class Reason(StrEnum):
    """A reason to look at the test half without the receipt of a study."""

    RECORDED_LOOK = "a look by a model trained on this trainval, recorded in its folder or study"
    FOREIGN_LOOK = "a look by a model or a file of embeddings of no study on these data"
    BASELINE = "a trunk as it is, trained on nothing of these data"
    EVERY_VECTOR = "a file with a vector of every sample"


class OpenedTest(Half):
    """The test half, handed out for one of the reasons above."""

    is_test = True


@dataclass(frozen=True)
class PartSummary:
    """How large a fold or the test half is.

    Args:
        part: `fold 0`, `fold 1`, ..., `test`.
        classes: number of classes.
        samples: number of samples.
        first: name of its first class.
        last: name of its last class.
    """

    part: str
    classes: int
    samples: int
    first: str
    last: str


class SealedTest:
    """The test half of a data set, closed: see the table of this module.

    Args:
        dataset: the data set.
        trainval: its other half; receipts have to be of studies on it.
    """

    def __init__(self, dataset: Dataset, trainval: Half) -> None:
        self.__half = OpenedTest(
            dataset, np.flatnonzero(dataset.labels >= dataset.first_test_class)
        )
        self.__trainval = trainval
        _check_something_to_find(self.__half, f"{dataset.name}: the test half")

    def open(self, receipt: Receipt) -> Half:
        """Return the test half, once the study behind the receipt has selected and reproduced.

        `SealError` where the study is not complete, or is not on this data set's trainval.
        """
        receipt.check(self.__trainval.fingerprint)
        return self.__half

    def hand_out(self, reason: Reason) -> Half:
        """Return the test half for a reason other than a study's receipt."""
        if not isinstance(reason, Reason):
            raise SealError(f"{reason!r} is no reason to open the test half: give one of `Reason`")
        return self.__half

    def count_in(self, contents: frozenset[str]) -> int:
        """Return how many samples of the test half have one of these hashes of their content."""
        return sum(hash_ in contents for hash_ in self.__half.contents())

    @property
    def fingerprint(self) -> str:
        """Hash of the test half."""
        return self.__half.fingerprint

    def commitment(self, salt: str) -> str:
        """Return the salted hash of the test half, which says nothing without the salt."""
        return commitment_to(salt, self.fingerprint)

    @property
    def references(self) -> int:
        """How many samples each query of the test half has to choose from at least."""
        half = self.__half
        return references_of(len(half.y), half.query, half.gallery)

    @property
    def summary(self) -> PartSummary:
        """Size of the test half, and its first and last class."""
        return summarise("test", self.__half.y, self.__half.class_names)

    @cached_property
    def flaws(self) -> Flaws:
        """Problems of the data, found by hashes and small pictures of the samples of both halves.

        For people before training, and for the record once the seal is open. What concerns the
        test half goes into no announcement, and nothing that trains or selects asks for it.
        """
        return find_flaws(self.__half._dataset)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Notes on files left out on loading that may depend on the test half."""
        dataset = self.__half._dataset
        return tuple(note for note in dataset.notes if note not in dataset.left_out)

    def pack(
        self, step: FirstStep, form: ImageForm = "pixels", progress: Progress = silent
    ) -> None:
        """Pack the test half into the cache, so that the study which opens it need not.

        Nothing comes back, neither samples nor labels nor the folder; reading the packed half takes
        a receipt.
        """
        place_pack(self.__half, step, form, progress)

    def packed_bytes(self, step: FirstStep, form: ImageForm = "pixels") -> int:
        """Return how many bytes the packed test half will have."""
        return expected_bytes(self.__half, step, form)


def read_test(folder: Path, receipt: Receipt, trainval: str) -> View:
    """Read a packed test half, against the receipt of the study on `trainval` that asks for it."""
    receipt.check(trainval)
    return read_any(folder)


def read_vectors(folder: Path, half: Half) -> Vectors:
    """Read the vectors of the samples of a half, which the caller has.

    `BadInput` where the folder is not a pack of this half, as far as `place_vectors` checks.
    """
    view = read_any(folder)
    if read_json(folder / "pack.json")["fingerprint"] != half.fingerprint:
        raise BadInput(f"{folder} is the pack of another half; remove it, and it is made again")
    vectors: Vectors = np.array(view.x)
    return vectors


def everything(dataset: Dataset) -> Half:
    """Return all samples as one half, for a file with a vector of each."""
    return OpenedTest(dataset, np.arange(len(dataset)))


def summarise(part: str, y: Labels, class_names: tuple[str, ...]) -> PartSummary:
    """Count the classes and samples of labels `y` into `class_names`."""
    present = np.unique(y)
    first, last = class_names[present[0]], class_names[present[-1]]
    return PartSummary(part, len(present), len(y), first, last)


def _check_something_to_find(test: Half, where: str) -> None:
    """Raise `BadInput` unless some query has a gallery sample of its class other than itself."""
    everything = np.ones(len(test.y), dtype=np.bool_)
    query = everything if test.query is None else test.query
    gallery = everything if test.gallery is None else test.gallery
    relevant = np.bincount(test.y[gallery], minlength=int(test.y.max()) + 1)[test.y] - gallery
    if (relevant[query] > 0).any():
        return
    if test.query is None and test.gallery is None:
        raise BadInput(
            f"{where} has no class with two samples, so there is nothing to find; add samples to"
            " its classes"
        )
    raise BadInput(
        f"{where} has {int(query.sum())} queries and {int(gallery.sum())} gallery samples, and"
        " no query has another sample of its class in the gallery, so there is nothing to"
        " find; mark samples of the same classes as both"
    )
