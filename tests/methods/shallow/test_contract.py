"""The contract of every shallow method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from centerhash.codes import binarize
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.methods.shallow.base import ShallowHash
from centerhash.methods.shallow.bre import BRE
from centerhash.methods.shallow.ksh import KSH
from centerhash.methods.shallow.projections import ITQ, LSH, SH
from centerhash.methods.shallow.sdh import SDH

Data = tuple[NDArray[np.float32], NDArray[np.bool_]]
Case = tuple[type[ShallowHash], dict[str, Any]]

CASES: dict[str, Case] = {
    "lsh": (LSH, {}),
    "sh": (SH, {}),
    "itq": (ITQ, {}),
    "bre": (BRE, {"samples": 150, "points": 20}),
    "bre-unsupervised": (BRE, {"samples": 150, "points": 20, "supervised": False}),
    "ksh": (KSH, {"anchors": 60, "labeled": 120}),
    "sdh": (SDH, {"anchors": 100}),
}
SUPERVISED = ["bre", "ksh", "sdh"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def fit(case: Case, data: Data, bits: int = 16, seed: int = 0) -> ShallowHash:
    cls, options = case
    return cls(bits, seed=seed, **options).fit(*data)


@pytest.fixture(scope="module")
def fitted(case: Case, clusters: Data) -> ShallowHash:
    """A method with 16 bits and the seed 0, which tests must not change."""
    return fit(case, clusters)


@pytest.mark.parametrize("bits", [8, 150])
def test_few_rows(case: Case, clusters: Data, bits: int) -> None:
    few = clusters[0][:7], clusters[1][:7]
    codes = binarize(fit(case, few, bits=bits).transform(clusters[0]))
    assert codes.shape == (200, bits)
    assert len(np.unique(codes, axis=0)) > 1


def test_degenerate_features(case: Case, clusters: Data) -> None:
    features = np.repeat(clusters[0][:30], 4, axis=0)
    features[:, 3], features[:, 4] = 0, 7
    features[5] = 0
    labels = np.repeat(clusters[1][:30], 4, axis=0)
    fitted = fit(case, (features, labels))
    values = fitted.transform(features)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(binarize(values)[8], binarize(values)[9])


def test_rows_without_labels(case: Case, clusters: Data) -> None:
    labels = clusters[1].copy()
    labels[::3] = False
    labels[1::5] = True
    assert np.isfinite(fit(case, (clusters[0], labels)).transform(clusters[0])).all()


def test_needs_labels(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    nothing = clusters[0], np.zeros_like(clusters[1])
    if case in [CASES[name] for name in SUPERVISED]:
        with pytest.raises(DataError):
            fit(case, nothing)
    else:
        unlabeled = case[0](16, **case[1]).fit(clusters[0]).transform(clusters[0])
        np.testing.assert_array_equal(unlabeled, fitted.transform(clusters[0]))


def test_wrong_inputs(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    with pytest.raises(DataError):
        fit(case, (np.ones_like(clusters[0]), clusters[1]))
    with pytest.raises(ConfigError):
        case[0](16, gama=1)
    with pytest.raises(ValueError, match="arrays"):
        case[0].from_arrays({"gamma": np.zeros(1)})
    with pytest.raises(InputError):
        fitted.transform(clusters[0][:, 1:])
    with pytest.raises(InputError):
        fitted.transform(np.full((2, 20), np.nan))


def test_progress(case: Case, clusters: Data) -> None:
    reports: list[tuple[int, int]] = []
    case[0](8, **case[1]).fit(*clusters, lambda stage, done, total, note="": reports.append((done, total)))
    assert [done for done, _ in reports] == list(range(1, len(reports) + 1))
    assert {total for _, total in reports} == {len(reports)}
    assert reports


def test_fit_in_pipeline(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    pipeline = Pipeline([("hash", case[0](16, **case[1])), ("codes", FunctionTransformer(binarize))])
    codes = pipeline.fit(*clusters).transform(clusters[0])
    np.testing.assert_array_equal(codes, binarize(fitted.transform(clusters[0])))
