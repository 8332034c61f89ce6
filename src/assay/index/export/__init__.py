"""A model as an ONNX file, with all that somebody without Assay needs to use it.

`to_onnx.py` writes an export once `check.py` has compared it with torch. Loading one takes
onnxruntime alone.
"""

from assay.index.export.runtime import OnnxEmbedder, load_onnx

__all__ = ["OnnxEmbedder", "load_onnx"]
