"""Hashes of source code: which modules some code computes with, and what they say to Python.

Comments, docstrings and layout are no part of a hash, and neither is the version of Python. The
modules are found by reading import statements, inside functions too, and not in `sys.modules`: a
process that has computed something before has imported more.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from assay.hashing import digest, digest_bytes

PACKAGE = Path(__file__).parents[1]

PART_FOLDERS = ("assay.losses", "assay.miners", "assay.samplers", "assay.trunks")
"""Packages that import every module of their folder, of which a run uses the one that it names.

The key of a run holds the hash of each part that the run uses, so a new loss changes no other key.
"""


def source_hash(modules: Iterable[str], package: Path = PACKAGE) -> str:
    """Return the hash of these modules of Assay and of all modules of Assay that they import.

    Python runs the packages that a module lies in before the module: their own code counts too,
    but not what they import and export for others. `assay/__init__.py`, which only looks up names,
    is no part. The installed package is read once: a process computes with what it has loaded.
    """
    read = _hash_once if package == PACKAGE else _hash_modules
    return read(tuple(sorted(modules)), package)


def _hash_modules(modules: tuple[str, ...], package: Path) -> str:
    """Compute what `source_hash` returns."""
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        tree, found[name] = _parse(_file_of(package, name).read_bytes())
        waiting += _imports(package, name, tree)
    parents = {name.rpartition(".")[0] for name in found if name.count(".") > 1}
    own = {f"in {name}": _own_code(_file_of(package, name).read_bytes()) for name in parents}
    return digest(sorted((found | own).items()))


_hash_once = lru_cache(maxsize=1024)(_hash_modules)


def foreign_hash(file: Path, package: Path = PACKAGE) -> str:
    """Return the hash of a user's file: of its bytes, and of the code of Assay that it imports.

    A file that imports `assay` itself may use anything of it: all of Assay counts.
    """
    content = file.read_bytes()
    try:
        tree = _parse(content)[0]
    except (SyntaxError, ValueError):  # no Python: a compiled module
        return digest_bytes(content)
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    used = modules_below("assay", package) if "assay" in names else _imports(package, "", tree)
    return digest([digest_bytes(content), source_hash(used, package)])


def code_hash(file: str) -> str:
    """Return the hash of one module's own code, of its `__file__`."""
    return _parse(Path(file).read_bytes())[1]


def class_hash(kind: type) -> str:
    """Return the hash of the module of a class: of Assay's own by its code, of a user's as a file.

    A class that was typed into a session is in no file, and counts by its name.
    """
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):
        return digest(f"{kind.__module__}.{kind.__qualname__}")
    return code_hash(file) if kind.__module__.startswith("assay.") else foreign_hash(Path(file))


def modules_below(package_name: str, package: Path = PACKAGE) -> list[str]:
    """Return the names of a package of Assay and of all modules in its folder."""
    folder = package.joinpath(*package_name.split(".")[1:])
    names = [path.relative_to(package.parent).with_suffix("") for path in folder.rglob("*.py")]
    return sorted(".".join(name.parts).removesuffix(".__init__") for name in names)


@lru_cache(maxsize=1024)
def _parse(content: bytes) -> tuple[ast.Module, str]:
    """Return the syntax tree of a module and the hash of its code."""
    tree, words = ast.parse(content), list[str]()
    _spell(tree, words)
    return tree, digest_bytes("".join(words).encode())


@lru_cache(maxsize=1024)
def _own_code(content: bytes) -> str:
    """Return the hash of what a package's `__init__` does beside importing and exporting names."""
    words = list[str]()
    for node in _parse(content)[0].body:
        exports = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (exports or isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node)):
            _spell(node, words)
    return digest_bytes("".join(words).encode())


def _file_of(package: Path, name: str) -> Path:
    """Return the file of a module, or of a package's `__init__`."""
    path = package.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _spell(node: ast.AST, words: list[str]) -> None:
    """Append the syntax tree as text, without docstrings.

    Empty fields are left out: newer versions of Python have more of them.
    """
    words.append(f"({type(node).__name__}")
    for field in node._fields:
        value = getattr(node, field, None)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, ast.AST):
                if not _is_docstring(item):
                    words.append(f" {field}:")
                    _spell(item, words)
            elif item is not None or isinstance(value, list):
                words.append(f" {field}={item!r}")
    words.append(")")


def _is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a text and nothing else, which Python does not execute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imports(package: Path, name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the modules of Assay that a module imports, wherever in it."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("assay."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "assay":
            for alias in node.names:
                yield _origin(package, node.module or "", alias.name)
        elif isinstance(node, ast.Expr) and name not in PART_FOLDERS and _is_folder_import(node):
            yield from modules_below(name, package)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a module but those that only a type checker sees."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, block, [])
            waiting += inside if isinstance(inside, list) else []


def _is_folder_import(node: ast.Expr) -> bool:
    """Return whether a statement is a call of `import_folder`."""
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "import_folder"
    )


def _origin(package: Path, module: str, name: str) -> str:
    """Return the module that a name comes from: `from assay.stats import spread` reads one file.

    A package that imports its whole folder stands for itself.
    """
    if _file_of(package, f"{module}.{name}").exists():
        return f"{module}.{name}"
    path = _file_of(package, module)
    if path.name != "__init__.py":
        return module
    body = _parse(path.read_bytes())[0].body
    whole = any(isinstance(node, ast.Expr) and _is_folder_import(node) for node in body)
    for node in body if module in PART_FOLDERS or not whole else ():
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _origin(package, node.module or "", name)
    return module
