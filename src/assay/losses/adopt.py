"""Losses from other libraries: a torch module, for example of pytorch-metric-learning, as a `Loss`.

Shapes: N batch, M references, P positive pairs, T triplets.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import packages_distributions, version
from inspect import Parameter, Signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from assay.losses.loss import Loss
from assay.pairs import Mined, Pairs, References, all_pairs
from assay.registry import first_paragraph

DIM, CLASSES = "embedding_size", "num_classes"
"""Names in pytorch-metric-learning of the dimensions of an embedding and the number of classes."""


def adopt(
    module: type[nn.Module],
    *,
    normalise: bool = False,
    dim: str | None = DIM,
    classes: str | None = CLASSES,
) -> type[Loss]:
    """Return a loss that is computed by a module whose `forward` takes embeddings and labels.

    Its parameters are those of the module's constructor, by name and with their defaults, including
    those that the constructor passes to its bases by `**kwargs`. A module that needs neither
    dimensions nor classes is built at once, any other in `setup`. If `forward` has such parameters,
    `indices_tuple` gets the choice of a miner, `ref_emb` and `ref_labels` the references.

    A method whose module has weights should have `weights_lr` in its space.

    >>> adopt(nn.CrossEntropyLoss)(label_smoothing=0.1)(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)

    Args:
        module: the class, not an instance: every trial builds its own.
        normalise: whether the module gets unit vectors. By default it gets embeddings as they are,
            since losses of pytorch-metric-learning normalise by themselves. A miner sees the same
            vectors as the loss, so with a miner of cosines or distances on the sphere say True.
        dim: which parameter is the number of dimensions; None to keep its default.
        classes: which parameter is the number of classes; None to keep its default.
    """
    _check_class(module)
    takes = _parameters(module, (dim, classes))
    _check_name(module, takes, dim, DIM)
    _check_name(module, takes, classes, CLASSES)
    body = {
        "__doc__": _about(module),
        "__module__": sys._getframe(1).f_globals["__name__"],
        "__init__": _constructor(
            [item for name, item in takes.items() if name not in (dim, classes)]
        ),
        "normalise": normalise,
        "adopts": module,
        "given_by_setup": {
            name: what for name, what in ((dim, "dim"), (classes, "classes")) if name in takes
        },
    }
    made: type[Adopted] = type(module.__name__, (Adopted,), body)
    return made


class Adopted(Loss):
    """The loss that `adopt` makes.

    Subclass it to add a paper, departures, or parameters that are neither numbers nor words.

    Attributes:
        adopts: the class of the module.
        given_by_setup: the module's parameters that `setup` gives, each as `dim` or `classes`.
        chosen: the other parameters that were given.
        module: the module itself, once it is built.
    """

    adopts: ClassVar[type[nn.Module]]
    given_by_setup: ClassVar[dict[str, str]]
    chosen: dict[str, Any]
    module: nn.Module

    def setup(self, dim: int, classes: int) -> None:
        """Build the module if it depends on either number."""
        if self.given_by_setup:
            numbers = {"dim": dim, "classes": classes}
            self.module = self.adopts(
                **self.chosen, **{name: numbers[what] for name, what in self.given_by_setup.items()}
            )

    @classmethod
    def written_in(cls) -> tuple[type, ...]:
        """Return also the adopted module's class, and its bases that are not of torch or Python."""
        adopted = (part for part in cls.adopts.__mro__ if not _is_given(part))
        return (*super().written_in(), *adopted)

    @classmethod
    def distributions(cls) -> tuple[str, ...]:
        """Return names and versions of the packages of the module and its bases, except torch."""
        packages = {_package(part) for part in cls.adopts.__mro__ if not _is_given(part)}
        return tuple(
            sorted(
                f"{name} {version(name)}"
                for package in packages
                for name in _installed().get(package, ())
            )
        )

    @classmethod
    def takes_mined(cls) -> bool:
        """Return whether the module's `forward` takes the choice of a miner."""
        return "indices_tuple" in inspect.signature(cls.adopts.forward).parameters

    def forward(
        self, z: Tensor, y: Tensor, mined: Mined | None, references: References | None
    ) -> Tensor:
        if "module" not in self._modules:
            raise ValueError(
                f"{type(self).__name__} depends on the data: call setup(dim, classes) first"
            )
        self._check_taken("mined pairs", mined, "indices_tuple")
        self._check_taken("references", references, "ref_emb")
        if mined is None and references is not None and references.own is not None:
            # without pairs the module would take each sample for its own positive
            mined = all_pairs(y, references)
        more: dict[str, Any] = {}  # by their names in pytorch-metric-learning
        if mined is not None:
            more["indices_tuple"] = indices(mined)
        if references is not None:
            more |= {"ref_emb": references.z, "ref_labels": references.y}
        value = self.module(z, y, **more)
        return self._scalar(value, z.requires_grad and torch.is_grad_enabled())

    def _check_taken(self, what: str, given: object, name: str) -> None:
        if given is not None and name not in inspect.signature(self.adopts.forward).parameters:
            raise ValueError(
                f"{type(self).__name__} takes no {what}: its forward has no parameter {name!r}"
            )

    def _scalar(self, value: object, trained: bool) -> Tensor:
        name = type(self).__name__
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = (
                f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else f"a {type(value).__name__}"
            )
            raise ValueError(
                f"{name} gave {found}, but a loss is one number in a tensor; reduce it, for example"
                " by .mean()"
            )
        if trained and not value.requires_grad:
            raise ValueError(
                f"{name} gave a number without gradient; use no .item(), .detach() or numpy on the"
                " way, and return 0 * z.sum() where there is nothing to compare"
            )
        return value.reshape(())


