"""Looks at test halves: noticed by the content of samples, and recorded before any score is given.

The samples of every evaluation and embedding are compared with the test halves that studies are
known to have opened: those of the store that a model belongs to, that of a model folder wherever it
was taken, and those in the index of looks. One sample in common is a look. It is recorded

- in the ledger of each study of the store that the model's run belongs to,
- by a model folder outside a store in `looks.jsonl` of that folder,
- always in the index of looks, which alone has looks by trunks and files of embeddings.

A study of features knows its test half by the content of features. A model that takes the images
themselves looks at that half wherever it is given the images that the features were made of, known
by the fingerprint of their trainval half.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from assay.data.dataset import Half
from assay.data.seal import SealedTest
from assay.errors import BadInput
from assay.files import append_line, cut_torn_line, lock_in_turn, read_bytes
from assay.hashing import canonical
from assay.records import lines
from assay.records.halves import (
    KnownHalf,
    Prints,
    half_of_model,
    join_halves,
    opened_halves,
)
from assay.records.ledger import Ledger, Receipt, SealError, receipt_of
from assay.records.looks import REMEDY, LookBeside, LookIndex, error_words, share
from assay.records.run import LOOKS_FILE
from assay.records.store import Store
from assay.records.study import StudyRecord, study_records, write_record
from assay.run.finished import FinishedRun, place_of_model

RECORDED_THERE = "a look is recorded there: ask its owner for write access"
END_FIRST = "; run `assay bench` to its end first, or leave out --test"
UNFAIR = "; a model chosen by such looks is not fairly tested any more"
UNCOMPARED = "these images are not compared with test halves that are known by their features"


@dataclass(frozen=True)
class Looker:
    """A model, trunk or file of embeddings that looks at samples.

    Args:
        by: the command and the name of what looks.
        folder: its model folder, if any.
        store: the store that it belongs to, if any.
        run: key of the run in that store.
        check: raises `BadInput` where it is not what the run saved; called before the run's study
            records a look.
        images: fingerprint of the trainval half of images whose features it was trained on, where
            it takes images.
        features: fingerprint of the trainval half of these features.
    """

    by: str
    folder: Path | None = None
    store: Store | None = None
    run: str = ""
    check: Callable[[], object] = lambda: None
    images: str = ""
    features: str = ""

    @classmethod
    def of_folder(cls, by: str, folder: Path, check: Callable[[], object]) -> "Looker":
        """Return the model of a folder, which may lie in a store or anywhere else."""
        place = place_of_model(folder)
        return cls(by, folder) if place is None else cls(by, folder, *place, check=check)


@dataclass(frozen=True)
class LookedAt:
    """Samples that are searched or embedded.

    Args:
        data: name of the data set.
        prints: of the samples.
        trainval: fingerprint of the trainval half of the data set, where that is split.
        test: fingerprint of its test half, where that is asked for.
        tested: number of samples of that test half, where they are known to be among the samples.
    """

    data: str
    prints: Prints = field(repr=False)
    trainval: str = ""
    test: str = ""
    tested: int = 0

    def asks_for_test_of(self, record: StudyRecord) -> bool:
        """Return whether the test half is asked for of data with the trainval half of a study."""
        return bool(self.test) and self.trainval == record.announced.data.trainval

    def is_own_trainval(self, half: KnownHalf) -> bool:
        """Return whether these are samples of the trainval half of the studies with this test half.

        Some of them may be copies of test samples; the study itself searches them.
        """
        return not self.tested and self.trainval in half.trainvals

    def shows_test_of(self, looker: Looker, half: KnownHalf) -> bool:
        """Return whether they have the images of a test half that is known by their features."""
        images = self.tested > 0 and looker.images != "" and self.trainval == looker.images
        return images and looker.features in half.trainvals

    def count(self, looker: Looker, half: KnownHalf) -> int:
        """Return how many samples of a test half are among them."""
        if self.shows_test_of(looker, half):
            return min(self.tested, len(half.prints))
        return 0 if self.is_own_trainval(half) else half.count_in(self.prints)


@dataclass(frozen=True)
class OpenLook:
    """A look that is about to happen; `record` is called before any score is given.

    Args:
        looker: what looks.
        at: the samples.
        studies: studies in whose ledgers the look is recorded, with their test halves.
        beside: the test half of the study that wrote a model folder outside a store, if any.
        known: all known test halves that have some of the samples.
        index: the index of looks of the user.
    """

    looker: Looker
    at: LookedAt
    studies: tuple[tuple[StudyRecord, KnownHalf], ...]
    beside: KnownHalf | None
    known: tuple[KnownHalf, ...]
    index: LookIndex

    def record(
        self,
        metrics: Mapping[str, float],
        similarity: str,
        queries: int = 0,
        skipped: int = 0,
    ) -> list[str]:
        """Record the look, and return sentences that say how much it saw and where it is recorded.

        Raise `BadInput` where it belongs in the index of looks and that cannot be written to.
        """
        places: dict[bytes, list[str]] = defaultdict(list)
        for study, half in self.studies:
            entry = lines.Look(
                run=self.looker.run,
                test=study.seal.test if study.seal else "",
                data=self.at.data,
                samples=self._count(half),
                similarity=similarity,
                metrics=metrics,
                queries=queries,
                skipped=skipped,
            )
            count = self._record_in_ledger(study, entry)
            places[half.identity].append(f"look {count} at test in the study of {study.method}")
        if self._belongs_beside():
            count = self._record_beside(metrics)
            place = f"look {count} at test in {self._file}{UNFAIR}"
            places[self.beside.identity if self.beside else b""].append(place)
        return [*self._enter(places), *self._sentences(places)]

    def _record_in_ledger(self, study: StudyRecord, entry: lines.Look) -> int:
        """Append the look to the ledger of a study; return how many looks that has now."""
        assert self.looker.store is not None, "only runs of a store have studies"
        ledger = Ledger(self.looker.store.study(study.key) / "ledger.jsonl")
        ledger.look(entry)
        return len(write_record(ledger.path.parent, ledger.lines).looks)

    @property
    def _file(self) -> Path:
        assert self.looker.folder is not None
        return self.looker.folder / LOOKS_FILE

    def _belongs_beside(self) -> bool:
        """Return whether this is a look by a model folder outside a store that it has to record."""
        if self.looker.folder is None or self.looker.store is not None:
            return False
        known = [half.identity for half in self.known]
        return bool(self.at.test) or (self.beside is not None and self.beside.identity in known)

    def _record_beside(self, metrics: Mapping[str, float]) -> int:
        """Append the look to the file in the model folder; return how many looks that has now."""
        seen = len(self.at.prints) if self.beside is None else self._count(self.beside)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        look = LookBeside(now, self.at.data, self.at.test, seen, metrics)
        with lock_in_turn(self._file.with_suffix(".lock"), lambda: None):
            cut_torn_line(self._file)
            append_line(self._file, canonical(look.to_json()))
            return read_bytes(self._file).count(b"\n")

    def _enter(self, places: Mapping[bytes, list[str]]) -> list[str]:
        """Enter the look in the index; return a sentence where that fails and others record it."""
        try:
            self.index.enter_look(self.at.data, self.at.prints, self.looker.by)
        except (OSError, RuntimeError) as error:
            said = f"the index of looks cannot be written to ({error_words(error)})"
            alone = any(half.identity not in places for half in self.known)
            if alone or (self.at.test and not places):
                raise BadInput(f"{said}, and this look has to be recorded there{REMEDY}") from None
            return [f"{said}{REMEDY}"]
        return []

    def _sentences(self, places: Mapping[bytes, list[str]]) -> list[str]:
        """Return a sentence for each test half that was looked at."""
        said = [
            f"this looks at {share(self._count(half), len(half.prints))} of the test half of"
            f" {half.data}, opened by {half.opened_by()}; recorded as"
            f" {', '.join(places.get(half.identity) or [self._in_index(self._shown(half))])}"
            for half in self.known
        ]
        if self.at.test and not said:
            place = ", ".join(places.get(b"") or [self._in_index(self.at.prints)])
            said = [f"no study is known to have opened the test half of {self.at.data}"]
            said[0] += f"; this look at it is recorded as {place}"
            if self.looker.images and self.looker.images != self.at.trainval:
                said.append(UNCOMPARED)
        return said

    def _count(self, half: KnownHalf) -> int:
        return self.at.count(self.looker, half)

    def _shown(self, half: KnownHalf) -> Prints:
        """Return the prints that the index has of a half: of one known by features, the images."""
        shown = self.at.shows_test_of(self.looker, half)
        return self.at.prints if shown else half.prints

    def _in_index(self, prints: Prints) -> str:
        return f"look {len(self.index.looks(prints))} in the index of looks ({self.index.folder})"


@contextmanager
def looking(looker: Looker, at: LookedAt) -> Iterator[OpenLook]:
    """Compare samples with the known test halves, and yield the look that is to be recorded.

    A store whose studies record the look is locked meanwhile. Raise `BadInput` where another
    process writes to it, or where the study has not ended.
    """
    opened = list(opened_halves(looker.store)) if looker.store else []
    own = [
        (record, half)
        for record, half in opened
        if looker.run in record.runs and (at.asks_for_test_of(record) or at.count(looker, half) > 0)
    ]
    outside = looker.folder if looker.store is None else None
    beside = half_of_model(outside) if outside else None
    known = [half for _, half in opened] + ([beside] if beside else [])
    try:
        index = LookIndex()
        known = join_halves([*known, *index.halves()])
    except (OSError, RuntimeError) as error:
        raise BadInput(
            f"the index of looks cannot be read ({error_words(error)}){REMEDY}"
        ) from None
    concerned = {half.identity for _, half in own}
    seen = [half for half in known if half.identity in concerned or at.count(looker, half) > 0]
    with ExitStack() as stack:
        if own and looker.store:
            looker.check()
            stack.enter_context(looker.store.driving(RECORDED_THERE))
            own = _ended(looker.store, own)
        yield OpenLook(looker, at, tuple(own), beside, tuple(seen), index)


def _ended(
    store: Store, studies: list[tuple[StudyRecord, KnownHalf]]
) -> list[tuple[StudyRecord, KnownHalf]]:
    """Return the studies that have all their test scores; raise `BadInput` where none has."""
    ended = [(record, half) for record, half in studies if record.complete]
    if not ended:
        raise BadInput(
            f"{store.study(studies[0][0].key)}: the study is still being scored, and some of these"
            " samples are of its test half; run `assay bench` to its end first"
        )
    return ended


def open_test_half(run: FinishedRun, sealed: SealedTest) -> Half:
    """Return the test half against the receipts of the studies that a run belongs to."""
    receipts = receipts_of_run(run)
    try:
        return next(sealed.open(receipt) for receipt in receipts)
    except SealError as error:
        raise BadInput(f"{error}{END_FIRST}") from None


def receipts_of_run(run: FinishedRun) -> Sequence[Receipt]:
    """Return the receipts of the studies that a run belongs to.

    Studies that differ only in their budgets share runs; those that have ended count. Raise
    `BadInput` where none has.
    """
    records = [record for record in study_records(run.store) if run.key in record.runs]
    try:
        if not records:
            raise SealError(
                f"no study of {run.store.root} has recorded the run {run.key[:12]}, so the test"
                " half stays sealed"
            )
        paths = {record.key: run.store.study(record.key) / "ledger.jsonl" for record in records}
        receipts = [receipt_of(paths[record.key]) for record in records if record.complete]
        if not receipts:
            first = paths[records[0].key]
            receipt_of(first)
            raise SealError(
                f"{first}: the study is still being scored, so the test half stays sealed"
            )
        return receipts
    except SealError as error:
        raise BadInput(f"{error}{END_FIRST}") from None
