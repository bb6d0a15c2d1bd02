from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centerhash.data.layouts.coco_json import covered_share, decode_runs, draw


def box(left: float, top: float, wide: float, high: float) -> dict[str, object]:
    return {"bbox": [left, top, wide, high]}


def encode_counts(lengths: list[int]) -> str:
    """The compressed form of run lengths, as COCO's own tools write it."""
    text = ""
    for position, length in enumerate(lengths):
        value = length - lengths[position - 2] if position > 2 else length
        more = True
        while more:
            digit = value & 0x1F
            value >>= 5
            more = value != (-1 if digit & 0x10 else 0)
            text += chr((digit | (0x20 if more else 0)) + 48)
    return text


def test_the_stated_area_wins_and_else_polygons_then_boxes_are_measured() -> None:
    assert covered_share([{"area": 200, **box(0, 0, 40, 20)}], 40, 20) == 0.25
    assert covered_share([{"area": 5000}], 40, 20) == 1  # never more than the frame
    assert covered_share([box(0, 0, 10, 10), box(10, 0, 10, 10)], 40, 20) == pytest.approx(0.25)
    triangle = {"segmentation": [[0, 0, 20, 0, 0, 20]], **box(0, 0, 20, 20)}
    assert covered_share([triangle], 40, 20) == pytest.approx(200 / 800)
    assert covered_share([box(0, 0, 20, 20)], 40, 20) == pytest.approx(0.5)
    runs = {"segmentation": {"size": [20, 40], "counts": [600, 200]}}
    assert covered_share([runs], 40, 20) == 0.25
    assert covered_share([{}], 40, 20) is None
    assert covered_share([box(0, 0, 1, 1), {"bbox": []}], 40, 20) is None


def test_objects_that_overlap_are_counted_once() -> None:
    # two bars of 20 x 10, crossing in 10 x 10 of a frame of 40 x 40
    bars = [box(0, 10, 20, 10), box(10, 0, 10, 40)]
    assert covered_share(bars, 40, 40) == pytest.approx((200 + 400 - 100) / 1600, rel=0.02)
    assert covered_share([box(0, 0, 20, 10)] * 3, 40, 20) == pytest.approx(0.25)


def test_boxes_may_overlap_where_masks_do_not() -> None:
    lower = {"segmentation": [[0, 0, 40, 40, 0, 40]], **box(0, 0, 40, 40)}
    upper = {"segmentation": [[0, 0, 40, 40, 40, 0]], **box(0, 0, 40, 40)}
    assert covered_share([lower, upper], 40, 40) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("area", [-1, float("nan"), float("inf")])
def test_impossible_areas(area: float) -> None:
    with pytest.raises(ValueError, match="an area of"):
        covered_share([{"area": area}], 40, 20)


def test_runs_go_down_the_columns_and_start_with_the_background() -> None:
    mask = decode_runs({"size": [2, 3], "counts": [1, 3, 2]})
    assert mask.astype(int).tolist() == [[0, 1, 0], [1, 1, 0]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12))
def test_compressed_runs_say_the_same(lengths: list[int]) -> None:
    size = [sum(lengths), 1]
    plain = decode_runs({"size": size, "counts": lengths})
    assert np.array_equal(decode_runs({"size": size, "counts": encode_counts(lengths)}), plain)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_drawing_runs_and_boxes_agrees(left: int, top: int, wide: int, high: int) -> None:
    mask = np.zeros((64, 64), dtype=bool)
    mask[top : top + high, left : left + wide] = True
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat.astype(int))) + 1
    lengths = np.diff([0, *edges, flat.size]).tolist()
    runs = {"segmentation": {"size": [64, 64], "counts": lengths if not flat[0] else [0, *lengths]}}
    first, second = draw(runs, 64, 64), draw(box(left, top, wide, high), 64, 64)
    assert first.shape == second.shape == (128, 128)
    # Pillow paints the outline too: one row and one column of pixels at most
    assert (first & ~second).sum() == 0
    assert (second & ~first).sum() <= 2 * 2 * (wide + high) + 1


@pytest.mark.parametrize(
    ("size", "counts", "message"),
    [
        ([30_000, 30_000], [900_000_000], "900,000,000 pixels, more than the limit of 100,000,000"),
        ([2, 3], [1, 4], "run lengths of 5 pixels for a mask of 3 x 2"),
        ([10, 10], [10**30], "run lengths of 1,0.* pixels for a mask of 10 x 10"),
        ([10, 10], [-100, 200], "run lengths of 100 pixels for a mask of 10 x 10"),
        ([-10, -10], [100], "run lengths of 100 pixels"),
    ],
)
def test_runs_that_do_not_fill_the_frame_or_take_much_memory_are_refused(
    size: list[int], counts: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode_runs({"size": size, "counts": counts})
