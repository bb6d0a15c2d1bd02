"""Layouts of datasets on disk, each read into one `Contents`.

To add one, write a module with a reader, put `register_layout` on it, and import the module in `data/dataset.py`.
"""
