"""ICS in a custom training loop of plain PyTorch: a linear head on features, codes, Hamming ranking, mAP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import centerhash as ch


def features_and_labels(count: int, classes: int = 20, width: int = 64) -> tuple[Tensor, Tensor]:
    """Return features (N, D), sums of their labels' directions and noise, and labels (N, C): insert your data here."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.rand(count, classes, generator=generator) < 1 / classes
    labels[torch.arange(count), torch.randint(classes, (count,), generator=generator)] = True
    directions = torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    return labels.float() @ directions + torch.randn(count, width, generator=generator), labels


def main(bits: int = 32, epochs: int = 10) -> float:
    """Train on 1,000 images, rank them for 200 other ones, and return the mAP."""
    features, labels = features_and_labels(1000)
    torch.manual_seed(0)
    head = nn.Linear(features.shape[1], bits)
    loss = ch.losses.ICSLoss(ch.hash_centers(labels.shape[1], bits))
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.02)
    for _ in range(epochs):
        for batch in torch.randperm(len(features)).split(100):
            optimizer.zero_grad()
            loss(head(features[batch]), labels[batch]).backward()
            optimizer.step()

    query_features, query_labels = features_and_labels(200)
    with torch.no_grad():
        queries, database = (ch.binarize(head(rows).numpy()) for rows in (query_features, features))
    result = ch.evaluate_codes(queries, database, query_labels.numpy(), labels.numpy(), k=len(database))
    print(f"mAP {result.map_all:.3f}, random ranking {result.random_all:.3f}")
    return result.map_all


if __name__ == "__main__":
    main()
