"""The chained record of a study, and the receipt that opens the seal."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.hashing import digest
from assay.records.ledger import (
    START,
    BrokenLedger,
    Kind,
    Ledger,
    OtherStudy,
    Receipt,
    SealError,
    completing_line,
    read,
)
from assay.records.lines import Entry, Trial
from entries import (
    announcement,
    budget,
    look,
    reproduction,
    seal,
    selection,
    trial,
    write_raw,
)

TRAINVAL = "7" * 64
STUDY: list[Entry] = [
    announcement(trainval=TRAINVAL),
    trial(0, 0.25),
    trial(1, 0.5, parameters={"margin": 0.5}),
    selection(1),
    reproduction(fold=0),
    reproduction(fold=1),
    seal(),
]


def write(path: Path, entries: Sequence[Entry] = STUDY) -> Ledger:
    ledger = Ledger(path)
    for entry in entries:
        ledger.record(entry)
    return ledger


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Let `change` tamper with the parsed lines of a ledger."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def rehash(line: dict[str, Any]) -> None:
    """Make a forged line's own hash fit."""
    line["hash"] = digest({name: line[name] for name in ("number", "kind", "body", "previous")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "key" / "ledger.jsonl"


def test_each_line_carries_the_hash_of_the_line_before_it(path: Path) -> None:
    write(path)
    lines = read(path)
    assert [line.previous for line in lines] == [START, *(line.hash for line in lines[:-1])]
    assert [line.number for line in lines] == list(range(len(STUDY)))
    assert [line.entry() for line in lines] == STUDY


def test_a_hash_is_that_of_number_kind_body_and_previous(path: Path) -> None:
    write(path)
    for line in read(path):
        hashed = {
            "number": line.number,
            "kind": line.kind,
            "body": line.body,
            "previous": line.previous,
        }
        assert line.hash == digest(hashed)


def test_each_line_is_one_line_of_json(path: Path) -> None:
    write(path, [trial(parameters={"text": "two\nlines, ü", "score": 0.1})])
    assert path.read_bytes().count(b"\n") == 1
    assert json.loads(path.read_text(encoding="utf-8"))["body"]["parameters"] == {
        "text": "two\nlines, ü",
        "score": 0.1,
    }


def test_the_chain_of_two_equal_studies_is_the_same(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.jsonl"), write(tmp_path / "other.jsonl")
    assert [line.hash for line in one.lines] == [line.hash for line in other.lines]


@pytest.mark.parametrize("number", range(len(STUDY)))
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("body", {"forged": True}),
        ("kind", "look"),
        ("number", 99),
        ("previous", "f" * 64),
        ("hash", "f" * 64),
    ],
)
def test_an_altered_field_is_found_and_its_line_named(
    path: Path, number: int, field: str, value: Any
) -> None:
    write(path)
    rewrite(path, lambda lines: lines[number].update({field: value}))
    with pytest.raises(BrokenLedger, match=rf"ledger\.jsonl: line {number + 1} "):
        read(path)


def test_a_score_altered_in_its_last_digit_is_found(path: Path) -> None:
    write(path)
    path.write_bytes(path.read_bytes().replace(b'"map_at_r":0.25', b'"map_at_r":0.26'))
    with pytest.raises(BrokenLedger, match="line 2 was altered"):
        read(path)


@pytest.mark.parametrize("number", range(len(STUDY) - 1))
def test_an_altered_line_whose_own_hash_was_mended_breaks_the_next_one(
    path: Path, number: int
) -> None:
    def forge(lines: list[dict[str, Any]]) -> None:
        lines[number]["body"] = {"forged": True}
        rehash(lines[number])

    write(path)
    rewrite(path, forge)
    with pytest.raises(BrokenLedger, match=rf"line {number + 2} does not follow"):
        read(path)


@pytest.mark.parametrize("number", range(len(STUDY) - 1))
def test_a_removed_line_is_found_where_it_stood(path: Path, number: int) -> None:
    write(path)
    rewrite(path, lambda lines: lines.pop(number))
    with pytest.raises(BrokenLedger, match=rf"line {number + 1} calls itself number {number + 1}"):
        read(path)


@pytest.mark.parametrize("number", range(len(STUDY) - 1))
def test_reordered_lines_are_found_at_the_first_of_them(path: Path, number: int) -> None:
    def swap(lines: list[dict[str, Any]]) -> None:
        lines[number], lines[number + 1] = lines[number + 1], lines[number]

    write(path)
    rewrite(path, swap)
    with pytest.raises(BrokenLedger, match=rf"line {number + 1} "):
        read(path)


def test_a_line_put_in_twice_is_found(path: Path) -> None:
    write(path)
    rewrite(path, lambda lines: lines.insert(2, lines[1]))
    with pytest.raises(BrokenLedger, match="line 3 "):
        read(path)


def test_a_line_of_another_study_is_found(path: Path, tmp_path: Path) -> None:
    write(path)
    foreign = write(tmp_path / "foreign.jsonl", [announcement("other"), *STUDY[1:]])
    rewrite(path, lambda lines: lines.__setitem__(3, vars(foreign.lines[3])))
    with pytest.raises(BrokenLedger, match="line 4 does not follow"):
        read(path)


@pytest.mark.parametrize(
    "text",
    [b"", b"not json", b"[]", b"3", b"null", b"{}", b'{"number": 2}', b"\xff\xfe", b'{"extra": 1}'],
)
def test_what_is_no_ledger_line_is_named(path: Path, text: bytes) -> None:
    write(path)
    lines = path.read_bytes().split(b"\n")
    lines[2] = text
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(BrokenLedger, match="line 3 is not a ledger line"):
        read(path)


def test_a_field_that_a_ledger_line_does_not_have_is_refused(path: Path) -> None:
    write(path)
    rewrite(path, lambda lines: lines[1].update(note="added later"))
    with pytest.raises(BrokenLedger, match="line 2 "):
        read(path)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b'"\\ud800"'])
