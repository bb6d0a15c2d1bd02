"""Layouts of data sets on disk, each read into one `Contents`.

`table` has them all and tells which one a folder has; `contents` is what they share. A layout is a module with a reader
and, where one file does not show it, a sign; to add one, add a row to `table.LAYOUTS`.
"""
