"""The page follows what others change in the index, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.processes import PHONE, WIDE, Watched, serving
from tests.serve.toys import TOKEN, png, upload

pytestmark = pytest.mark.slow

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
FIRST_SEEN = """(() => {
  const row = [...document.querySelectorAll('#grid li[data-id]')].find(row => row.getBoundingClientRect().bottom > 0);
  return [row.dataset.id, row.getBoundingClientRect().top];
})()"""


def test_new_photos_appear_and_the_page_stays_in_place(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(24), tmp_path / "log") as server, server.client() as client:
        watched = Watched(browser, server.address, PHONE)
        watched.ready()
        before = watched.ids()
        watched.page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
        watched.until("scrollY > 100")
        id, top = watched.page.evaluate(FIRST_SEEN)
        assert client.post("/images", files=upload(png(3)), headers=HEADERS).status_code == 201
        watched.until_here(lambda: len(watched.ids()) == 25, "the new photo is on the page")
        place = watched.page.locator(f'#grid [data-id="{id}"]').evaluate(
            "row => row.getBoundingClientRect().top"
        )
        assert place == pytest.approx(top, abs=2)
        assert set(before) < set(watched.ids())
        watched.page.locator("#status", has_text="25 photos").wait_for()
        new = next(id for id in watched.ids() if id not in before)
        assert client.delete(f"/images/{new}", headers=HEADERS).status_code == 200
        watched.until_here(lambda: watched.ids() == before, "the removed photo is gone")
        assert watched.complaints == []
        watched.page.close()


def wait_for_counts(watched: Watched, expected: dict[str, int]) -> None:
    """Wait until the filter box offers these labels with these counts."""

    def shown() -> dict[str, int]:
        rows = watched.page.locator("#add-filter li").evaluate_all(
            "all => all.map(row => [row.firstChild.textContent, row.lastChild.textContent])"
        )
        return {text.removeprefix("with "): int(count) for text, count in rows if text.startswith("with ")}

    watched.until_here(lambda: shown() == expected, f"the counts are {expected}")


def test_counts_in_the_filter_box_follow_the_filters(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(24), tmp_path / "log") as server, server.client() as client:
        watched = Watched(browser, server.address, WIDE)
        watched.ready()
        label, whole = max(client.get("/counts").json()["labels"].items(), key=lambda pair: pair[1])
        assert client.get("/items", params={"having": label}).json()["total"] == whole
        for having in ([], [label]):
            expected = client.get("/counts", params={"having": having}).json()["labels"]
            box = watched.page.locator("#add-filter input")
            box.click()
            box.fill("with ")
            wait_for_counts(watched, expected)
            if not having:
                watched.page.locator("#add-filter li", has_text=f"with {label}").first.click()
                watched.page.locator("#filters .chip", has_text=f"with {label}").wait_for()
        assert watched.complaints == []
        watched.page.close()


def test_the_shown_label_may_be_removed_or_renamed(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(24), tmp_path / "log") as server, server.client() as client:
        ids = [item["id"] for item in client.get("/items").json()["items"]]
        body = {"name": "Bella", "like": ids[:3], "unlike": ids[-3:]}
        assert client.post("/taught", json=body, headers=HEADERS).status_code == 200
        watched = Watched(browser, f"{server.address}/#labels=Bella:1&having=Bella", WIDE)
        watched.answered("Bella")
        assert client.delete("/taught", params={"name": "Bella"}, headers=HEADERS).status_code == 200
        watched.answered("Photos")
        watched.until_here(lambda: len(watched.ids()) == 24, "all photos are shown")
        assert watched.fragment() == ""
        assert watched.page.locator("#error").is_hidden()
        assert watched.complaints == []
        watched.page.close()


SHOWN = """(() => ({
  undo: !document.getElementById('toast').hidden,
  ids: [...document.querySelectorAll('#grid li[data-id]')].map(row => row.dataset.id),
}))()"""


def test_a_photo_that_waits_for_its_removal_stays_off_the_page(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(12), tmp_path / "log") as server, server.client() as client:
        watched = Watched(browser, server.address, WIDE)
        watched.page.evaluate(f"sessionStorage.setItem('centerhash-token', '{TOKEN}')")
        watched.ready()
        for attempt in range(8):
            id = watched.ids()[-1]
            watched.page.locator(f'#grid [data-id="{id}"] .result').click()
            watched.page.locator("#remove").click()
            watched.page.locator("#toast", has_text="is removed from the index").wait_for()
            assert client.post("/images", files=upload(png(60 + attempt)), headers=HEADERS).status_code == 201
            new = client.get("/items").json()["items"][0]["id"]
            watched.until(f"!!document.querySelector('#grid [data-id=\"{new}\"]')")
            now = watched.page.evaluate(SHOWN)
            assert id not in now["ids"]
            if now["undo"]:  # drawn again before the time to undo it was over
                break
        else:
            pytest.fail("the page was never drawn again in time")
        watched.page.locator("#undo").click()
        watched.until_here(lambda: id in watched.ids(), "it is back")
        assert client.get(f"/items/{id}").status_code == 200
        assert watched.complaints == []
        watched.page.close()
