"""The page in a real browser: what people do with it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import ExifTags, Image

from centerhash.codes import pack
from tests.serve.processes import PHONE, WIDE, Served, Watched, serving
from tests.serve.toys import TOKEN, colour_index, png
from tests.toys import noise_image

pytestmark = pytest.mark.slow
GIVE = """([way, name, type, bytes]) => {
    const held = new DataTransfer();
    held.items.add(new File([new Uint8Array(bytes)], name, { type }));
    const [kind, key] = { drop: [DragEvent, "dataTransfer"], paste: [ClipboardEvent, "clipboardData"] }[way];
    document.body.dispatchEvent(new kind(way, { bubbles: true, cancelable: true, [key]: held }));
}"""  # drops or pastes a file: its bytes, or a number of zeros


def test_the_page_opens_on_the_collection(opened: Watched, served: Served) -> None:
    opened.ready()
    with served.client() as client:
        listed = client.get("/items", params={"limit": 1000}).json()
    assert opened.ids() == [row["id"] for row in listed["items"]]
    assert opened.page.locator("#status").inner_text().startswith(f"{listed['total']} photos, newest first")
    opened.until("[...document.querySelectorAll('.wall img')].some(i => i.naturalWidth > 0)")
    shapes = opened.page.locator(".wall > li[data-id]").evaluate_all(
        "all => all.map(li => li.offsetWidth / li.offsetHeight)"
    )
    for row, shape in zip(listed["items"], shapes, strict=True):
        assert shape == pytest.approx(row["width"] / row["height"], rel=0.05)


def test_more_of_a_large_collection_comes_as_one_scrolls(
    browser: Any, tmp_path: Path, feature_run: Path
) -> None:
    """Rows of photos in any shape, each once, and every row as wide as the page."""
    with colour_index(tmp_path / "many.index", feature_run) as index:
        codes = index.model.encode_features(index.encoder().features([png(0)]))
        files = []
        for number in range(300):
            files.append(tmp_path / f"{number}.png")
            noise_image(40, number).crop((0, 0, 40, 20 + number % 7 * 8)).save(files[-1])
            os.utime(files[-1], (number, number))
        names = [f"{number:03}" for number in range(300)]
        index.add_codes(np.repeat(pack(codes), 300, axis=0), names, paths=list(map(str, files)))
    with serving(tmp_path / "many.index", tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.page.locator(".wall > li[data-id]").first.wait_for()
        assert watched.page.locator(".wall > li[data-id]").count() < 300

        def scrolled() -> bool:
            watched.page.mouse.wheel(0, 4000)
            return bool(watched.page.locator(".wall > li[data-id]").count() == 300)

        watched.until_here(scrolled, "all of them are there")
        assert watched.ids() == names[::-1]
        edges = watched.page.locator(".wall > li[data-id]").evaluate_all(
            "all => all.map(li => [li.offsetTop, li.offsetLeft + li.offsetWidth])"
        )
        rows = {top: max(right for at, right in edges if at == top) for top, _ in edges}
        wide = [rows[top] for top in sorted(rows)][:-1]
        assert max(wide) - min(wide) <= 2
        watched.page.close()


def test_a_photo_is_shown_large_and_arrow_keys_walk(opened: Watched, served: Served) -> None:
    page = opened.page
    opened.ready()
    order = opened.ids()
    page.locator(".result").nth(1).click()
    opened.until_here(lambda: opened.photo() == order[1], "the photo is shown")
    assert opened.fragment() == f"photo={order[1]}"
    with served.client() as client:
        item = client.get(f"/items/{order[1]}").json()
    page.locator("#photo-name", has_text=item["path"]).wait_for()
    assert item["folder"] in page.locator("#photo-facts").inner_text()
    assert f"{item['width']} × {item['height']}" in page.locator("#photo-facts").inner_text()
    chips = page.locator("#photo-labels .chip").all_inner_texts()
    assert chips == item["labels"]
    opened.until("document.getElementById('large').src.includes('/images/')")  # the original has come
    for key, at in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        opened.until_here(lambda at=at: opened.photo() == order[at], "the next photo is shown")  # type: ignore[misc]
    link = page.locator("#download").get_attribute("href")
    assert link == f"images/{order[2]}?download=true"
    page.keyboard.press("Escape")
    opened.until("!document.getElementById('photo').open")
    opened.until_here(lambda: opened.fragment() == "", "the address is that of the collection")
    assert opened.ids() == order
    page.goto(f"{served.address}/#photo={order[5]}")  # a link that somebody copied
    opened.until_here(lambda: opened.photo() == order[5], "the photo of the link is shown")
    page.keyboard.press("Escape")
    opened.until("!document.getElementById('photo').open")


def test_upload_then_click_through_and_back(opened: Watched, photo: Path) -> None:
    page = opened.page
    opened.ready()
    page.set_input_files("#file", photo)
    opened.answered("Most like your photo")
    first = opened.ids()
    assert len(first) == 40
    assert page.locator(".far").first.inner_text() == "very similar"  # this model has no visual codes
    assert re.fullmatch(r"Hamming distance: 0 of \d+ bits", page.locator(".far").first.get_attribute("title"))
    assert page.locator("#status").inner_text().startswith("Top 40 of")
    assert page.locator("#weights input").count() >= 1
    assert page.locator("#preview").get_attribute("src").startswith("blob:")

    page.locator(".result").nth(2).click()
    page.locator("#like").click()
    opened.answered("Most like this photo")
    second = opened.ids()
    assert first[2] not in second  # it is the question
    assert page.locator("#preview").get_attribute("src") == f"thumbnails/{first[2]}"
    assert page.evaluate("document.activeElement.id") == "found-title"

    page.go_back()  # the photo is open again, over the answer that it was in
    opened.until_here(lambda: opened.photo() == first[2], "the photo is shown again")
    opened.answered("Most like your photo")
    assert opened.ids() == first
    page.go_back()
    opened.until("!document.getElementById('photo').open")
    page.go_forward()
    page.go_forward()
    opened.answered("Most like this photo")
    assert opened.ids() == second
    for _ in range(3):
        page.go_back()
    opened.answered("Photos")
    opened.until("document.querySelectorAll('.wall > li[data-id]').length === 40")


def test_weights_rank_anew_while_they_move(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    names = page.locator("#popular button").evaluate_all("all => all.map(b => b.firstChild.textContent)")
    page.locator("#popular button").first.click()
    opened.answered(names[0].capitalize())
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Labels to search for")
    assert box.input_value() == names[0]
    box.press("End")
    box.type(f", {names[1][:-1]}")
    page.get_by_role("option", name=names[1]).first.wait_for()
    box.press("ArrowDown")
    box.press("Enter")
    opened.answered(f"{names[0].capitalize()} and {names[1]}")
    before = opened.ids()
    assert opened.fragment() == f"labels={names[0]}:1,{names[1]}:1"

    slider = page.get_by_role("slider", name=names[0])
    slider.focus()
    asked = len(opened.requests)
    slider.evaluate(
        """slider => {
        for (let value = 99; value >= 6; value--) {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }
    }"""
    )
    slider.press("ArrowLeft")
    direct = page.evaluate(f"fetch('search?labels={names[0]}:0.05,{names[1]}:1&k=48').then(r => r.json())")
    expected = [row["id"] for row in direct["results"]]
    assert expected != before
    opened.until_here(lambda: opened.ids() == expected, "the photos are ranked anew")
    assert page.evaluate("document.activeElement.type") == "range"  # still in hand
    assert page.locator("#weights output").all_inner_texts() == ["5 %", "95 %"]

    def moves() -> list[str]:
        return [url for url in opened.requests[asked:] if f"labels={names[0]}%3A" in url]

    # the answer to 0.06 may be the same, and be there before 0.05 is asked for
    opened.until_here(lambda: "%3A0.05" in (moves() or [""])[-1], "the last weight is asked for")
    assert len(moves()) <= 2  # many in quick succession are one question
    page.go_back()
    opened.answered(names[0].capitalize())


def test_words_that_mean_a_label(browser: Any, opened: Watched) -> None:
    page = opened.page
    opened.ready()
    name = page.locator("#popular button").first.evaluate("button => button.firstChild.textContent")
    box = page.get_by_role("combobox", name="Labels to search for")
    box.fill(f"{name.upper()}S")
    box.press("Enter")
    opened.answered(name.capitalize())
    opened.until_here(lambda: opened.fragment() == f"labels={name}:1", "the label stands in the address")
    assert box.input_value() == name
    box.fill("nosuchthing")
    box.press("Enter")
    page.locator("#error-title", has_text="“nosuchthing”").wait_for()
    assert page.locator("h1").inner_text() == "No results"
    assert opened.ids() == []
    assert page.locator("#weights li").count() == 0  # the old question is gone
    page.go_back()
    opened.answered(name.capitalize())
    assert not page.get_by_role("alert").is_visible()


def test_a_phrase_is_read_and_its_unknown_words_are_reported(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    everything = opened.ids()
    first, second = page.locator("#popular button").evaluate_all(
        "all => all.map(b => b.firstChild.textContent)"
    )[:2]
    box = page.get_by_role("combobox", name="Labels to search for")
    box.fill(f"a {first}s without {second} qwxyz")
    box.press("Enter")
    opened.answered(first.capitalize())
    page.locator("#filters li", has_text=f"without {second}").wait_for()
    page.locator("#error-title", has_text="“qwxyz”").wait_for()
    assert opened.fragment() == f"labels={first}:1&without={second}"
    assert page.locator("#error-text button").count() > 1  # all that can be found
    page.get_by_role("button", name=f"Remove the filter: without {second}").click()
    opened.answered(first.capitalize())

    mistaken = f"{first[1]}{first[0]}{first[2:]}"  # two letters in the wrong order
    box.fill(mistaken)
    box.press("Enter")
    page.locator("#error-title", has_text=f"“{mistaken}”").wait_for()
    page.locator("#error-text").get_by_role("button", name=first).click()
    opened.answered(first.capitalize())
    assert not page.get_by_role("alert").is_visible()

    file = page.evaluate("fetch('items').then(r => r.json())").get("items")[0]["path"]
    word = file.rpartition(".")[0].lower()
    page.locator("#home").click()
    opened.until_here(lambda: opened.ids() == everything, "all are there")
    box.fill(word)
    box.press("Enter")
    page.locator("#filters li", has_text=f"named “{word}”").wait_for()
    opened.until_here(lambda: 0 < len(opened.ids()) < len(everything), "some are left out")
    page.get_by_role("button", name=f"Remove the filter: named “{word}”").click()
    opened.until_here(lambda: opened.ids() == everything, "all are there again")


def test_enter_does_not_take_a_suggestion_that_only_begins_so(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    name = page.locator("#popular button").first.evaluate("button => button.firstChild.textContent")
    box = page.get_by_role("combobox", name="Labels to search for")
    box.fill(name[:-1])
    page.get_by_role("option", name=name).first.wait_for()
    box.press("Enter")
    page.locator("#error-title", has_text=f"“{name[:-1]}”").wait_for()
    assert opened.ids() == []


def test_filters_as_chips_and_keyboard(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    everything = opened.ids()
    box = page.get_by_role("combobox", name="Filter by a label, folder or camera")
    name = page.locator("#popular button").nth(1).evaluate("button => button.firstChild.textContent")
    counts: list[Any] = []
    page.route("**/counts?*", lambda route: counts.append(route))
    box.fill(f"without {name}")
    box.press("Enter")  # before the choices of the box have arrived
    opened.until_here(lambda: counts, "the page has asked for the counts")
    counts[0].continue_()
    page.unroute("**/counts?*")
    page.locator("#filters li", has_text=f"without {name}").wait_for()
    opened.until_here(lambda: 0 < len(opened.ids()) < len(everything), "some are left out")
    page.get_by_role("button", name=f"Remove the filter: without {name}").click()
    opened.until_here(lambda: opened.ids() == everything, "all are there again")

    popular = page.locator("#popular button").first
    asked = popular.evaluate("button => button.firstChild.textContent").strip()
    popular.click()
    opened.answered(asked.capitalize())
    page.locator(".caption").first.wait_for()
    chip = page.locator(".caption button.chip").first
    label = chip.inner_text()
    chip.click()
    page.locator("#filters li", has_text=f"with {label}").wait_for()

    def all_carry_it() -> bool:
        spoken = page.locator(".result").evaluate_all("all => all.map(b => b.getAttribute('aria-label'))")
        return bool(spoken) and all(label in labels for labels in spoken)

    opened.until_here(all_carry_it, "all photos carry the label")
    page.locator(".result").first.focus()
    for key in ("ArrowRight", "End", "Home", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.className") == "result"
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    first = opened.ids()[0]
    opened.until_here(lambda: opened.photo() == first, "Enter opens the photo")


def test_dropped_and_pasted_pictures(opened: Watched, photo: Path) -> None:
    page = opened.page
    opened.ready()
    for number, kind in enumerate(("drop", "paste"), start=1):
        page.evaluate(GIVE, [kind, "given.jpg", "image/jpeg", list(photo.read_bytes())])
        opened.until(f"location.hash === '#picture={number}'")
        opened.answered("Most like your photo")
        assert len(opened.ids()) == 40


def test_errors_are_shown_kindly(opened: Watched, served: Served) -> None:
    page = opened.page
    opened.ready()
    alert = page.get_by_role("alert")
    for name, kind, size, words in (
        ("notes.txt", "text/plain", 9, "“notes.txt” is not a photo."),
        ("torn.jpg", "image/jpeg", 9, "“torn.jpg” could not be read as a photo."),
        ("huge.png", "image/png", 20_000_001, "“huge.png” is too large."),
    ):
        page.evaluate(GIVE, ["drop", name, kind, size])
        page.locator("#error-title", has_text=words).wait_for()
        assert not re.search("Error|exception|undefined|null", alert.inner_text())
        page.get_by_role("button", name="Dismiss").click()
        assert not alert.is_visible()
    for link in ("id=no-such-photo", "photo=no-such-photo"):
        page.goto(f"{served.address}/#{link}")
        page.locator("#error-title", has_text="no longer in the index").wait_for()
        assert alert.inner_text().strip(" ×\n") == "This photo is no longer in the index."
        page.get_by_role("button", name="Dismiss").click()
    page.route("**/search*", lambda route: route.abort())
    page.goto(f"{served.address}/#id=another")
    page.locator("#error-text", has_text="Check that it is running.").wait_for()
    opened.complaints = [text for text in opened.complaints if "ERR_FAILED" not in text]  # the one just made
    page.goto(f"{served.address}/#picture=7")
    page.locator("#error-title", has_text="not kept").wait_for()


def test_with_the_token_photos_are_added_and_removed(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(3), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        watched.ready()
        page.locator(".result").first.click()
        page.locator("#remove").click()
        page.locator("#token-dialog[open]").wait_for()
        page.keyboard.press("Escape")  # nothing is removed without a token
        watched.until("!document.getElementById('token-dialog').open")
        assert page.locator("#photo[open]").count() == 1
        page.keyboard.press("Escape")
        page.locator("#add").click()
        assert page.locator("#adding[open]").count() == 0
        page.locator("#token").fill("wrong")
        page.locator("#token-use").click()
        page.locator("#token-problem", has_text="This is not the token of the server.").wait_for()
        assert page.evaluate("sessionStorage.length + localStorage.length") == 0
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator("#adding[open]").wait_for()  # what was asked for comes next
        assert page.locator("#token-dialog[open]").count() == 0
        (tmp_path / "new.png").write_bytes(png(90))
        (tmp_path / "torn.png").write_bytes(png(91)[:70])
        files = [tmp_path / "new.png", tmp_path / "torn.png"]
        page.evaluate("sessionStorage.setItem('centerhash-token', 'that of an earlier server')")
        page.set_input_files("#files", files)
        page.locator("#token-problem", has_text="This is not the token of the server.").wait_for()
        page.locator("#token").fill(TOKEN)
        page.locator("#token-use").click()
        page.locator("#adding-status", has_text="1 added, 1 skipped.").wait_for()
        assert page.locator("#adding-skipped").inner_text() == "torn.png cannot be read as a photo"
        page.set_input_files("#files", files[:1])
        page.locator("#adding-status", has_text="0 added, 1 already in the index.").wait_for()
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


def test_a_removal_waits_for_the_token_and_then_happens(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(3), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        watched.ready()
        first = watched.ids()[0]
        page.locator(".result").first.click()
        page.locator("#remove").click()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("ArrowLeft")  # moves in the field, not to another photo
        page.locator("#token-use").click()
        page.locator("#toast", has_text="is removed from the index").wait_for()
        watched.until_here(lambda: first not in watched.ids(), "it is off the page")
        page.reload()
        watched.ready()
        with server.client() as client:
            watched.until_here(lambda: client.get(f"/items/{first}").status_code == 404, "it is removed")
        page.locator(".result").first.click()
        page.locator("#remove").click()  # the token is kept
        page.locator("#toast", has_text="is removed from the index").wait_for()
        page.close()


def test_the_lines_for_programs_work(browser: Any, served: Served) -> None:
    watched = Watched(browser, f"{served.address}/api", WIDE)
    watched.page.locator("pre", has_text=served.address).first.wait_for()
    lines = watched.page.locator("pre code").all_inner_texts()
    found = [url for text in lines for url in re.findall(r"'(http[^']+)'", text)]
    assert len(found) == 18
    with served.client() as client:
        for url in found:
            if not url.endswith(("/search?k=5", "/images", "/images/ID", "/duplicates", "=Bella")):
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
        page.locator(".wall > li[data-id]").first.wait_for()
        assert page.locator("#drop-hint").is_visible() is not touch
        context.close()


def test_an_empty_index_says_how_to_fill_it(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(0), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.answered("The index is empty")
        assert watched.page.locator("pre").inner_text() == "centerhash index add scenes.index PHOTOS"
        assert watched.complaints == []
        watched.page.close()


def test_months_timeline_and_large_previews(browser: Any, tmp_path: Path, feature_run: Path) -> None:
    dates = ("2024:07:02 10:00:00", "2024:06:30 23:59:59", "2024:06:01 00:00:00", "2023:05:05 05:05:05")
    files = []
    for number, when in enumerate(dates):
        exif = Image.Exif()
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = when
        exif[ExifTags.Base.Model] = "Phone" if number else "Canon"
        files.append(tmp_path / f"{number}.jpg")
        noise_image(40, number).save(files[-1], exif=exif)
    files.append(tmp_path / "old.heic")
    pillow_heif.from_pillow(noise_image(900, 9).crop((0, 0, 900, 600))).save(files[-1])
    os.utime(files[-1], (0, datetime(2001, 1, 2).timestamp()))
    with colour_index(tmp_path / "dated.index", feature_run) as index:
        codes = index.model.encode_features(index.encoder().features([png(0)]))
        index.add_codes(np.repeat(pack(codes), 5, axis=0), range(5), paths=list(map(str, files)))
    with serving(tmp_path / "dated.index", tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        page = watched.page
        watched.until_here(lambda: watched.ids() == list("01234"), "the newest is first")
        headings = page.locator("#grid .month")
        assert headings.all_inner_texts() == ["July 2024", "June 2024", "May 2023", "January 2001"]
        tops = page.locator("#grid > li:not(.fill)").evaluate_all("all => all.map(li => li.offsetTop)")
        assert tops == sorted(tops)
        assert len(set(tops)) == 8  # a heading has a row of its own, and the photos of a month have one
        bars = page.locator("#timeline .bar")
        assert [bars.nth(at).get_attribute("aria-label") for at in range(4)] == [
            *("January 2001, 1 photo", "May 2023, 1 photo", "June 2024, 2 photos", "July 2024, 1 photo")
        ]
        bars.nth(2).click()
        watched.until_here(lambda: watched.ids() == ["1", "2"], "only June is shown")
        assert watched.fragment() == "after=2024-06&before=2024-07"
        assert page.locator("#filters .chip").inner_text().startswith("in June 2024")
        watched.until_here(  # it follows the timeline, which is drawn after the photos
            lambda: page.locator("#status").inner_text().startswith("2 of 5 photos"), "both are counted"
        )
        page.locator("#filters .off").click()
        watched.until_here(lambda: len(watched.ids()) == 5, "all are shown")
        page.locator("#timeline .year", has_text="2024").click()
        watched.until_here(lambda: watched.ids() == ["0", "1", "2"], "a year is shown")
        page.goto(f"{server.address}/#camera=canon")
        watched.until_here(lambda: watched.ids() == ["0"], "one camera is shown")
        page.goto(f"{server.address}/#photo=4")
        watched.until("document.getElementById('large').naturalWidth === 900")  # not the thumbnail
        page.keyboard.press("Escape")
        page.close()
        assert watched.complaints == []
