"""A bench: the studies of several methods, driven side by side over one engine."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from assay.data import Dataset, load, splits
from assay.devices import choose_device
from assay.engines import Engine
from assay.errors import BadInput
from assay.methods import import_parts, methods
from assay.progress import Progress, silent
from assay.protocols import NOT_ASKED, Protocol, SettingValue, as_text, protocols
from assay.records.benches import AS_IS
from assay.records.store import Store
from assay.run import Keep
from assay.study.conditions import Conditions, describe_data
from assay.study.declared import declare, reference_of
from assay.study.design import Design
from assay.study.drive import drive
from assay.study.plan import Plan, plan
from assay.study.progress import Board, Listener
from assay.study.study import Study


@dataclass(frozen=True)
class Bench:
    """What was benched, and where."""

    out: Path
    studies: tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """How benches are carried out, which changes nothing in what they find.

    Args:
        engine: where runs execute; opened when the first run is ready, closed at the end.
        device: auto, cpu or cuda.
        imports: files or modules that register the user's own parts.
        keep: weights that stay: of the selected trial and the reproductions (`best`), or every
            checkpoint of every run (`all`), whose scores on the opened test half then tell the
            price of peeking.
        listener: hears of the progress.
        allow_leaks: bench data with copies in both halves or with conflicting labels, which are
            refused otherwise.
    """

    engine: Engine
    device: str = "auto"
    imports: tuple[str, ...] = ()
    keep: Keep = "best"
    listener: Listener = field(default_factory=Listener)
    allow_leaks: bool = False


def run_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    out: Path,
    execution: Execution,
    *,
    new_study: bool = False,
    control: str | None = None,
    reference: str | None = None,
) -> Bench:
    """Study each method on the data under the protocol; what is finished already is not done again.

    `new_study` begins them afresh, beside those that the store has. `control` adds a twin of a
    method, `reference` is the method that all others are compared with.
    """
    designs = design_bench(
        data,
        with_yardstick(names),
        protocol,
        execution.device,
        execution.imports,
        execution.listener.progress,
    )
    check_data(designs, execution)
    return run_designs(with_control(designs, control), out, execution, new_study, reference)


def check_data(designs: Sequence[Design], execution: Execution) -> None:
    """Say what is wrong with the data; raise `BadInput` where no bench should start on them."""
    designs[0].conditions.check_data(execution.listener.say, execution.allow_leaks)


def run_designs(
    designs: Sequence[Design],
    out: Path,
    execution: Execution,
    new_study: bool,
    reference: str | None = None,
) -> Bench:
    """Carry out the newest studies of these designs that the store has, or new ones; declared
    before anything is run.
    """
    with driving(out, execution) as (store, engine):
        designs = [in_generation(design, store, new_study) for design in designs]
        check_studies(designs, store)
        bench = declare(store, designs, reference)
        if bench.reference:
            execution.listener.say("bench", f"every method is compared with {bench.reference}")
        if bench.look > 1:
            execution.listener.say(
                "bench",
                f"look number {bench.look}: {len(bench.after)} studies were declared or tested"
                " before",
            )
        carry_out(designs, store, engine, execution)
    return Bench(out, tuple(design.key for design in designs))


@contextmanager
def driving(out: Path, execution: Execution) -> Iterator[tuple[Store, Engine]]:
    """Yield the store, driven by this process alone, and the engine, open."""
    store = Store.create(out)
    with store.driving(), execution.engine as engine:
        yield store, engine


def check_studies(designs: Sequence[Design], store: Store) -> None:
    """Raise `BadInput` where a study of the store was announced as something else."""
    for design in designs:
        Study(design, store, Listener()).check()


def carry_out(
    designs: Sequence[Design], store: Store, engine: Engine, execution: Execution
) -> None:
    """Drive the studies of these designs to their ends, none begun before all are known to be what
    they were announced as.
    """
    check_studies(designs, store)
    to_train = [
        design
        for design in designs
        if design.method.loss and not Study(design, store, Listener()).trained
    ]
    parts = _parts(engine.workers, len(to_train))
    studies = [
        Study(design, store, execution.listener, execution.keep, parts) for design in designs
    ]
    for words in dict.fromkeys(
        design.conditions.augmentation for design in designs if design.method.loss
    ):
        execution.listener.say("augmentation", words)
    for needed in dict.fromkeys(design.conditions.disk_needed() for design in designs):
        if needed:
            execution.listener.say("images", needed)
    drive(studies, engine, execution.listener, Board(store))


def _parts(workers: int, studies: int) -> int:
    """Return into how many tasks a study splits runs that could be one: about two for each worker
    over all studies.

    A study never has more tasks than there are workers: a longer stack wastes less.

    >>> [_parts(2, studies) for studies in (1, 2, 3, 4, 10)]
    [2, 2, 2, 1, 1]
    """
    return min(workers, math.ceil(2 * workers / max(1, studies)))


def in_generation(design: Design, store: Store, new: bool = False) -> Design:
    """The design as the newest study of its kind in the store, or as the one after that."""
    generations = [design]
    while (store.study(generations[-1].key) / "ledger.jsonl").exists():
        generations.append(replace(design, generation=len(generations)))
    return generations[-1] if new or len(generations) == 1 else generations[-2]


def plan_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    *,
    workers: int,
    device: str = "auto",
    imports: Sequence[str] = (),
    allow_leaks: bool = False,
    control: str | None = None,
    reference: str | None = None,
) -> Plan:
    """Return what the bench would cost on so many workers; nothing is written."""
    designs = with_control(
        design_bench(data, with_yardstick(names), protocol, device, imports), control
    )
    designs[0].conditions.check_data(Listener().say, allow_leaks)
    return plan(designs, workers, reference_of(designs, reference))


def design_bench(
    data: str | Dataset,
    names: Sequence[str],
    protocol: str | Protocol,
    device: str,
    imports: Sequence[str],
    progress: Progress = silent,
) -> list[Design]:
    """A design for each method, everything looked up and checked before anything is written."""
    import_parts(imports)
    declared = protocols[protocol] if isinstance(protocol, str) else protocol
    chosen, on = choose(names), choose_device(device)
    dataset = load(data, progress) if isinstance(data, str) else data
    conditions = open_conditions(dataset, declared, on, imports)
    if list(names) == ["all"]:
        chosen = [name for name in chosen if methods[name].starts in ("any", conditions.starts)]
    return design_in(conditions, chosen)


def with_control(designs: Sequence[Design], control: str | None) -> list[Design]:
    """The designs, and the twin of one of them: the same method with seeds of its own."""
    if control is None:
        return list(designs)
    found = next((design for design in designs if design.name == control), None)
    if found is None or not found.trials:
        searched = [design.name for design in designs if design.trials]
        raise BadInput(
            f"--control {control}: name a method of this bench that is searched:"
            f" {', '.join(searched) or 'none is'}"
        )
    return [*designs, replace(found, twin=True)]


def open_conditions(
    dataset: Dataset, protocol: Protocol, device: str, imports: Sequence[str]
) -> Conditions:
    """What the studies of a bench share."""
    trainval, test = splits.of(dataset, protocol)
    here = tuple(str(Path(name).resolve()) if name.endswith(".py") else name for name in imports)
    return Conditions(describe_data(dataset, trainval), trainval, test, protocol, device, here)


def design_in(conditions: Conditions, names: Sequence[str]) -> list[Design]:
    """A design for each method in the conditions, or in one of its own where the protocol makes an
    exception for it.
    """
    by_exceptions: dict[Mapping[str, SettingValue], Conditions] = {}
    designs = []
    for name in names:
        own, exceptions = conditions, conditions.protocol.exceptions.get(name)
        if exceptions:
            check_exceptions(conditions.protocol, name)
            own = by_exceptions.setdefault(exceptions, replace(conditions, exceptions=exceptions))
        designs.append(Design(own, methods[name]))
    for used in {id(design.conditions): design.conditions for design in designs}.values():
        used.check_trunk()
    for design in designs:
        design.preregistration  # noqa: B018 (raises what does not go together)
    return designs


def with_yardstick(names: Sequence[str]) -> list[str]:
    """The names with that of the baseline that every bench has: what the user has before any
    training.

    >>> with_yardstick(["triplet"])
    ['triplet', 'as_is']
    """
    return [*names, *([] if list(names) == ["all"] or AS_IS in names or not names else [AS_IS])]


def check_exceptions(protocol: Protocol, method: str) -> None:
    """Raise `BadInput` where a protocol gives one method another budget than the others: that is no
    equal condition.
    """
    for path, value in protocol.exceptions[method].items():
        if path in NOT_ASKED:
            raise BadInput(
                f"{protocol.name}: its exception {as_text(path, value)!r} for {method} changes the"
                " budget; all methods have the same"
            )


def choose(names: Sequence[str]) -> list[str]:
    """The methods named, in that order; `all` is every one that suits the trunk."""
    if list(names) == ["all"]:
        return list(methods)
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice or not names:
        raise BadInput(
            f"the method {twice[0]!r} is named twice" if twice else "name at least one method"
        )
    return [methods[name].name for name in names]
