"""Forgeries of a store that keep its chain of hashes whole."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np

from assay.data.arrays import pack_arrays
from assay.errors import BadInput
from assay.hashing import digest_file, pretty
from assay.records.ledger import Ledger, completing_line, read
from assay.records.run import CARD
from assay.records.study import classes_file, read_record, study_records, write_record
from assay.report import write_report
from assay.run import score_reproduction
from assay.run.testing import read_answers
from assay.study.announced import AnnouncedStudy
from entries import write_raw


def record_in(store, method="triplet"):
    """The first study of the method: where there is a sweep, its base."""
    records = [record for record in study_records(store) if record.method == method]
    return min(
        records,
        key=lambda record: (record.announced.sweep is not None, record.announced.generation),
    )


def announce(store, designs, change=lambda announced: announced):
    """Begin studies that were announced, and perhaps changed, by a forger who had the key of each
    follow from it; return the store.
    """
    for design in designs:
        forged = replace(design.study, announced=change(design.preregistration))
        folder = store.study(forged.key(forged.announced.generation))
        folder.mkdir(parents=True)
        Ledger(folder / "ledger.jsonl").record(forged.announced)
    return store


def forge(store, change, method="triplet", study=None):
    """What a careful forger does: alter the lines, hash the whole chain again, write a fitting
    receipt and `study.json`.
    """
    folder = store.study(study or record_in(store, method).key)
    lines = [[line.kind, line.body] for line in read(folder / "ledger.jsonl")]
    change(lines)
    (folder / "ledger.jsonl").unlink()
    ledger = Ledger(folder / "ledger.jsonl")
    for kind, body in lines:
        complete = completing_line(ledger.lines) if ledger.lines else None
        forged = {**body, "receipt": complete.hash} if kind == "seal" and complete else body
        ledger = write_raw(ledger.path, [(kind, forged)])
    with suppress(BadInput):  # a line that is none has no study.json
        write_record(folder, ledger.lines)


def write_vectors(store, key, vectors):
    """Replace the test vectors of a run."""
    (path,) = store.run(key).glob("test/*.npy")
    np.save(path, vectors)


def make_consistent(store, *names):
    """Write scores, hashes, chain, model cards and report of these methods anew, so that all follow
    from the stored test vectors and labels.
    """
    for name in names:
        _score_again(store, name)
    write_report(store)


def _score_again(store, method):
    record = record_in(store, method)
    folder = store.study(record.key)
    protocol = AnnouncedStudy(record.announced).run_protocol
    answers = read_answers(store.answers(record.seal.test))

    def rescore(lines):
        for kind, body in lines:
            if kind == "seal":
                body["labels"] = answers.fingerprint
            if kind == "test":
                paths = [store.test_vectors(key, body["test"]) for key in body["runs"]]
                scores, by_class = score_reproduction(
                    [np.load(path) for path in paths],
                    answers, protocol.dim, protocol.metrics, protocol.similarity,
                )  # fmt: skip
                classes = classes_file(folder, body["search"], body["reproduction"])
                classes.write_bytes(pack_arrays(by_class))
                hashes = [digest_file(path) for path in paths]
                body.update(scores.to_json(), vectors=hashes, classes=digest_file(classes))

    forge(store, rescore, method)
    again = read_record(folder)
    for path in store.root.glob(f"models/*/{CARD}"):
        _edit_card(path, again)


def _edit_card(path, record):
    card = json.loads(path.read_text())
    if card["study"] == record.key:
        entry = next(one for one in record.reproductions if one.key == card["run"])
        test = record.test_of(entry).to_json()
        card["test"] = {name: test[name] for name in ("separated", "concatenated")}
        path.write_text(pretty(card))