def test_a_value_that_has_no_hash_is_found_like_any_other(path: Path, text: bytes) -> None:
    write(path)
    path.write_bytes(path.read_bytes().replace(b"0.25", text))
    with pytest.raises(BrokenLedger, match="line 2 "):
        read(path)


def test_a_broken_ledger_cannot_be_continued(path: Path) -> None:
    write(path)
    rewrite(path, lambda lines: lines[1].update(body={}))
    with pytest.raises(BrokenLedger, match="line 2 "):
        Ledger(path)


def test_a_broken_ledger_is_something_the_user_can_mend() -> None:
    assert issubclass(BrokenLedger, BadInput)
    assert issubclass(OtherStudy, BadInput)


def test_the_time_of_a_line_stands_outside_its_hash(path: Path) -> None:
    hashes = [line.hash for line in write(path).lines]
    rewrite(path, lambda lines: [line.update(at="1970-01-01T00:00:00+00:00") for line in lines])
    assert [line.hash for line in read(path)] == hashes
    assert {line.at for line in read(path)} == {"1970-01-01T00:00:00+00:00"}
    write(path)
    assert len(read(path)) == len(STUDY)


def test_every_line_says_when_it_was_written(path: Path) -> None:
    assert all(line.at.endswith("+00:00") for line in write(path).lines)


@pytest.mark.parametrize("torn", [b"{", b'{"at":"2024', b"\x00\x00", b"\xff"])
def test_a_torn_last_line_is_not_yet_a_line(path: Path, torn: bytes) -> None:
    write(path, STUDY[:3])
    with path.open("ab") as stream:
        stream.write(torn)
    assert len(read(path)) == 3


def test_a_last_line_without_its_end_is_not_yet_a_line(path: Path) -> None:
    write(path, STUDY[:3])
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read(path)) == 2


@pytest.mark.parametrize("left", [1, 10, 60])
def test_a_torn_last_line_is_cut_on_opening_and_written_again(path: Path, left: int) -> None:
    write(path)
    whole = path.read_bytes()
    before = whole[: whole[:-1].rfind(b"\n") + 1]
    path.write_bytes(whole[: len(before) + left])
    ledger = Ledger(path)
    assert path.read_bytes() == before
    for entry in STUDY:
        ledger.record(entry)
    assert [line.hash for line in read(path)] == [
        json.loads(line)["hash"] for line in whole.splitlines()
    ]


