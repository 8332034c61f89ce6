"""The data of a study, as the study announces them."""

from dataclasses import dataclass
from typing import Literal

from assay.protocols import Modality
from assay.records.codec import Record


@dataclass(frozen=True)
class AnnouncedRelations(Record):
    """Pairs or triplets of trainval that are given to train on.

    Args:
        kind: pairs or triplets.
        count: how many there are.
        in_training: how many each fold trains on. Of the others some sample is validated on.
    """

    kind: Literal["pairs", "triplets"]
    count: int
    in_training: tuple[int, ...]

    @property
    def in_words(self) -> str:
        """How many of them a fold trains on.

        >>> AnnouncedRelations("triplets", 240, (200, 180)).in_words
        'a fold trains on 180 to 200 of 240 triplets; the others name samples that it validates on'
        """
        least, most = min(self.in_training), max(self.in_training)
        trained = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        said = f"a fold trains on {trained} of {self.count:,} {self.kind}"
        if least == self.count:
            return said
        return f"{said}; the others name samples that it validates on"


@dataclass(frozen=True)
class AnnouncedData(Record):
    """The data of a study; nothing here depends on the content of the test half.

    Args:
        name: name of the data set.
        modality: drawing, photo or features.
        trainval: fingerprint of the half that the study works on.
        classes: number of its classes.
        samples: number of its samples.
        pretrained_on: data that made the features, where the samples are features.
        left_out: samples that were left out of the data set, in words.
        problems: problems of trainval, in words.
        relations: pairs or triplets that it lists.
    """

    name: str
    modality: Modality
    trainval: str
    classes: int
    samples: int
    pretrained_on: str | None = None
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    relations: AnnouncedRelations | None = None
