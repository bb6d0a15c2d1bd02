"""Experiments: run, store raw results, derive tables, figures and reports from them."""
