"""Checks of what was announced: each bench is what its hash says, none was removed, and its studies
are those announced, on the test half announced.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from assay.errors import BadInput
from assay.hashing import digest
from assay.protocols import NOT_ASKED, PROSE, protocols, published_name
from assay.records.benches import DeclaredBench, announced_before, read_bench
from assay.records.codec import encode
from assay.records.lines import AnnouncedProtocol
from assay.records.store import Store
from assay.records.study import StudyRecord
from assay.verify.finding import Finding, of_error
from assay.verify.sweeps import BESIDE

ORDER_IN_TIME = (
    "it shows an order in time only if this hash was published, with a date that others can check,"
    " before the results were known"
)


def check_benches(store: Store, records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each announced bench, and one for studies that no bench announced."""
    benches = []
    for hash_ in store.benches():
        try:
            benches.append(read_bench(store, hash_))
        except BadInput as error:
            unread = of_error(f"bench {hash_[:12]}", error)
            yield unread
            if unread.unchecked:  # what it announced is not known
                return
    by_key = {record.key: record for record in records}
    for bench in benches:
        yield _check_bench(store, bench, benches, by_key)
    yield from _check_order(store, benches, records)
    yield from _check_questions(records)
    yield from _check_unnamed_runs(store, records)
    announced = {
        place for bench in benches for place in zip(bench.studies, bench.announcements, strict=True)
    }
    strangers = [one.title for one in records if (one.key, one.preregistration) not in announced]
    yield Finding(
        "announcements of all studies",
        f"no bench in benches/ announced {', '.join(strangers)} as it was begun: its announcement"
        " was removed or altered"
        if strangers
        else "",
    )


def _check_bench(
    store: Store,
    bench: DeclaredBench,
    benches: Sequence[DeclaredBench],
    records: Mapping[str, StudyRecord],
) -> Finding:
    what = f"bench {bench.hash[:12]}"
    problems = [*_contradictions(store, bench, benches, records)]
    if problems:
        return Finding(what, f"benches/{bench.hash}.json: {problems[0]}")
    missing = [name for name, key in bench.members.items() if key not in records]
    again = _otherwise_begun(bench, records)
    notes = [
        f"announced and absent: {', '.join(missing)} (after a kill, run the same command again)"
        if missing
        else "",
        f"announced again, with another preregistration, before it was begun: {', '.join(again)}"
        if again
        else "",
    ]
    return Finding(what, note="; ".join(filter(None, notes)), incomplete=bool(missing or again))


def _contradictions(
    store: Store,
    bench: DeclaredBench,
    benches: Sequence[DeclaredBench],
    records: Mapping[str, StudyRecord],
) -> Iterator[str]:
    """Yield what in the store contradicts the announcement of a bench."""
    known = {one.hash for one in benches}
    removed = [hash_ for hash_ in bench.previous if hash_ not in known]
    if removed:
        yield f"the bench {removed[0][:12]}, which was announced before it, was removed"
    alike = [one for one in announced_before(bench, benches).values() if _asks_the_same(one, bench)]
    if bench.look < 1 or bool(bench.after) != (bench.look > 1):
        yield f"look {bench.look} does not follow"
    tries = [one for one in alike if one.is_another_try(bench.protocol, bench.members)]
    if any(one.look >= bench.look or not {*one.studies} <= {*bench.after} for one in tries):
        yield "it does not count a bench on the same question that was announced before it"
    for name, key in bench.members.items():
        if (record := records.get(key)) is None:
            continue
        announced = record.announced
        found = (
            announced.method.name,
            announced.protocol.fingerprint,
            announced.protocol.question,
            announced.data.trainval,
            not announced.method.baseline,
        )
        said = (name, bench.protocol, bench.question, bench.trainval, name in bench.trained)
        if found != said:
            yield f"it does not say of {name} what the study announces"
        point = announced.sweep
        if bench.sweep != (point and f"{point.field}={point.value}"):
            yield f"it is called {_point(bench.sweep)}, and the study of {name} is not of that"
        if record.seal is not None and not bench.commits_to(record.seal.test, store.salts):
            yield (
                f"the test half that {name} was scored on is not the one that was announced: it was"
                " replaced afterwards"
            )
    for name in _otherwise_begun(bench, records):
        later = [
            one
            for one in benches
            if bench.hash in announced_before(one, benches)
            and (bench.members[name], records[bench.members[name]].preregistration)
            in zip(one.studies, one.announcements, strict=True)
        ]
        if not later:
            yield f"{name} was begun with another preregistration than the one announced"
    if bench.look > 1 + len(alike):
        yield f"it is called look {bench.look} after {len(alike)} benches on the same question"
    if not {*bench.after} <= {key for one in alike for key in one.studies}:
        yield "it counts studies that no bench on the same question announced before it"


