"""What operations make or wait for while a block runs."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


class Waits(TorchDispatchMode):
    """Counts the operations for which a GPU would make the program wait: sizes and branches that
    depend on values.
    """

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        self.count += by_mask or name in (
            "nonzero",
            "_local_scalar_dense",
            "unique",
            "_unique2",
            "masked_select",
        )
        return func(*args, **(kwargs or {}))
