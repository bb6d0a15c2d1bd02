"""The page on a phone, with the token, of an empty index, and the one for programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.processes import Served, serving
from tests.serve.toys import TOKEN, png
from tests.serve.watched import PHONE, WIDE, Watched

pytestmark = pytest.mark.slow


def test_with_the_token_photos_are_added_and_removed(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(3), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        watched.ready()
        page.locator("#add").click()
        page.locator("#token").fill("wrong")
        (tmp_path / "new.png").write_bytes(png(90))
        (tmp_path / "torn.png").write_bytes(png(91)[:70])
        files = [tmp_path / "new.png", tmp_path / "torn.png"]
        page.set_input_files("#files", files)
        page.locator("#adding-status", has_text="This token is not the server's.").wait_for()
        page.locator("#token").fill(TOKEN)
        page.set_input_files("#files", files)
        page.locator("#adding-status", has_text="1 added, 1 skipped.").wait_for()
        assert page.locator("#adding-skipped").inner_text() == "torn.png cannot be read as a photo"
        page.set_input_files("#files", files[:1])
        page.locator("#adding-status", has_text="0 added, 1 were there already.").wait_for()
        page.locator("#adding-close").click()
        watched.until_here(lambda: len(watched.ids()) == 4, "the new photo is on the page")

        gone = watched.ids()[0]
        for undo in (True, False):
            page.locator(f'[data-id="{gone}"] .result').click()
            page.locator("#remove").click()
            page.locator("#toast", has_text="is removed from the index").wait_for()
            watched.until_here(lambda: gone not in watched.ids(), "it is off the page")
            if undo:
                page.locator("#undo").click()
                watched.until_here(lambda: gone in watched.ids(), "it is back")
        with server.client() as client:
            assert client.get(f"/items/{gone}").status_code == 200  # there is time to undo it
            page.goto("about:blank")  # who leaves means it
            watched.until_here(lambda: client.get(f"/items/{gone}").status_code == 404, "it is removed")
        page.close()


def test_the_lines_for_programs_work(browser: Any, served: Served) -> None:
    watched = Watched(browser, f"{served.address}/api", WIDE)
    watched.page.locator("pre", has_text=served.address).first.wait_for()
    lines = watched.page.locator("pre code").all_inner_texts()
    found = [url for text in lines for url in re.findall(r"'(http[^']+)'", text)]
    assert len(found) == 13
    with served.client() as client:
        for url in found:
            if not url.endswith(("/search?k=5", "/images", "/images/ID", "/duplicates")):
                assert client.get(url).status_code == 200, url
    assert watched.complaints == []
    watched.page.close()


def test_on_a_phone_results_come_first_and_nothing_is_cut_off(
    browser: Any, served: Served, photo: Path
) -> None:
    watched = Watched(browser, served.address, PHONE)
    watched.ready()
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_input_files("#file", photo)
    watched.answered("Most like your photo")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator(".result").first.bounding_box()["y"] < PHONE["height"] / 2
    unnamed = """[...document.querySelectorAll('button, input, a, img')].filter(e => e.tagName === 'IMG'
        ? !e.hasAttribute('alt')
        : !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.querySelector('img[alt]'))).length"""
    assert page.evaluate(unnamed) == 0
    page.locator(".result").first.click()
    page.locator("#photo-name").wait_for()
    assert page.evaluate("document.getElementById('photo').scrollWidth") <= PHONE["width"]
    assert watched.complaints == []
    page.close()


def test_only_those_who_can_drop_are_told_to(browser: Any, served: Served) -> None:
    for touch in (False, True):
        context = browser.new_context(viewport=PHONE if touch else WIDE, has_touch=touch, is_mobile=touch)
        page = context.new_page()
        page.goto(served.address)
        page.locator(".wall > li").first.wait_for()
        assert page.locator("#drop-hint").is_visible() is not touch
        context.close()


def test_an_empty_index_says_how_to_fill_it(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(0), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.answered("An empty index")
        assert watched.page.locator("pre").inner_text() == "centerhash index add scenes.index PHOTOS"
        assert watched.complaints == []
        watched.page.close()
