from __future__ import annotations

import numpy as np
import pytest
import torch

from centerhash.experiments.paper.instances import Classification, classifier_weights
from centerhash.networks.heads import Head


def test_cross_entropy_by_hand() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, 100.0]]), torch.tensor([[True, False], [False, True]])
    loss = Classification()(logits, labels)
    assert float(loss) == pytest.approx(3 * np.log(2) / 4)


def test_classifier_weights_are_a_softmax_over_the_labels() -> None:
    features = np.log(np.array([[1.0, 3.0, 9.0], [5.0, 1.0, 1.0]])).astype(np.float32)
    labels = np.array([[True, True, False], [False, False, False]])
    found = classifier_weights(Head(torch.nn.Identity()), features, labels)
    assert found == pytest.approx(np.array([[0.25, 0.75, 0], [0, 0, 0]]))
