"""Parts that users write: their files are imported by name, and their source is hashed."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay.errors import BadInput, in_one_line
from assay.hashing import digest, digest_file
from assay.losses import methods
from assay.losses.loss import Method
from assay.methods.parameters import miner_under
from assay.miners import miners
from assay.protocols import ResolvedProtocol
from assay.records.source import foreign_hash, source_hash
from assay.registry import replacing
from assay.samplers import samplers
from assay.trunks import Trunk, find


def import_parts(names: Iterable[str]) -> None:
    """Import files (`mine.py`) or modules (`mine.losses`) that register parts.

    Parts are methods, losses, miners, samplers, trunks, data sets or metrics.
    """
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except (BadInput, KeyboardInterrupt):
            raise
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise BadInput(f"--import {name} failed: {in_one_line(error)}") from error
            raise BadInput(
                f"--import {name}: there is no such module; give a Python file (mine.py), or a"
                " module that Python finds"
            ) from None
        except BaseException as error:  # a user's own kind of exception, or the end of the program
            raise BadInput(f"--import {name} failed: {in_one_line(error)}") from error


def _import_file(path: Path) -> None:
    if not path.is_file():
        is_there = "it is not a file" if path.exists() else "there is no such file"
        raise BadInput(f"--import {path}: {is_there}; give a Python file")
    full, content = path.resolve(), digest_file(path)
    module_name = f"assay_import_{full.stem}_{digest(str(full))[:16]}"
    if module_name in sys.modules and _imported.get(module_name) == content:
        return
    spec = importlib.util.spec_from_file_location(module_name, full)
    assert spec is not None and spec.loader is not None
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    _imported.pop(module_name, None)
    with replacing(module_name):
        spec.loader.exec_module(module)
    _imported[module_name] = content


_imported: dict[str, str] = {}
"""Hash of each imported file by module name: a file edited since then is imported again."""


def source_of(method: Method, protocol: ResolvedProtocol) -> str:
    """Return a hash of the code in which the parts of a run are written.

    The parts are the trunk of the protocol, its sampler or the method's own, and the method with
    its loss and miner, or its fitter.
    A part of Assay's own counts with all modules that it imports, without comments and docstrings;
    another one by the bytes of its file and by the modules of Assay that the file imports.
    """
    trunk = find(protocol.trunk)
    parts: list[object] = [trunk, samplers[method.sampler or protocol.sampler]]
    parts += method.loss.written_in() if method.loss else ()
    miner = miner_under(method, protocol)
    parts += [miners[miner]] if miner else []
    parts += [method.fitter] if method.fitter else []
    if methods.get(method.name) is method:
        parts.append(sys.modules[methods.origin(method.name)])
    sources = list(dict.fromkeys(_source(part) for part in parts))
    return digest(
        [*sources, *(method.loss.distributions() if method.loss else ()), *_libraries(trunk)]
    )


def trunk_source(name: str) -> str:
    """Return a hash of the file in which a trunk is written and of its libraries' versions."""
    trunk = find(name)
    return digest([_source(trunk), *_libraries(trunk)])


def _libraries(trunk: type[Trunk]) -> list[str]:
    return [f"{library} {version(library)}" for library in trunk.libraries]


def _source(part: Any) -> str:
    """Return the hash of the code of a class, function or module."""
    module = part.__name__ if inspect.ismodule(part) else getattr(part, "__module__", "")
    if module.startswith("assay."):
        return source_hash([module])
    try:
        return foreign_hash(Path(inspect.getfile(part)))
    except (TypeError, OSError):
        raise BadInput(
            f"the code of {part} is in no file; put it in one and pass that with --import"
        ) from None
