"""Readers of the layouts of datasets on disk; each returns `Contents`, and `detection` has their table."""