def test_a_ledger_torn_in_its_first_line_begins_afresh(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"at":"20')
    write(path)
    assert len(read(path)) == len(STUDY)


def test_an_empty_ledger_has_no_line(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    assert read(path) == []
    assert Ledger(path).lines == []


def test_opening_a_ledger_that_is_not_there_makes_no_file(path: Path) -> None:
    assert Ledger(path).lines == []
    assert not path.exists()


def test_replay_adds_no_line_and_changes_no_byte(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    write(path)
    assert path.read_bytes() == before


def test_a_part_of_a_study_replays_and_goes_on(path: Path, tmp_path: Path) -> None:
    for stop in range(len(STUDY) + 1):
        write(path, STUDY[:stop])
    unbroken = write(tmp_path / "unbroken.jsonl")
    assert [line.hash for line in read(path)] == [line.hash for line in unbroken.lines]


def test_replay_gives_back_the_lines_that_stand_there(path: Path) -> None:
    first = write(path).lines
    again = Ledger(path)
    assert [again.record(entry) for entry in STUDY] == first


def test_tuples_and_lists_are_the_same_record(path: Path) -> None:
    write(path, [announcement()])
    listed = replace(announcement().method, batch=[8, 4])
    write(path, [replace(announcement(), method=listed)])
    assert len(read(path)) == 1


def test_the_next_entry_is_the_one_that_will_be_stepped_over(path: Path) -> None:
    write(path)
    ledger = Ledger(path)
    for entry in STUDY:
        assert ledger.next == entry
        ledger.record(entry)
    assert ledger.next is None


def test_another_value_is_refused_and_its_field_named(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    ledger = Ledger(path)
    ledger.record(STUDY[0])
    with pytest.raises(OtherStudy, match=r"another trial at line 2 \(different: map_at_r\)"):
        ledger.record(trial(0, 0.75))
    assert path.read_bytes() == before


def test_every_field_that_differs_is_named(path: Path) -> None:
    write(path, [selection(1)])
    with pytest.raises(OtherStudy, match=r"\(different: search, trial\)"):
        Ledger(path).record(selection(0, search=1))


def test_a_field_too_many_is_named(path: Path) -> None:
    write(path, [announcement()])
    with pytest.raises(OtherStudy, match=r"\(different: generation\)"):
        Ledger(path).record(announcement(generation=1))


def test_a_field_that_is_missing_is_named(path: Path) -> None:
    write(path, [announcement(generation=1)])
    with pytest.raises(OtherStudy, match=r"\(different: generation\)"):
        Ledger(path).record(announcement())


def test_another_kind_is_refused_and_both_are_named(path: Path) -> None:
    write(path)
    ledger = Ledger(path)
    ledger.record(STUDY[0])
    with pytest.raises(OtherStudy, match="a selection where the ledger has a trial at line 2"):
        ledger.record(selection(1))


def test_a_refused_record_is_not_stepped_over(path: Path) -> None:
    write(path)
    ledger = Ledger(path)
    with pytest.raises(OtherStudy):
        ledger.record(announcement("other"))
    assert ledger.record(STUDY[0]) == ledger.lines[0]


def test_what_has_no_canonical_form_is_not_recorded(path: Path) -> None:
    ledger = write(path, STUDY[:2])
    before = path.read_bytes()
    with pytest.raises(TypeError):
        ledger.record(trial(parameters={"margin": {1}}))
    assert path.read_bytes() == before
    ledger.record(STUDY[2])
    assert len(read(path)) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_json_has_no_number_for_comes_back(path: Path, value: float) -> None:
    write(path, [trial(0, value)])
    found = read(path)[0].entry()
    assert isinstance(found, Trial)
    assert repr(found.map_at_r) == repr(value)


@pytest.mark.parametrize("count", range(len(STUDY) - 2))
def test_there_is_no_receipt_before_selection_and_all_reproductions(path: Path, count: int) -> None:
    ledger = write(path, STUDY[:count])
    with pytest.raises(SealError, match="stays sealed"):
        ledger.receipt()


def test_every_search_has_to_have_selected(path: Path) -> None:
    ledger = write(
        path,
        [
            announcement(own_budget=budget(searches=2, reproduction_runs=2)),
            *STUDY[1:5],
        ],
    )
    with pytest.raises(SealError, match="stays sealed"):
        ledger.receipt()


def test_reproductions_without_a_selection_give_no_receipt(path: Path) -> None:
    ledger = write(path, [entry for entry in STUDY if entry.kind != "selection"])
    with pytest.raises(SealError):
        ledger.receipt()


def test_reproductions_before_the_selection_give_no_receipt(path: Path) -> None:
    before = [entry for entry in STUDY if entry.kind not in ("selection", "seal")]
    ledger = write(path, [*before, selection(1)])
    with pytest.raises(SealError):
        ledger.receipt()


@pytest.mark.parametrize("body", [{}, {"budget": {}}, {"budget": None}])
def test_a_preregistration_that_promises_nothing_gives_no_receipt(
    path: Path, body: dict[str, Any]
) -> None:
    rest = [(entry.kind, entry.to_json()) for entry in STUDY[1:]]
    ledger = write_raw(path, [("preregistration", body), *rest])
    with pytest.raises(SealError):
        ledger.receipt()


def test_a_study_without_a_preregistration_gets_no_receipt(path: Path) -> None:
    first, *rest = [(entry.kind, entry.to_json()) for entry in STUDY]
    ledger = write_raw(path, [("trial", first[1]), *rest])
    with pytest.raises(SealError):
        ledger.receipt()


def test_a_promise_of_no_reproductions_is_kept_by_the_selection_or_refused(path: Path) -> None:
    ledger = write(
        path,
        [announcement(own_budget=budget(reproduction_runs=0)), *STUDY[1:4]],
    )
    try:
        receipt = ledger.receipt()
    except SealError:
        assert completing_line(ledger.lines) is None
    else:
        assert receipt.hash == ledger.lines[3].hash


def test_a_complete_study_has_a_receipt_that_names_the_completing_line(path: Path) -> None:
    ledger = write(path)
    receipt = ledger.receipt()
    assert receipt == Receipt(str(path), ledger.lines[5].hash)
    assert completing_line(ledger.lines) is ledger.lines[5]
    assert write(path).receipt() == receipt
    receipt.check(TRAINVAL)


def test_a_receipt_holds_after_later_looks(path: Path) -> None:
    ledger = write(path)
    receipt = ledger.receipt()
    for number in range(3):
        ledger.record(look(map_at_r=number / 10))
    receipt.check(TRAINVAL)
    assert ledger.receipt() == receipt


def test_a_forged_receipt_is_refused(path: Path) -> None:
    write(path)
    for forged in ("0" * 64, "", START):
        with pytest.raises(SealError, match="does not support"):
            Receipt(str(path), forged).check(TRAINVAL)


def test_no_other_line_than_the_completing_one_serves_as_a_receipt(path: Path) -> None:
    for line in write(path).lines:
        if line.number != 5:
            with pytest.raises(SealError):
                Receipt(str(path), line.hash).check(TRAINVAL)


def test_the_receipt_of_another_study_is_refused(path: Path, tmp_path: Path) -> None:
    write(path)
    foreign = write(
        tmp_path / "foreign.jsonl",
        [announcement(generation=1), *STUDY[1:]],
    )
    with pytest.raises(SealError):
        Receipt(str(path), foreign.receipt().hash).check(TRAINVAL)


@pytest.mark.parametrize("count", range(len(STUDY) - 2))
def test_an_incomplete_ledger_bears_out_no_receipt(path: Path, tmp_path: Path, count: int) -> None:
    complete = write(tmp_path / "complete.jsonl")
    write(path, STUDY[:count])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    for line in complete.lines:
        with pytest.raises(SealError):
            Receipt(str(path), line.hash).check(TRAINVAL)


def test_a_ledger_torn_in_its_completing_line_bears_out_no_receipt(path: Path) -> None:
    receipt = write(path, STUDY[:6]).receipt()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SealError):
        receipt.check(TRAINVAL)


def test_a_receipt_of_a_ledger_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(SealError):
        Receipt(str(path), "0" * 64).check(TRAINVAL)


def test_a_receipt_of_an_altered_ledger_is_refused(path: Path) -> None:
    receipt = write(path).receipt()
    rewrite(path, lambda lines: lines[1]["body"].update(score=0.99))
    with pytest.raises(SealError):
        receipt.check(TRAINVAL)


def test_a_receipt_of_a_file_that_is_no_ledger_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("anything\n")
    with pytest.raises(SealError):
        Receipt(str(path), "0" * 64).check(TRAINVAL)


@pytest.mark.parametrize("trainval", ["8" * 64, "", TRAINVAL[:-1], TRAINVAL + "7"])
def test_a_receipt_of_a_complete_study_on_other_data_is_refused(path: Path, trainval: str) -> None:
    receipt = write(path).receipt()
    with pytest.raises(SealError, match="of a study on other data"):
        receipt.check(trainval)
    receipt.check(TRAINVAL)


@pytest.mark.parametrize(
    "data",
    [{"data": {}}, {"data": {"trainval": None}}, {"data": {"test": TRAINVAL}}, {"data": None}],
)
def test_a_receipt_of_a_study_that_does_not_say_on_what_data_is_refused(
    path: Path, data: dict[str, Any]
) -> None:
    complete = write(path).receipt()
    path.unlink()
    first, *rest = [(entry.kind, entry.to_json()) for entry in STUDY]
    ledger = write_raw(path, [("preregistration", {**first[1], **data}), *rest])
    with pytest.raises(SealError, match="stays sealed"):
        ledger.receipt()
    for line in ledger.lines:
        with pytest.raises(SealError, match=r"data.* is |cannot be relied on"):
            replace(complete, hash=line.hash).check(TRAINVAL)


def test_data_named_after_the_preregistration_does_not_count(path: Path) -> None:
    named_later: list[tuple[Kind, Any]] = [
        (entry.kind, {**entry.to_json(), "data": {"trainval": TRAINVAL}}) for entry in STUDY[1:]
    ]
    other = announcement(trainval="8" * 64).to_json()
    ledger = write_raw(path, [("preregistration", other), *named_later])
    with pytest.raises(SealError, match="of a study on other data"):
        ledger.receipt().check(TRAINVAL)


def test_a_ledger_rewritten_to_name_other_data_bears_out_no_receipt(path: Path) -> None:
    def rewrite_the_data(lines: list[dict[str, Any]]) -> None:
        lines[0]["body"]["data"]["trainval"] = "8" * 64
        rehash(lines[0])

    receipt = write(path).receipt()
    rewrite(path, rewrite_the_data)
    with pytest.raises(SealError, match="cannot be relied on"):
        receipt.check("8" * 64)
