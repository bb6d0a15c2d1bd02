"""Indexes of binary codes: `flat` (a folder), `milvus` (a file, a server or a cluster)."""
