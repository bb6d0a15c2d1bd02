"""Export: one ONNX file from pixels to code."""
