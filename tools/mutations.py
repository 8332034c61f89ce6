"""Single faults in Python source: which there are, drawing some, finding them in another tree.

A fault is known by its text (function, statement, expression), not by its file and line.
"""

import ast
import difflib
import functools
import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import accumulate
from pathlib import Path
from typing import Any

SIMILAR = 0.65
"""Similarity, mean of statement and function, from which an edited statement is the same one."""


@dataclass(frozen=True)
class Mutant:
    """One fault: the text that identifies it, its place in a tree, and whether tests caught it.

    Args:
        function: name of the innermost function around it, or of the class.
        statement: the smallest statement around it, without the statements inside that one.
        kind: which sort of fault.
        was: the expression that is replaced.
        becomes: what replaces the expression.
        ordinal: number among faults of the same text in the same function.
        body: the whole function, or the statement where no function is around it.
        path: file, below the package.
        name: function or class with the classes and functions around it.
        line: first line of the expression.
        start: first byte of the expression in the file.
        end: first byte after it.
        area: the area that it was drawn for.
        id: the same in all trees.
        found: how it was found in this tree.
        outcome: caught, survived or gone; empty before the tests ran.
        by: the first test that failed, or "no test"; empty before the tests ran.
        seconds: how long the tests took.
    """

    function: str
    statement: str
    kind: str
    was: str
    becomes: str
    ordinal: int
    body: str
    path: str
    name: str
    line: int
    start: int
    end: int
    area: str = ""
    id: str = ""
    found: str = "drawn"
    outcome: str = ""
    by: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        place = f"{self.area:8} {self.path}:{self.line} {self.name} [{self.found}]"
        return f"{place} {self.kind}: {self.was}  ->  {self.becomes}"


# --- which faults there are ----------------------------------------------------------------------

Proposal = tuple[str, ast.AST, ast.AST]
"""Kind of fault, the node to replace, its replacement."""

OPERATORS: tuple[tuple[Any, Any], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
OPPOSITE = {one: other for pair in OPERATORS for one, other in (pair, pair[::-1])}
FUNCTIONS = (("min", "max"), ("any", "all"), ("amin", "amax"), ("minimum", "maximum"))
TWIN = {one: other for pair in FUNCTIONS for one, other in (pair, pair[::-1])}
SKIPPED_CALLS = re.compile(r"(log|logger|logging|warnings|console)\.|(print|Paper|TypeVar)$")
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}
INNER_FIELDS = {"body", "orelse", "finalbody", "handlers", "cases", "decorator_list"}


def change(node: Any, **values: object) -> Any:
    """Return a shallow copy of the node with other fields."""
    changed = copy(node)
    vars(changed).update(values)
    return changed


def is_string(node: ast.AST) -> bool:
    """Tell whether the node is a literal string or bytes."""
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr)


def is_number(node: ast.AST) -> bool:
    """Tell whether the node may be a number: neither a string nor a list or tuple."""
    return not is_string(node) and not isinstance(node, ast.List | ast.Tuple)


