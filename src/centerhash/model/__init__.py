"""Trained models: HashModel, its card, and the Hugging Face hub."""
