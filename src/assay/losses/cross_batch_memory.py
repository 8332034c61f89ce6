"""Cross-batch memory for any loss of pairs or triplets. Shapes: N batch, M references, D dims."""

import inspect
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc
from textwrap import indent
from typing import Any, ClassVar

import torch
from torch import Tensor

from assay.heads import HeadShape
from assay.losses.contrastive import Contrastive
from assay.losses.loss import Loss, Method, losses, methods
from assay.losses.margin import Margin
from assay.losses.multi_similarity import MultiSimilarity
from assay.losses.triplet import Triplet
from assay.miners import Miner, miners
from assay.pairs import Mined, References
from assay.registry import Paper
from assay.space import Real, Space, Value, above, at_least, between


def cross_batch_memory(loss: type[Loss], *, miner: str | None = None) -> type[Loss]:
    """Return a loss that compares each batch also with the embeddings of past batches.

    Its parameters are those of the loss, of the miner and of the memory, by name and with their
    defaults.

    >>> sorted(inspect.signature(cross_batch_memory(Triplet)).parameters)
    ['distance', 'margin', 'memory', 'over', 'warmup', 'weight']

    Args:
        loss: the class of a loss that compares pairs or triplets.
        miner: name of the miner that chooses what is compared, both in the batch and with the
            memory; None: everything is. A method of the new loss names no miner.
    """
    _check_loss(loss)
    mines = None if miner is None else miners[miner]
    own = (miners[miner].departures if miner else ()) + loss.departures
    body = {
        "__doc__": _about(loss, mines),
        "__module__": sys._getframe(1).f_globals["__name__"],
        "__init__": _constructor(loss, mines),
        "normalise": loss.normalise,
        "head_first": loss.head_first,
        "undecayed": tuple(f"loss.{name}" for name in loss.undecayed),
        "departures": (*CrossBatchMemory.departures, *own),
        "wraps": loss,
        "mines": mines,
    }
    made: type[CrossBatchMemory] = type(f"CrossBatch{loss.__name__}", (CrossBatchMemory,), body)
    return made


