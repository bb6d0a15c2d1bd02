"""Teaching a label on the page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.processes import PHONE, WIDE, Watched, serving
from tests.serve.toys import TOKEN

pytestmark = pytest.mark.slow


def test_select_photos_teach_a_label_and_answer(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(24), tmp_path / "log") as server, server.client() as client:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        watched.ready()
        page.locator("#select").click()
        chosen = watched.ids()[:3]
        for id in [*chosen, watched.ids()[5]]:
            page.locator(f'#grid [data-id="{id}"] .result').click()
        page.locator("#picked-count", has_text="4 selected").wait_for()
        page.locator(f'#grid [data-id="{watched.ids()[5]}"] .result').click()  # not this one after all
        page.locator("#picked-count", has_text="3 selected").wait_for()
        assert watched.photo() == ""  # no photo was opened

        page.locator("#teach").click()
        page.locator("#teaching-name").fill("my place")
        page.locator("#teaching-teach").click()
        page.locator("#token").fill("wrong")
        page.locator("#token-use").click()
        page.locator("#token-problem", has_text="not the token").wait_for()
        assert client.get("/taught").json() == {"labels": []}
        page.locator("#token").fill(TOKEN)
        page.locator("#token-use").click()
        page.locator("#teaching-title", has_text="Is it “my place”?").wait_for()
        (label,) = client.get("/taught").json()["labels"]
        assert sorted(label["like"]) == sorted(chosen)

        offered = page.locator(".answers li")
        assert offered.count() == 12
        ids = offered.evaluate_all("all => all.map(row => row.dataset.id)")
        assert not set(ids) & set(chosen)
        assert page.locator("#teaching-send").is_disabled()
        for at, side in ((0, ".yes"), (1, ".no"), (2, ".yes"), (2, ".yes")):  # the last one is taken back
            offered.nth(at).locator(side).click()
        page.locator("#teaching-send").click()
        watched.until_here(
            lambda: ids[0] in client.get("/taught").json()["labels"][0]["like"], "the answers are stored"
        )
        (label,) = client.get("/taught").json()["labels"]
        assert label["unlike"] == [ids[1]]
        assert ids[2] not in label["like"]
        watched.until(
            f"![...document.querySelectorAll('.answers li')].some(row => row.dataset.id === '{ids[0]}')"
        )
        page.locator("#teaching-close").click()
        watched.answered("My place")  # the photos with the label
        assert set(watched.ids()[:4]) == {*chosen, ids[0]}
        assert watched.fragment() == "labels=my+place:1"
        page.locator(".result").first.click()
        page.locator("#photo-labels .chip", has_text="my place").wait_for()
        assert "100 % sure" in page.locator("#photo-labels").inner_text()
        page.keyboard.press("Escape")
        watched.until("!document.getElementById('photo').open")

        answers = iter(["our place"])
        page.on("dialog", lambda asked: asked.accept(next(answers, "")))
        page.locator("#taught-link").click()
        page.get_by_role("button", name="Rename").click()
        page.locator("#teaching-list b", has_text="our place").wait_for()
        page.get_by_role("button", name="Improve").click()
        page.locator("#teaching-title", has_text="Is it “our place”?").wait_for()
        page.locator("#teaching-close").click()
        watched.answered("Our place")
        page.locator("#taught-link").click()
        page.locator("#teaching-list").get_by_role("button", name="Remove").click()
        page.locator("#teaching-status", has_text="There are none yet.").wait_for()
        assert client.get("/taught").json() == {"labels": []}
        assert [text for text in watched.complaints if "unknown label" not in text] == []
        page.close()


def test_without_a_token_nothing_can_be_taught(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(3), tmp_path / "log", "--read-only") as server:
        watched = Watched(browser, server.address, PHONE)
        watched.ready()
        assert not watched.page.locator("#select").is_visible()
        assert not watched.page.locator("#taught-link").is_visible()
        assert watched.complaints == []
        watched.page.close()


def test_the_dialog_fits_a_phone(browser: Any, scene_index: Callable[[int], Path], tmp_path: Path) -> None:
    with serving(scene_index(16), tmp_path / "log") as server:
        watched = Watched(browser, server.address, PHONE)
        page = watched.page
        watched.ready()
        page.locator("#select").click()
        page.locator("#grid .result").first.focus()
        page.keyboard.press("Enter")  # keys select too
        page.locator("#picked-count", has_text="1 selected").wait_for()
        page.locator("#teach").click()
        page.locator("#teaching-name").fill("a")
        page.locator("#teaching-teach").click()
        page.locator("#token").fill(TOKEN)
        page.locator("#token-use").click()
        page.locator(".answers li").first.wait_for()
        for place in ("document.documentElement", "document.getElementById('teaching')"):
            assert page.evaluate(f"{place}.scrollWidth") <= PHONE["width"]
        assert watched.complaints == []
        page.close()
