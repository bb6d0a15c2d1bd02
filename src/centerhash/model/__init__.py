"""Trained models: HashModel, their exchange on the Hugging Face hub, and their export as ONNX files."""