def has_opposite(test: ast.expr) -> bool:
    """Tell whether flipping the condition's own `==` or dropping its `not` negates it already."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def propose_for_condition(test: ast.expr) -> Iterator[Proposal]:
    """Yield the condition negated, and without each of its elements."""
    if not has_opposite(test):
        yield "negate", test, ast.UnaryOp(ast.Not(), test)
    if isinstance(test, ast.BoolOp):
        for number in range(len(test.values)):
            rest = test.values[:number] + test.values[number + 1 :]
            yield "drop element", test, rest[0] if len(rest) == 1 else change(test, values=rest)


def propose_for_return(value: ast.expr, returns: str) -> Iterator[Proposal]:
    """Yield the wrong value that fits what the function is declared to return."""
    if returns in ("int", "float", "Tensor"):
        yield "return", value, ast.UnaryOp(ast.USub(), value)
    elif returns == "bool" and not has_opposite(value):
        yield "return", value, ast.UnaryOp(ast.Not(), value)
    elif returns != "bool" and not is_string(value) and ast.unparse(value) != "None":
        yield "return", value, ast.Constant(None)


def propose(node: ast.AST, returns: str) -> Iterator[Proposal]:
    """Yield the faults of one node; `returns` is the annotation of the function around it."""
    match node:
        case ast.Compare(ops=ops):
            for number, op in enumerate(ops):
                flipped = [*ops[:number], OPPOSITE[type(op)](), *ops[number + 1 :]]
                yield "comparison", node, change(node, ops=flipped)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OPPOSITE:
            if is_number(left) and is_number(right):
                yield "arithmetic", node, change(node, op=OPPOSITE[type(op)]())
        case ast.AugAssign(op=op, value=value) if type(op) in OPPOSITE and is_number(value):
            yield "arithmetic", node, change(node, op=OPPOSITE[type(op)]())
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            yield "constant", node, change(node, value=number + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "drop not", node, operand
        case ast.BoolOp(op=op):
            yield "and/or", node, change(node, op=OPPOSITE[type(op)]())
        case ast.Call(func=ast.Name(id=name) as called) if name in TWIN:
            yield "function", called, change(called, id=TWIN[name])
        case ast.Call(func=ast.Attribute(attr=name) as called) if name in TWIN:
            yield "function", called, change(called, attr=TWIN[name])
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from propose_for_condition(test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from propose_for_condition(test)
        case ast.Return(value=ast.expr() as value):
            yield from propose_for_return(value, returns)


def is_skipped(node: ast.AST) -> bool:
    """Tell whether faults below the node mean little: messages, logging, assertions, types."""
    match node:
        case ast.FunctionDef(name=name):
            return name in ("__repr__", "__str__")
        case ast.If(test=test):
            return any(word in ast.unparse(test) for word in ("TYPE_CHECKING", "__name__"))
        case ast.Call(func=called):
            return bool(SKIPPED_CALLS.match(ast.unparse(called)))
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)


@functools.cache
def write_head(node: ast.stmt) -> str:
    """Return the text of a statement without the statements inside it."""
    return ast.unparse(change(node, **{name: [] for name in INNER_FIELDS & set(node._fields)}))


@functools.cache
def write_body(node: ast.stmt) -> str:
    """Return the text of a statement without its docstring."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
        node = change(node, body=node.body[1:] or [ast.Pass()])
    return ast.unparse(node)


def walk(
    node: ast.AST, names: tuple[str, ...], around: ast.FunctionDef | None, at: ast.stmt | None
) -> Iterator[tuple[Proposal, tuple[str, ...], ast.stmt, ast.stmt]]:
    """Yield each fault below the node with the names, the function and the statement around it."""
    if is_skipped(node):
        return
    at = node if isinstance(node, ast.stmt) else at
    for proposal in propose(node, ast.unparse(around.returns) if around and around.returns else ""):
        assert at is not None, "only the module itself is in no statement, and it has no fault"
        yield proposal, names, around or at, at
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = (*names, node.name)
    around = node if isinstance(node, ast.FunctionDef) else around
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in SKIPPED_FIELDS:
                yield from walk(child, names, around, at)


def find_faults(package: Path) -> Iterator[Mutant]:
    """Yield every fault that can be put into the package, in the order of files."""
    for file in sorted(package.rglob("*.py")):
        source = file.read_bytes()
        starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
        path, equals = str(file.relative_to(package)), Counter[tuple[str, ...]]()
        for (kind, target, wrong), names, around, at in walk(ast.parse(source), (), None, None):
            spot: Any = target
            texts = (write_head(at), kind, ast.unparse(target), ast.unparse(wrong))
            ordinal = equals[names + texts]
            equals[names + texts] += 1
            yield Mutant(
                names[-1] if names else "",
                *texts,
                ordinal,
                body=write_body(around),
                path=path,
                name=".".join(names),
                line=spot.lineno,
                start=starts[spot.lineno - 1] + spot.col_offset,
                end=starts[spot.end_lineno - 1] + spot.end_col_offset,
            )


