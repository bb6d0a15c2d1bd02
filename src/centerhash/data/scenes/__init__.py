"""Emoji scenes: the embedded data set, drawn from a seed."""
