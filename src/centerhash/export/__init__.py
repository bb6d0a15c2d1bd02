"""Models that leave Python: one ONNX file per model, checked against PyTorch's codes before it is written.

from centerhash.export import export_model
export_model(model, "model.onnx")
"""

from __future__ import annotations

from centerhash.export.onnx import CodeComparison, Exported, compare_codes, export_model

__all__ = ["CodeComparison", "Exported", "compare_codes", "export_model"]
