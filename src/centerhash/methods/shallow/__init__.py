"""Shallow methods: hash functions fitted on features without back-propagation, one file per family."""