def _asks_the_same(one: DeclaredBench, other: DeclaredBench) -> bool:
    """Return whether two benches ask the same question of the same data."""
    return (one.question, one.trainval, one.sweep) == (other.question, other.trainval, other.sweep)


def _point(sweep: str | None) -> str:
    return "a bench outside any sweep" if sweep is None else f"the point {sweep} of a sweep"


def _check_order(
    store: Store, benches: Sequence[DeclaredBench], records: Sequence[StudyRecord]
) -> Iterator[Finding]:
    """Yield a note for each pair of benches on one question of which neither names the other.

    That is so where copies of one store went on apart and were merged. Stores that were begun apart
    have salts of their own: nothing is noted of their benches.
    """
    halves = {record.seal.test for record in records if record.seal is not None}
    before = {one.hash: announced_before(one, benches) for one in benches}
    for one, other in combinations(sorted(benches, key=lambda bench: bench.hash), 2):
        if one.hash in before[other.hash] or other.hash in before[one.hash]:
            continue
        same_salt = len(store.salts) == 1 or any(
            one.commits_to(half, [salt]) and other.commits_to(half, [salt])
            for salt in store.salts
            for half in halves
        )
        if same_salt and _asks_the_same(one, other):
            pair = f"{one.hash[:12]} and {other.hash[:12]}"
            yield Finding(
                "order of benches",
                note=f"{pair} ask the same question and neither names the other as announced"
                " before it: copies of this store went on apart and were merged, or the order was"
                " taken out",
                trusted=f"that benches {pair} were announced in copies of this store",
            )


