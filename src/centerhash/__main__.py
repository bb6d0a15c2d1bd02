"""`python -m centerhash` is the command line."""

from __future__ import annotations

from centerhash.cli import main

main()
