"""The experiments of the paper, and the demo: `python -m reproduction --help`."""
