from __future__ import annotations

import numpy as np

from centerhash.evaluation import kernels


def test_all_sixty_four_bits_of_a_word_count() -> None:
    full = np.array([[2**64 - 1, 2**63]], np.uint64)
    planes = np.array([[0, 1], [0, 2**63]], np.uint64)
    indices, distances = kernels.nearest(full, planes, 128, 2)
    assert indices.tolist() == [[1, 0]]
    assert distances.tolist() == [[63, 65]]
