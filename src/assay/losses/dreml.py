"""Deep randomised ensembles. Shapes: N batch, C classes, L members, D meta-classes, W dims."""

import torch
from torch import Tensor

from assay.heads import HeadShape
from assay.losses.loss import Loss, Method, losses, methods
from assay.losses.proxies import check_labels, check_width, cross_entropy
from assay.registry import Paper
from assay.space import Integer, Space, whole_number


@losses("dreml")
class DREML(Loss):
    """Has each member of an ensemble classify into its own random groups of the classes.

    sum_l  mean_i  -log( e^(z_il,g) / sum_d e^(z_ild) ),  g = g_l(y_i)
    z_il are the D raw numbers of member l, one part of the head; g_l maps the C classes at random
    onto D meta-classes, whose numbers of classes differ by at most 1. Members share no weight of
    the head, so the sum trains each as it would be trained alone. With fewer classes than
    meta-classes, each class is a meta-class of its own and the others stay empty.

    Args:
        meta_classes: into which a member classifies, and its width (D); at most the dims there are.
        members: of the ensemble (L); 0: as many as the dims have room for.
    """

    compares = "classes"
    normalise = False
    paper = Paper("Deep Randomized Ensembles for Metric Learning", 2018, "arxiv.org/abs/1808.04469")
    departures = (
        (
            "the members are heads of one trunk, trained together, instead of a network each; on"
            " features that is the same"
        ),
        (
            "as many members of D numbers as the dimension of the protocol has room for, instead of"
            " 48 members of 12 numbers"
        ),
    )

    groups: Tensor

    def __init__(self, *, meta_classes: int = 12, members: int = 0) -> None:
        super().__init__()
        self.meta_classes = whole_number(2, "meta_classes", meta_classes)
        self.members = whole_number(0, "members", members)

    def head(self, dim: int) -> HeadShape:
        """Return a part for each member."""
        width = min(self.meta_classes, dim)
        room = dim // width
        return HeadShape((width,) * (min(self.members, room) or room))

    def setup(self, dim: int, classes: int) -> None:
        """Draw the meta-class of each class for each member."""
        parts = self.head(dim).parts
        self.dim, even = dim, torch.arange(classes) % parts[0]
        drawn = [even[torch.randperm(classes)] for _ in parts]
        self.register_buffer("groups", torch.stack(drawn, 1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        check_labels(y, len(self.groups))
        check_width(z, self.dim)
        members, width = self.groups.shape[1], min(self.meta_classes, self.dim)
        logits_XD = z[:, : members * width].reshape(-1, width)
        return members * cross_entropy(logits_XD, self.groups[y.long()].flatten())


SPACE = Space(meta_classes=Integer(4, 48))

methods.add(
    Method(
        "dreml",
        DREML,
        batch="classification",
        space=SPACE,
        about="an ensemble of softmaxes, each over random groups of the classes",
    ),
    Method(
        "dreml_one",
        DREML,
        batch="classification",
        space=SPACE,
        fixed={"members": 1},
        own_departures=("a single member of the ensemble, of D numbers only",),
        about="a softmax over random groups of the classes",
    ),
)
