"""Published data sets by name: catalogue, readers, list files, downloads."""
