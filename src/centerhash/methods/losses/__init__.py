"""Losses: one file per family, one small function per equation."""
