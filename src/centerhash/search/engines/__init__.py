"""Indexes of binary codes: `flat` (exact, a folder), `faiss` (approximate), `milvus` (a server or a cluster)."""
