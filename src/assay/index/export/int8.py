"""Weights of 8 bits, for a smaller file.

Only the file is smaller: onnxruntime makes the weights float32 again when it opens it. So a search
is as fast as before, and the activations keep their precision. onnxruntime's own dynamic
quantisation computes with 8 bits instead. Of lite0 it takes three times as long, and its embeddings
have cosines down to 0.65 to those of torch, where these have 0.99 (`benchmarks/export.py`); and it
fails on graphs with a head of another width than the features.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 32
"""Weights per channel below which a layer keeps float32: depthwise and first convolutions, which
are small and lose most.
"""

LAYERS = ("Conv", "Gemm", "MatMul")
"""Operators whose weights are stored with 8 bits."""


def store_as_int8(graph: bytes) -> bytes:
    """Return the graph with large weights as 8 bits, and one scale for each output channel.

    w ~ s_c q,  s_c = max |w_c| / 127,  q = round(w / s_c)
    """
    import onnx

    model = onnx.load_from_string(graph)
    uses: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            uses.setdefault(name, []).append(node)
    for tensor in list(model.graph.initializer):
        weights = onnx.numpy_helper.to_array(tensor)
        users = uses.get(tensor.name, [])
        if weights.dtype != np.float32 or weights.ndim < 2 or not users:
            continue
        axis = _axis_of_outputs(users[0], weights.ndim)
        alike = all(
            user.op_type in LAYERS
            and user.input[1] == tensor.name
            and _axis_of_outputs(user, weights.ndim) == axis
            for user in users
        )
        if not alike or weights.size // weights.shape[axis] < LEAST:
            continue
        small, scale = quantise(weights, axis)
        stored = f"{tensor.name}.int8", f"{tensor.name}.scale"
        model.graph.initializer.remove(tensor)
        for array, name in ((small, stored[0]), (scale, stored[1])):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        expand = onnx.helper.make_node("DequantizeLinear", stored, [tensor.name], axis=axis)
        model.graph.node.insert(0, expand)
    content: bytes = model.SerializeToString()
    return content


def quantise(
    weights: NDArray[np.float32], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return weights as 8 bits, and the scale of each channel along the axis.

    >>> quantise(np.array([[0.5, -1.0], [0.0, 0.254]], dtype=np.float32), 0)[0]
    array([[  64, -127],
           [   0,  127]], dtype=int8)
    """
    others = tuple(one for one in range(weights.ndim) if one != axis)
    largest = np.abs(weights).max(others, keepdims=True)
    scale = np.where(largest > 0, largest, 1).astype(np.float32) / np.float32(127)
    return np.rint(weights / scale).clip(-127, 127).astype(np.int8), scale.reshape(-1)


def _axis_of_outputs(node: Any, ndim: int) -> int:
    """Return the axis of a layer's weights along which its outputs lie."""
    turned = any(one.name == "transB" and one.i for one in node.attribute)
    return 0 if node.op_type == "Conv" or turned else ndim - 1
