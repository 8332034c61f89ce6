"""The files of an export as types.

OUT/
  model.onnx            pixels or vectors in, embeddings out
  preprocessing.json    how an image becomes these pixels
  example.py            the same as a program, without Assay
  README.md             the model card
  export.json           where it comes from, how it was checked, the hashes of the files
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from assay.errors import BadInput
from assay.hashing import pretty
from assay.index.manifest import FileSum
from assay.protocols import FirstStep, Resize, SampleKind, Similarity
from assay.records.codec import Record, read_document

EXPORT_FORMAT = 1
"""Number of the format of an export. Another number is refused."""

GRAPH, PREPROCESSING, EXAMPLE = "model.onnx", "preprocessing.json", "example.py"
README, EXPORT = "README.md", "export.json"

FOLDER = "onnx"
"""Name of the folder of an export inside the folder of an index's model."""

EXPORT_AGAIN = "; export the model again: assay export MODEL --to onnx --force"
"""End of a message about an export that cannot be used."""

Quantisation = Literal["int8"]
"""How weights are stored, where they are not float32."""


@dataclass(frozen=True)
class _Document(Record):
    """A record that is a file of an export."""

    kind: ClassVar[str]
    file: ClassVar[str]

    def content(self) -> str:
        """Return the text of the file."""
        return pretty({"kind": self.kind, "format": EXPORT_FORMAT, **self.to_json()})

    @classmethod
    def read_from(cls, folder: Path) -> Self:
        """Read the file of an export; raise `BadInput` where it is none, or of another format."""
        path = folder / cls.file
        document = read_document(path, EXPORT_AGAIN)
        if not isinstance(document, Mapping) or document.get("kind") != cls.kind:
            raise BadInput(f"{path} is not the {cls.file} of an export of Assay{EXPORT_AGAIN}")
        if document.get("format") != EXPORT_FORMAT:
            raise BadInput(
                f"{path} has format {document.get('format')}; this version of Assay reads format"
                f" {EXPORT_FORMAT}{EXPORT_AGAIN}"
            )
        own: dict[str, Any] = {
            name: value for name, value in document.items() if name not in ("kind", "format")
        }
        return cls.from_json(own, str(path))


@dataclass(frozen=True)
class Preprocessing(_Document):
    """What the graph takes and gives, and how an image becomes what it takes.

    Args:
        takes: images or vectors.
        inputs: channels of an image (3: RGB, 1: grey), or width of a vector.
        resize: how an image is scaled: `square` (its central square), `short` (its short side) or
            `stretch` (both sides).
        side: the side that it is scaled to; 0 for vectors.
        crop: side of the centre that is cut out then; 0 for vectors.
        input_name: name of the graph's input.
        input_type: type of its numbers.
        input_shape: its shape.
        output_name: name of the graph's output.
        output_type: type of its numbers.
        dim: numbers of an embedding.
        similarity: how embeddings are compared.
        unit_length: whether embeddings are of unit length.
        steps: all of it in words, in order.
    """

    kind: ClassVar[str] = "assay-preprocessing"
    file: ClassVar[str] = PREPROCESSING

    takes: SampleKind
    inputs: int
    resize: Resize
    side: int
    crop: int
    input_name: str
    input_type: str
    input_shape: str
    output_name: str
    output_type: str
    dim: int
    similarity: Similarity
    unit_length: bool
    steps: tuple[str, ...]

    @property
    def first_step(self) -> FirstStep:
        """How an image is scaled before its centre is cut out."""
        return FirstStep(self.resize, self.side)


@dataclass(frozen=True)
class Agreement(Record):
    """How near the embeddings of a graph are to those of torch.

    Args:
        difference: largest difference of two numbers; where embeddings are not of unit length, as
            a share of their mean length.
        least_cosine: least cosine of two embeddings of one sample.
        mean_cosine: mean cosine of two embeddings of one sample.
        same_nearest: share of the samples whose nearest other sample is the same.
        speed: samples in a second, one at a time by one thread, over those of torch.
    """

    difference: float
    least_cosine: float
    mean_cosine: float
    same_nearest: float
    speed: float


@dataclass(frozen=True)
class Export(_Document):
    """Where an export comes from, and how it was checked.

    Args:
        name: how the model was given: a model folder, an index, or the name of a trunk.
        print: SHA-256 of the model's weights and architecture.
        trunk: name of the trunk.
        opset: version of ONNX's operators.
        samples: how many samples it was checked on.
        checked_on: what they were, in words.
        batches: how many samples were computed at a time.
        float32: what was measured of the graph with weights of float32.
        float32_bytes: size of that graph.
        quantised: how weights are stored; None: as float32.
        int8: what was measured of the graph with weights of 8 bits; None where there is none.
        versions: of the packages that wrote and checked it.
        files: the files, by name.
    """

    kind: ClassVar[str] = "assay-onnx"
    file: ClassVar[str] = EXPORT

    name: str
    print: str
    trunk: str
    opset: int
    samples: int
    checked_on: str
    batches: tuple[int, ...]
    float32: Agreement
    float32_bytes: int
    quantised: Quantisation | None
    int8: Agreement | None
    versions: Mapping[str, str]
    files: Mapping[str, FileSum]
