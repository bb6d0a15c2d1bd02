"""Benchmarks: commands that make the figures of README and docs again."""