def _check_questions(records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a finding for each pair of studies with equal settings and two questions.

    The question is a hash of the settings as they were declared. Where name and words of `--set`
    give these, it was checked. Elsewhere one protocol may have declared what is `auto` in the
    other, so that two questions prove nothing, unless words were left out.
    """
    groups: dict[str, list[StudyRecord]] = {}
    for record in records:
        announced, resolved = record.announced, record.resolved.to_json()
        asked = {name: resolved[name] for name in sorted({*resolved} - {*NOT_ASKED, *PROSE})}
        conditions = [announced.data.trainval, record.method, encode(announced.sweep), asked]
        groups.setdefault(digest(conditions), []).append(record)
    for group in groups.values():
        for one, other in combinations(group, 2):
            if one.announced.protocol.question != other.announced.protocol.question:
                yield from _two_questions(one, other)


def _two_questions(one: StudyRecord, other: StudyRecord) -> Iterator[Finding]:
    asked = [record.announced.protocol for record in (one, other)]
    unknown = [each for each in asked if protocols.declared(each.name, each.settings) is None]
    pair = f"{asked[0].name} and {asked[1].name}"
    same = f"{one.title} was studied under {pair}, whose settings are the same, as two questions"
    if any(_words_were_left_out(each) for each in unknown):
        yield Finding("questions", f"{same}: the second look is not counted")
    elif unknown:
        yield Finding("questions", note=same, trusted=f"that {pair} ask two questions")


def _words_were_left_out(unknown: AnnouncedProtocol) -> bool:
    """Return whether words of `--set` lead from a published protocol to this one of unknown words.

    A protocol that was made in Python may have a name from a published one, and parts that no words
    change.
    """
    name = published_name(unknown.name)
    return name in protocols and all(
        getattr(protocols[name], part) == getattr(unknown.resolved, part) for part in BESIDE
    )


def _check_unnamed_runs(store: Store, records: Sequence[StudyRecord]) -> Iterator[Finding]:
    """Yield a note where runs are there that no study names.

    A bench that is under way, or was killed, has a few: a run is whole before its ledger names it.
    """
    named = {key for record in records for key in record.runs}
    there = {path.parent.name for path in store.root.glob("runs/*/*/result.json")}
    if unnamed := sorted(there - named):
        some = ", ".join(key[:12] for key in unnamed[:3]) + (", ..." * (len(unnamed) > 3))
        yield Finding(
            "runs/",
            note=f"holds {len(unnamed)} runs that no study here names ({some}): of a study that"
            " was killed or removed",
        )


def _otherwise_begun(bench: DeclaredBench, records: Mapping[str, StudyRecord]) -> list[str]:
    """Return the methods whose studies have another preregistration than was announced."""
    return [
        name
        for name, key, hash_ in zip(bench.methods, bench.studies, bench.announcements, strict=True)
        if key in records and records[key].preregistration != hash_
    ]


def check_anchors(
    store: Store, anchors: Sequence[str], records: Sequence[StudyRecord]
) -> Iterator[Finding]:
    """Yield a finding for each hash that was published, and one for the other benches.

    A hash commits to the benches that were announced before its own. It does not show when: their
    results may have been known by then.
    """
    for anchor in dict.fromkeys(anchors):
        try:
            yield _check_anchor(store, anchor, records)
        except BadInput as error:
            yield of_error(f"anchor {anchor[:12]}", error)
    others = [hash_ for hash_ in store.benches() if hash_ not in anchors]
    if anchors and others:
        named = ", ".join(f"{hash_[:12]}{_methods_in(store, hash_)}" for hash_ in others)
        yield Finding(
            "benches without an anchor",
            note=f"{named}: only the hash of a bench itself shows when it was announced; give each"
            " that was published with an --anchor of its own",
            trusted=f"that bench {named} was announced before its results were known",
        )


def _methods_in(store: Store, hash_: str) -> str:
    """Return the methods of a bench in words; nothing where its file cannot be read."""
    try:
        return f" ({_methods(read_bench(store, hash_))})"
    except BadInput:
        return ""


def _methods(bench: DeclaredBench) -> str:
    return ", ".join(bench.methods)


def _check_anchor(store: Store, anchor: str, records: Sequence[StudyRecord]) -> Finding:
    """Return whether a bench was announced with this hash, and is here as it was announced."""
    what = f"anchor {anchor[:12]}"
    if anchor not in store.benches():
        of_study = [record.title for record in records if record.preregistration == anchor]
        return Finding(
            what,
            f"this is the preregistration of {of_study[0]} alone; give the hash of its bench,"
            f" the name of a file in {store.root / 'benches'}"
            if of_study
            else "no bench here was announced with this hash",
        )
    bench, by_key = read_bench(store, anchor), {record.key: record for record in records}
    if otherwise := _otherwise_begun(bench, by_key):
        return Finding(what, f"{', '.join(otherwise)} was not carried out as announced with it")
    missing = [name for name, key in bench.members.items() if key not in by_key]
    opened = any(by_key[key].seal is not None for key in bench.studies if key in by_key)
    half = "and test half are" if opened else "are"
    proves = (
        f"methods ({_methods(bench)}), spaces, budgets, settings, source, smallest difference"
        f" {half} those that were announced with it; {ORDER_IN_TIME}"
    )
    absent = f"announced and absent: {', '.join(missing)}; of the others: " if missing else ""
    return Finding(what, note=absent + proves, incomplete=bool(missing))
