"""Codes in files: one code file, or parquet shards for very many images, encoded by this process or by Ray."""