def indices(mined: Mined) -> tuple[Tensor, ...]:
    """Return pairs as (a, p, a, n), triplets as (a, p, n), as pytorch-metric-learning does.

    >>> indices(Pairs(torch.eye(2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)))
    (tensor([0, 1]), tensor([0, 1]), tensor([], dtype=torch.int64), tensor([], dtype=torch.int64))
    """
    if isinstance(mined, Pairs):
        return (*mined.positive.nonzero(as_tuple=True), *mined.negative.nonzero(as_tuple=True))
    pair_T, negative_T = mined.negative.nonzero(as_tuple=True)
    return mined.anchor[pair_T], mined.positive[pair_T], negative_T


def _about(module: type) -> str:
    """Return the first paragraph of the docstring, or a name where it begins with a list."""
    about = first_paragraph(module.__doc__)
    begins_with_list = (module.__doc__ or "").strip().partition("\n")[0].endswith(":")
    if not about or begins_with_list:
        return f"{module.__name__} of {module.__module__}."
    return about


def _check_class(module: object) -> None:
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        raise ValueError(
            "adopt takes a class of torch.nn.Module, which every trial builds with its own"
            f" parameters; got {module!r}"
        )
    if issubclass(module, Loss):
        raise ValueError(f"{module.__name__} is a Loss already: give it to Method as it is")


def _check_name(module: type, takes: dict[str, Parameter], name: str | None, usual: str) -> None:
    if name not in (None, usual, *takes):
        raise ValueError(
            f"{module.__name__} has no parameter {name!r}; it has {', '.join(takes) or 'none'}"
        )


_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _parameters(
    module: type[nn.Module], given_by_setup: tuple[str | None, ...]
) -> dict[str, Parameter]:
    """Return the constructor's parameters, and those that it passes to its bases by `**kwargs`.

    A parameter of a base counts if it has a default or if `setup` gives it. Any other is filled in
    by the subclass.
    """
    found: dict[str, Parameter] = {}
    classes = module.__mro__[: module.__mro__.index(nn.Module)]  # in the order of their calls
    constructors = [vars(part)["__init__"] for part in classes if "__init__" in vars(part)]
    for number, constructor in enumerate(constructors):
        own = list(inspect.signature(constructor).parameters.values())[1:]
        for item in own:
            if item.kind in _NAMED and (
                number == 0 or item.default is not Parameter.empty or item.name in given_by_setup
            ):
                found.setdefault(item.name, item.replace(kind=Parameter.KEYWORD_ONLY))
        if all(item.kind is not Parameter.VAR_KEYWORD for item in own):
            break
    return found


def _constructor(parameters: list[Parameter]) -> Callable[..., None]:
    """Return a constructor with these parameters, which `inspect.signature` shows."""
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters])

    def construct(self: Adopted, /, **chosen: Any) -> None:
        signature.bind(self, **chosen)
        Loss.__init__(self)
        self.chosen = chosen
        if not self.given_by_setup:
            self.module = self.adopts(**chosen)

    construct.__signature__ = signature  # type: ignore[attr-defined]
    return construct


def _package(part: type) -> str:
    return part.__module__.partition(".")[0]


def _is_given(part: type) -> bool:
    """Return whether a class is torch's, whose version is in every run's key, or Python's."""
    return _package(part) == "torch" or _package(part) in sys.stdlib_module_names


@cache
def _installed() -> dict[str, list[str]]:
    return dict(packages_distributions())
