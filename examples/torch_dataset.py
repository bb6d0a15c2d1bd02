"""From a custom torch Dataset to a DataLoader with splits, a plain loop, and an evaluation of the codes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import centerhash as ch

CLASSES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]


def custom_dataset(count: int = 1000, width: int = 32) -> TensorDataset:
    """Return pairs of features (D,) and labels (C,): insert your torch Dataset here."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(count, len(CLASSES), generator=generator) < 0.1
    labels[torch.arange(count), torch.arange(count) % len(CLASSES)] = True
    directions = torch.randn(len(CLASSES), width, generator=generator)
    return TensorDataset(labels.float() @ directions + torch.randn(count, width, generator=generator), labels)


def main(bits: int = 32, epochs: int = 10) -> float:
    """Train a linear head on the training split, rank the database for the queries, and return the mAP."""
    data = ch.Dataset.from_torch(custom_dataset(), classes=CLASSES)
    torch.manual_seed(0)
    head = nn.Linear(32, bits)
    loss = ch.losses.ICSLoss(ch.hash_centers(len(CLASSES), bits))
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.02)
    for _ in range(epochs):
        for features, labels in DataLoader(data.to_torch("train"), batch_size=100, shuffle=True):
            optimizer.zero_grad()
            loss(head(features), labels).backward()
            optimizer.step()

    def codes_and_labels(split: str) -> tuple[np.ndarray, np.ndarray]:
        features, labels = next(iter(DataLoader(data.to_torch(split), batch_size=len(data))))
        return ch.binarize(head(features).detach().numpy()), labels.numpy()

    queries, query_labels = codes_and_labels("query")
    database, database_labels = codes_and_labels("database")
    result = ch.evaluate_codes(queries, database, query_labels, database_labels, k=len(database))
    print(f"{data}: mAP {result.map_all:.3f}, random ranking {result.random_all:.3f}")
    return result.map_all


if __name__ == "__main__":
    main()
