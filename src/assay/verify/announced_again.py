"""The announcement of a study made again from the data and the code, and compared with the ledger.

An announcement can be made up as a whole before anything runs: other defaults, a narrower space, a
published name over other settings, another leak report. It agrees with all that follows from it.
Here the method, the declared protocol and the data say what Assay announces.
"""

from collections.abc import Iterator
from typing import Any

from assay.records.codec import differing_fields
from assay.records.study import StudyRecord
from assay.study.design import Design
from assay.verify.finding import Finding

TITLE = "announced again"
OF_THE_DATA = (
    "modality", "trainval", "classes", "samples", "pretrained_on", "problems", "relations",
)  # fmt: skip
"""Entries of the data that are equal for the same data; the name of these, and what was left out of
them, may be others.
"""

EXPLAINS = ("about", "departures")
"""Entries of a method and of a protocol that explain, and change no run. Another version of Assay,
or of a user's file, may say them in other words.
"""


def check_announced(record: StudyRecord, design: Design, *, named: bool) -> Finding:
    """Return whether the announcement is the one that this design gives.

    `named` says whether the design has the declared settings of the protocol; it has the resolved
    ones of the announcement otherwise, and these are taken on trust.
    """
    what = f"{record.title}: {TITLE}"
    said, here = record.announced.to_json(), design.preregistration.to_json()
    wrong = list(_differences(said, here, named=named))
    names = said["data"]["name"], here["data"]["name"]
    note = f"the announcement calls the data {names[0]}, here they are {names[1]}"
    notes = [note] if names[0] != names[1] else []
    of_protocol = (
        f"that {record.announced.protocol.name} has the settings that {record.title} announced"
    )
    trusted = [] if named else [of_protocol]
    left_out = ["; ".join(one["data"].get("left_out") or ["nothing"]) for one in (said, here)]
    if left_out[0] != left_out[1]:  # files may have been removed or added since
        notes.append(f"left out of the data: {left_out[0]} in the ledger, {left_out[1]} here")
        trusted.append(f"what {record.title} announced as left out of the data")
    if not wrong:
        return Finding(what, note="; ".join(notes), trusted="; ".join(trusted))
    differs = f"{wrong[0]} is {_at(said, wrong[0])} in the ledger and {_at(here, wrong[0])} here"
    of_prose = all(path.rpartition(".")[2] in EXPLAINS for path in wrong)
    version = "versions.assay" if of_prose else "versions.source"
    if _at(said, version) == _at(here, version):
        return Finding(what, f"preregistration: {differs}")
    notes.append(f"another version of Assay announced it: {differs}")
    words = f"that another version of Assay announces {', '.join(wrong)} as the ledger has them"
    trusted.append(f"{words} ({record.title})")
    return Finding(what, note="; ".join(notes), trusted="; ".join(trusted))


def _differences(said: Any, here: Any, *, named: bool) -> Iterator[str]:
    """Yield the entries of the announcement that are others here, by their paths."""
    for name in OF_THE_DATA:
        if said["data"].get(name) != here["data"].get(name):
            yield f"data.{name}"
    same_file = said["method"]["source"] == here["method"]["source"]
    left = {"source"} if same_file else {"source", *EXPLAINS}
    for name in sorted({*said["method"], *here["method"]} - left):
        if said["method"].get(name) != here["method"].get(name):
            yield f"method.{name}"
    yield from (f"space.{name}" for name in differing_fields(said["space"], here["space"]))
    ours, theirs = said["protocol"], here["protocol"]
    fields = differing_fields(ours["resolved"], theirs["resolved"])
    yield from (f"protocol.resolved.{name}" for name in fields)
    if named:
        yield from (
            f"protocol.{name}" for name in ("fingerprint", "question") if ours[name] != theirs[name]
        )
        yield from (f"budget.{name}" for name in differing_fields(said["budget"], here["budget"]))
    if _at(said, "weights.digest") != _at(here, "weights.digest"):
        yield "weights.digest"


def _at(document: Any, path: str) -> str:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    words = str(document)
    return words if len(words) <= 80 else f"{words[:77]}..."