class CrossBatchMemory(Loss):
    """Compares a batch with itself and, after a warm-up, also with a memory of past embeddings.

    L(z, z) + w L(z, memory)
    L(z, r) compares the batch z with the references r. The memory is a queue of the newest
    embeddings, without their gradient. The batch is enqueued before it is compared; no embedding is
    its own positive, but an older one of the same image is. A memory that is smaller than the batch
    holds the whole batch. The memory is empty when the warm-up ends.

    Args:
        memory: embeddings in the memory, as a share of the training samples.
        warmup: passes over the training samples before the memory is used.
        weight: how much the comparison with the memory counts (w).
    """

    compares = "anything"
    remembers = True
    paper = Paper("Cross-Batch Memory for Embedding Learning", 2020, "arxiv.org/abs/1912.06798")
    departures = (
        (
            "the comparison with the memory is added to that of the batch, as in the authors' code;"
            " the paper's pseudo-code has the memory alone"
        ),
        (
            "the warm-up is a number of passes, not 1,000 steps, and the memory is empty when it"
            " ends, as in the authors' code; the paper fills it with embeddings of random training"
            " samples"
        ),
        "a batch larger than the memory is compared with the whole batch",
    )

    wraps: ClassVar[type[Loss]]
    mines: ClassVar[type[Miner] | None]

    embeddings: Tensor
    labels: Tensor
    enqueued: Tensor
    seen: Tensor

    def __init__(
        self,
        loss: Loss,
        mining: dict[str, Value],
        /,
        *,
        memory: float = 1.0,
        warmup: float = 1.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.loss, self.mining = loss, mining
        self.memory = above(0, "memory", between(0, 1, "memory", memory))
        self.warmup = at_least(0, "warmup", warmup)
        self.weight = at_least(0, "weight", weight)

    @classmethod
    def written_in(cls) -> tuple[type, ...]:
        """Return also the classes of the wrapped loss and of the miner."""
        mines = () if cls.mines is None else (cls.mines,)
        return (*super().written_in(), *cls.wraps.written_in(), *mines)

    @classmethod
    def distributions(cls) -> tuple[str, ...]:
        """Return names and versions of the wrapped loss's packages."""
        return cls.wraps.distributions()

    @classmethod
    def takes_mined(cls) -> bool:
        """Return False: the miner of a method does not see the memory."""
        return False

    def head(self, dim: int) -> HeadShape:
        """Return the shape of the head that the wrapped loss trains."""
        return self.loss.head(dim)

    def setup(self, dim: int, classes: int) -> None:
        """Make the weights of the wrapped loss."""
        self.dim = dim
        self.loss.setup(dim, classes)

    def prepare(self, samples: int, features: int) -> None:
        """Make an empty memory."""
        self.loss.prepare(samples, features)
        self.samples, places = samples, max(1, round(self.memory * samples))
        self.register_buffer("embeddings", torch.zeros(places, self.dim))
        self.register_buffer("labels", torch.zeros(places, dtype=torch.int64))
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None, references: References | None
    ) -> Tensor:
        self._check_memory(z, mined, references)
        value = self._compare(z, y, None)
        is_warm = self.seen.item() >= self.warmup * self.samples
        self.seen += len(y)
        if not is_warm:
            return value
        return value + self.weight * self._compare(z, y, self._enqueue(z.detach(), y))

    def _compare(self, z: Tensor, y: Tensor, references: References | None) -> Tensor:
        """Return the wrapped loss of what the miner chooses."""
        mined = None
        if self.mines is not None:
            # built each time: a training with an object in its loss could not resume
            miner = self.mines(**self.mining)
            miner.normalise = self.normalise
            mined = miner(z.detach(), y, references)
        return self.loss._value(z, y, mined, references)

    def _enqueue(self, z_ND: Tensor, y_N: Tensor) -> References:
        """Put a batch in the place of the oldest embeddings.

        Return the memory as it is then, the batch first and the oldest last.
        """
        places, before, count = len(self.labels), int(self.enqueued.item()), len(y_N)
        batch_N = torch.arange(count, device=y_N.device)
        kept = max(0, min(before, places - count))
        past = (before - 1 - torch.arange(kept, device=y_N.device)) % places
        memory = References(
            torch.cat([z_ND, self.embeddings[past].to(z_ND.dtype)]),
            torch.cat([y_N, self.labels[past]]),
            batch_N,
        )
        newest = batch_N[-places:]
        place = (before + newest) % places
        self.embeddings[place] = z_ND[newest].to(self.embeddings.dtype)
        self.labels[place] = y_N[newest].long()
        self.enqueued += count
        return memory

    def _check_memory(self, z: Tensor, mined: Mined | None, references: References | None) -> None:
        if mined is not None or references is not None:
            raise ValueError(
                f"{type(self).__name__} has references of its own: it takes neither others nor"
                " mined pairs; give the miner to cross_batch_memory(loss, miner=...)"
            )
        if "embeddings" not in self._buffers:
            raise ValueError(
                f"{type(self).__name__} has no memory yet: call setup(dim, classes) and"
                " prepare(samples, features) first"
            )
        if z.shape[1] != self.dim:
            raise ValueError(
                f"setup got dim={self.dim}, but embeddings have {z.shape[1]} dimensions"
            )


def _check_loss(loss: type[Loss]) -> None:
    """Raise a `ValueError` for a loss that cannot be compared with a memory."""
    if not loss.takes_mined():
        raise ValueError(
            f"{loss.__name__} does not compare samples in pairs or triplets (compares ="
            f" {loss.compares!r}), so a memory of samples has no use; wrap a loss of pairs or"
            " triplets"
        )
    if loss.remembers or loss.refresh is not Loss.refresh:
        raise ValueError(
            f"{loss.__name__} fills buffers of its own, which two comparisons at each step would"
            " confuse; wrap a loss that does not"
        )


