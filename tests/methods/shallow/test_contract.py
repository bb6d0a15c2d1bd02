"""What holds for every shallow method."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.codes import binarize
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.core.options import MethodOptions
from centerhash.methods.shallow.base import ShallowHash, ShallowOptions
from centerhash.methods.shallow.bre import Bre, BreOptions
from centerhash.methods.shallow.ksh import Ksh, KshOptions
from centerhash.methods.shallow.projections import Itq, ItqOptions, Lsh, Sh
from centerhash.methods.shallow.sdh import Sdh, SdhOptions

Data = tuple[NDArray[np.float32], NDArray[np.bool_]]
Case = tuple[type[ShallowHash], MethodOptions]

CASES: dict[str, Case] = {
    "lsh": (Lsh, ShallowOptions()),
    "sh": (Sh, ShallowOptions()),
    "itq": (Itq, ItqOptions()),
    "bre": (Bre, BreOptions(samples=150, points=20)),
    "bre-unsupervised": (Bre, BreOptions(samples=150, points=20, supervised=False)),
    "ksh": (Ksh, KshOptions(anchors=60, labelled=120)),
    "sdh": (Sdh, SdhOptions(anchors=100)),
}
SUPERVISED = ["bre", "ksh", "sdh"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def fit(case: Case, data: Data, bits: int = 16, seed: int = 0) -> ShallowHash:
    kind, options = case
    return kind.fit(*data, bits, options, seed)


@pytest.fixture(scope="module")
def fitted(case: Case, clusters: Data) -> ShallowHash:
    """With 16 bits and the seed 0; not to be changed."""
    return fit(case, clusters)


def test_values_have_their_shape_and_are_finite(fitted: ShallowHash, clusters: Data) -> None:
    values = fitted.values(clusters[0])
    assert values.shape == (200, 16)
    assert values.dtype == np.float64
    assert np.isfinite(values).all()
    assert fitted.values(clusters[0][:0]).shape == (0, 16)


def test_the_seed_decides_and_inputs_are_left_alone(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    features, labels = (array.copy() for array in clusters)
    features.flags.writeable = labels.flags.writeable = False
    again = fit(case, (features, labels))
    again.values(features)
    np.testing.assert_array_equal(features, clusters[0])
    for name, array in fitted.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name])
    if case[0] is not Sh:  # which draws nothing
        other = fit(case, clusters, seed=1)
        assert (binarize(fitted.values(features)) != binarize(other.values(features))).any()


@pytest.mark.parametrize("bits", [8, 150])
def test_fewer_rows_than_bits_axes_or_anchors(case: Case, clusters: Data, bits: int) -> None:
    few = clusters[0][:7], clusters[1][:7]
    codes = binarize(fit(case, few, bits=bits).values(clusters[0]))
    assert codes.shape == (200, bits)
    assert len(np.unique(codes, axis=0)) > 1


def test_copies_constant_columns_and_rows_of_zeros(case: Case, clusters: Data) -> None:
    features = np.repeat(clusters[0][:30], 4, axis=0)
    features[:, 3], features[:, 4] = 0, 7
    features[5] = 0
    labels = np.repeat(clusters[1][:30], 4, axis=0)
    fitted = fit(case, (features, labels))
    values = fitted.values(features)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(binarize(values)[8], binarize(values)[9])


def test_rows_without_labels_and_several_labels(case: Case, clusters: Data) -> None:
    labels = clusters[1].copy()
    labels[::3] = False
    labels[1::5, :2] = True
    assert np.isfinite(fit(case, (clusters[0], labels)).values(clusters[0])).all()


def test_all_rows_similar(case: Case, clusters: Data) -> None:
    everything = np.ones_like(clusters[1])
    assert np.isfinite(fit(case, (clusters[0], everything)).values(clusters[0])).all()


def test_labels_are_needed_where_they_are_used(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    nothing = clusters[0], np.zeros_like(clusters[1])
    if case in [CASES[name] for name in SUPERVISED]:
        with pytest.raises(DataError):
            fit(case, nothing)
    else:
        unlabelled = fit(case, nothing).values(clusters[0])
        np.testing.assert_array_equal(unlabelled, fitted.values(clusters[0]))


def test_errors_at_both_doors(case: Case, fitted: ShallowHash, clusters: Data) -> None:
    with pytest.raises(DataError):
        fit(case, (np.ones_like(clusters[0]), clusters[1]))
    with pytest.raises(ConfigError):
        case[0].fit(*clusters, 16, MethodOptions(), 0)
    with pytest.raises(InputError):
        fitted.values(clusters[0][:, 1:])
    with pytest.raises(InputError):
        fitted.values(np.full((2, 20), np.nan))


def test_progress_is_told_to_its_end(case: Case, clusters: Data) -> None:
    told: list[tuple[int, int]] = []
    case[0].fit(*clusters, 8, case[1], 0, lambda stage, done, total, note="": told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {len(told)}
    assert told