def apply(source: bytes, mutant: Mutant) -> bytes:
    """Return the source with the fault in it."""
    is_whole_statement = mutant.was == mutant.statement
    wrong = mutant.becomes if is_whole_statement else f"({mutant.becomes})"
    return source[: mutant.start] + wrong.encode() + source[mutant.end :]


# --- choosing faults -----------------------------------------------------------------------------


def is_in(mutant: Mutant, patterns: Sequence[str]) -> bool:
    """Tell whether a pattern, `file` or `file::name`, covers the place of the fault."""
    names = ("", *mutant.name.split("."))
    parts = (pattern.partition("::") for pattern in patterns)
    return any(fnmatch(mutant.path, file) and name in names for file, _, name in parts)


def draw(faults: Sequence[Mutant], area: str, count: int, generator: random.Random) -> list[Mutant]:
    """Draw faults at random: a kind, then one of that kind, in a statement that has none yet."""
    kinds = defaultdict[str, list[Mutant]](list)
    for fault in faults:
        kinds[fault.kind].append(fault)
    drawn = dict[str, Mutant]()
    while kinds and len(drawn) < count:
        kind = generator.choice(sorted(kinds))
        fault = kinds[kind].pop(generator.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]
        statement = f"{area} {fault.path} {fault.name} {fault.statement}"
        text = f"{statement} {kind} {fault.was} {fault.becomes} {fault.ordinal}"
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        drawn.setdefault(statement, replace(fault, area=area, id=key))
    return list(drawn.values())


@functools.cache
def compare_texts(one: str, other: str) -> float:
    """Return how similar two texts are, word by word; 1 for equal ones."""
    words: list[list[str]] = [re.findall(r"\w+|\S", text) for text in (one, other)]
    return difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).ratio()


def rename(mutant: Mutant, renames: dict[str, str]) -> Mutant:
    """Return the mutant with other identifiers in its texts."""
    if not renames:
        return mutant
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, renames))})\b")
    fields = ("function", "statement", "was", "becomes", "body", "name")
    texts: Any = {
        name: pattern.sub(lambda old: renames[old[0]], getattr(mutant, name)) for name in fields
    }
    return replace(mutant, **texts)


def find_again(old: Mutant, faults: Sequence[Mutant], renames: dict[str, str]) -> Mutant:
    """Return the old fault at its place in another tree, given all faults of that tree.

    Its `found` says how: "exact" (equal statement in a function of that name), "similar" (an edited
    statement there), "moved" (a function of another name), or "gone", which has no place.
    """
    best, best_rank = replace(old, found="gone", outcome="gone"), (0.0, 0.0, 0.0)
    wanted = rename(old, renames)
    for fault in faults:
        here = rename(fault, renames) if fault.kind == old.kind else fault
        if (here.kind, here.was, here.becomes) != (wanted.kind, wanted.was, wanted.becomes):
            continue
        statement = compare_texts(here.statement, wanted.statement)
        if statement <= 2 * SIMILAR - 1:
            continue
        score = (statement + compare_texts(here.body, wanted.body)) / 2
        named = here.function == wanted.function
        exact = named and here.statement == wanted.statement
        place = compare_texts(f"{here.path} {here.name}", f"{wanted.path} {wanted.name}")
        rank = (exact + 0.1 * named + score, place, float(here.ordinal == wanted.ordinal))
        if (exact or score >= SIMILAR) and rank > best_rank:
            way = f"{'exact' if exact else 'similar' if named else 'moved'} {score:.2f}"
            best, best_rank = replace(fault, area=old.area, id=old.id, found=way), rank
    return best
