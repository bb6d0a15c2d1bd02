"""The experiments of the paper, the demo, and its emoji scenes: `python -m reproduction --help`."""
