"""The commands of the command line, a file per subject; `cli.py` puts them together."""
