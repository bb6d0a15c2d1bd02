"""Layouts of datasets on disk, each read into one `Contents`; `detection` has their table."""