def _constructor(loss: type[Loss], mines: type[Miner] | None) -> Callable[..., None]:
    """Return a constructor with the parameters of loss, miner and memory."""
    of_loss, of_miner = _parameters(loss), {} if mines is None else _parameters(mines)
    of_memory = _parameters(CrossBatchMemory)
    names = [*of_loss, *of_miner, *of_memory]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"{loss.__name__}: the parameter {twice[0]!r} is taken by two of the loss, the miner"
            " and the memory; rename it in a subclass"
        )
    every = {**of_loss, **of_miner, **of_memory}
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *every.values()])

    def construct(self: CrossBatchMemory, /, **chosen: Any) -> None:
        signature.bind(self, **chosen)

        def given(names: dict[str, Parameter]) -> dict[str, Any]:
            return {name: value for name, value in chosen.items() if name in names}

        if mines is not None:
            mines(**given(of_miner))  # a wrong value is refused here, not by the first batch
        CrossBatchMemory.__init__(self, loss(**given(of_loss)), given(of_miner), **given(of_memory))

    construct.__signature__ = signature  # type: ignore[attr-defined]
    return construct


def _parameters(part: type) -> dict[str, Parameter]:
    """Return the parameters of a constructor that have names."""
    if part.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {
        item.name: item.replace(kind=Parameter.KEYWORD_ONLY)
        for item in inspect.signature(part).parameters.values()
        if item.kind in named
    }


def _about(loss: type[Loss], mines: type[Miner] | None) -> str:
    """Return a docstring with the equations and the arguments of loss, miner and memory."""
    parts = [("L, of", loss), *([] if mines is None else [("mined by", mines)])]
    equations, arguments = [_head(CrossBatchMemory)], []
    for word, part in parts:
        summary, _, equation = _head(part).partition("\n\n")
        equations.append(f"{word} {part.__name__}:\n{indent(equation or summary, ' ' * 4)}")
        arguments.append(_arguments(part))
    arguments = [own for own in (*arguments, _arguments(CrossBatchMemory)) if own]
    return "{}\n\nArgs:\n{}\n".format("\n\n".join(equations), "\n".join(arguments))


def _head(part: type) -> str:
    return cleandoc(part.__doc__ or "").partition("\nArgs:\n")[0].strip()


def _arguments(part: type) -> str:
    return cleandoc(part.__doc__ or "").partition("\nArgs:\n")[2].strip("\n")


MEMORY = Space(memory=Real(0.01, 1, log=True, natural="high"))

CrossBatchContrastive = losses("xbm_contrastive")(cross_batch_memory(Contrastive))
CrossBatchTriplet = losses("xbm_triplet")(cross_batch_memory(Triplet))
CrossBatchMargin = losses("xbm_margin")(cross_batch_memory(Margin))
CrossBatchMultiSimilarity = losses("xbm_multi_similarity")(
    cross_batch_memory(MultiSimilarity, miner="multi_similarity")
)

methods.add(
    Method(
        "xbm_contrastive",
        CrossBatchContrastive,
        space=methods["contrastive"].space | MEMORY,
        about="contrastive, also against a memory of past embeddings",
    ),
    Method(
        "xbm_triplet",
        CrossBatchTriplet,
        space=methods["triplet"].space | MEMORY,
        about="triplet, also against a memory of past embeddings",
    ),
    Method(
        "xbm_margin",
        CrossBatchMargin,
        space=methods["margin"].space | MEMORY,
        about="margin, also against a memory of past embeddings",
    ),
    Method(
        "xbm_multi_similarity",
        CrossBatchMultiSimilarity,
        space=methods["multi_similarity_mined"].space | MEMORY,
        about="multi-similarity, mined in the batch and in a memory of past embeddings",
    ),
)
