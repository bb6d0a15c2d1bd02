"""Layouts of own images on disk, each read into one `Dataset`."""
