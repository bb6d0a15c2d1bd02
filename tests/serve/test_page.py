"""The page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from PIL import Image

from centerhash.photos import PhotoIndex
from tests.serve.conftest import fill
from tests.serve.processes import PHONE, WIDE, Served, Watched, serving
from tests.serve.toys import PASSWORD
from tests.toys import write_images

pytestmark = pytest.mark.slow
# Drops or pastes a file: its bytes, or a number of zeros.
GIVE = """([way, name, type, bytes]) => {
    const held = new DataTransfer();
    held.items.add(new File([new Uint8Array(bytes)], name, { type }));
    const [kind, key] = { drop: [DragEvent, "dataTransfer"], paste: [ClipboardEvent, "clipboardData"] }[way];
    document.body.dispatchEvent(new kind(way, { bubbles: true, cancelable: true, [key]: held }));
}"""
UNNAMED = """[...document.querySelectorAll('button, input, a, img')].filter(e => e.tagName === 'IMG'
    ? !e.hasAttribute('alt')
    : !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.querySelector('img[alt]'))).length"""


def search_box(watched: Watched) -> Any:
    return watched.page.get_by_role("combobox", name="Labels to search for")


def type_query(watched: Watched, text: str) -> None:
    search_box(watched).fill(text)
    search_box(watched).press("Enter")


def test_collection(opened: Watched, served: Served) -> None:
    opened.ready()
    with served.client() as client:
        items = client.get("/items").json()["items"]
    assert opened.ids() == [row["id"] for row in items]
    opened.until("[...document.querySelectorAll('.wall img')].some(i => i.naturalWidth > 0)")
    shapes = opened.page.locator(".wall > li[data-id]").evaluate_all(
        "all => all.map(li => li.offsetWidth / li.offsetHeight)"
    )
    assert shapes == pytest.approx([row["width"] / row["height"] for row in items], rel=0.05)
    assert opened.page.locator("#grid .month").first.inner_text() == "August 2024"


def test_photo_by_keyboard(opened: Watched, served: Served) -> None:
    page = opened.page
    opened.ready()
    order = opened.ids()
    page.locator(".result").first.focus()
    for key in ("ArrowRight", "End", "Home", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    opened.until_here(lambda: opened.photo() == order[1], "the photo is shown")
    assert opened.fragment() == f"photo={order[1]}"
    with served.client() as client:
        item = client.get(f"/items/{order[1]}").json()
    page.locator("#photo-name", has_text=item["path"]).wait_for()
    assert item["folder"] in page.locator("#photo-facts").inner_text()
    assert page.locator("#photo-labels .chip").all_inner_texts() == item["labels"]
    opened.until("document.getElementById('large').src.includes('/images/')")
    for key, at in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        opened.until_here(lambda at=at: opened.photo() == order[at], "the next photo is shown")  # type: ignore[misc]
    assert page.locator("#download").get_attribute("href") == f"images/{order[2]}?download=true"
    page.keyboard.press("Escape")
    opened.until("!document.getElementById('photo').open")
    opened.until_here(lambda: opened.fragment() == "", "the address is that of the collection")


def test_upload_and_back(opened: Watched, pictures: Path) -> None:
    page = opened.page
    opened.ready()
    page.set_input_files("#file", pictures / "dog.jpg")
    opened.answered("Most like your photo")
    first = opened.ids()
    assert len(first) == 9
    assert page.locator("#preview").get_attribute("src").startswith("blob:")
    page.locator("#ways label", has_text="Visually similar").click()
    opened.answered("Visually similar to your photo")
    page.locator(".result").nth(2).click()
    target = opened.photo()
    page.locator("#like").click()
    opened.answered("Most like this photo")
    assert target not in opened.ids()
    assert page.locator("#preview").get_attribute("src") == f"thumbnails/{target}"
    page.go_back()
    opened.until_here(lambda: opened.photo() == target, "the photo is shown again")
    for _ in range(2):
        page.go_back()
    opened.answered("Most like your photo")
    assert opened.ids() == first
    page.go_back()
    opened.answered("Photos")


def test_labels_and_weights(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    page.keyboard.press("/")
    box = search_box(opened)
    box.type("dogs, bir")
    page.get_by_role("option", name="bird").first.wait_for()
    box.press("ArrowDown")
    box.press("Enter")
    opened.answered("Dog and bird")
    assert opened.fragment() == "labels=dog:1,bird:1"
    slider = page.get_by_role("slider", name="bird")
    slider.focus()
    before = len(opened.requests)
    slider.evaluate(
        """slider => {
        for (let value = 99; value >= 1; value--) {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }
    }"""
    )
    slider.press("ArrowLeft")
    opened.until_here(lambda: opened.fragment() == "labels=dog:1,bird:0", "the weight is in the address")
    opened.answered("Dog")
    assert page.evaluate("document.activeElement.type") == "range"
    assert page.locator("#weights output").all_inner_texts() == ["100 %", "0 %"]
    opened.until_here(lambda: len(opened.ids()) == 1, "only the dog fits")
    # Many changes in quick succession are one search.
    assert len([url for url in opened.requests[before:] if "/search" in url]) <= 2
    page.go_back()
    opened.answered("Photos")


def test_phrase_and_filters(opened: Watched, photos: PhotoIndex) -> None:
    page = opened.page
    opened.ready()
    type_query(opened, "a bird without people qwxyz")
    opened.answered("Bird")
    page.locator("#filters li", has_text="without person").wait_for()
    page.locator("#error-title", has_text="“qwxyz”").wait_for()
    assert opened.fragment() == "labels=bird:1&without=person"
    page.get_by_role("button", name="Remove the filter: without person").click()
    page.locator("#filters li").wait_for(state="detached")

    type_query(opened, "bicyle")
    page.locator("#error-text").get_by_role("button", name="bicycle").click()
    opened.answered("Bicycle")
    assert not page.get_by_role("alert").is_visible()

    page.locator("#home").click()
    opened.ready()
    box = page.get_by_role("combobox", name="Filter by a label or folder")
    for text in ("with cat", "in pictures/below"):
        box.fill(text)
        box.press("Enter")
        page.locator("#filters li", has_text=text).wait_for()
    expected = [item.id for item in photos.list(having="cat")[0] if "below" in str(item.path)]
    opened.until_here(lambda: opened.ids() == expected, "both filters count")


def test_errors(opened: Watched, served: Served) -> None:
    page = opened.page
    opened.ready()
    type_query(opened, "unicorn")
    page.locator("#error-title", has_text="“unicorn”").wait_for()
    assert opened.ids() == []
    page.go_back()
    opened.ready()
    assert not page.get_by_role("alert").is_visible()
    for name, kind, size in (
        ("notes.txt", "text/plain", 9),
        ("torn.jpg", "image/jpeg", 9),
        ("huge.png", "image/png", 20_000_001),
    ):
        page.evaluate(GIVE, ["drop", name, kind, size])
        page.locator("#error-title", has_text=name).wait_for()
        page.get_by_role("button", name="Dismiss").click()
        assert not page.get_by_role("alert").is_visible()
    for link, words in (("id=gone", "no longer"), ("photo=gone", "no longer"), ("picture=7", "not kept")):
        page.goto(f"{served.address}/#{link}")
        page.locator("#error-title", has_text=words).wait_for()


def test_duplicates(opened: Watched) -> None:
    page = opened.page
    opened.ready()
    page.locator("#to-duplicates").click()
    page.locator(".group").first.wait_for()
    assert page.locator("#groups h2").all_inner_texts()[0] == "Equal files"
    same, near = (page.locator(".group").nth(at).inner_text() for at in range(2))
    assert "dog.jpg" in same
    assert "dog again.jpg" in same
    assert "small.png" in near
    page.locator(".group .result").first.click()
    page.locator("#photo-name", has_text="dog").wait_for()
    page.keyboard.press("Escape")
    opened.until("!document.getElementById('photo').open")
    page.go_back()
    opened.ready()


def test_login(browser: Any, photos: PhotoIndex, tmp_path: Path) -> None:
    with serving(photos.folder, tmp_path / "log", CENTERHASH_PASSWORD=PASSWORD) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{server.address}/#labels=dog:1")
        assert page.url.startswith(f"{server.address}/login")
        for password in ("wrong", PASSWORD):
            page.wait_for_function("document.activeElement.name == 'password'")
            page.keyboard.type(password)
            page.keyboard.press("Enter")
            if password == "wrong":
                page.get_by_role("alert").filter(has_text="not the password").wait_for()
        page.locator(".wall > li[data-id]").first.wait_for()
        page.locator("#log-out").click()
        page.locator("input[name=password]").wait_for()
        page.goto(server.address)
        assert page.url == f"{server.address}/login"
        context.close()


def test_phone(browser: Any, served: Served, pictures: Path) -> None:
    watched = Watched(browser, served.address, PHONE)
    watched.ready()
    page = watched.page
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) <= PHONE["width"]
    assert search_box(watched).bounding_box()["width"] > 0.8 * PHONE["width"]
    page.get_by_role("combobox", name="Filter by a label or folder").click()
    page.get_by_role("option").first.wait_for()
    box = page.locator("#add-filter ul").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    page.set_input_files("#file", pictures / "dog.jpg")
    watched.answered("Most like your photo")
    assert page.evaluate(width) <= PHONE["width"]
    assert page.locator(".result").first.bounding_box()["y"] < PHONE["height"] / 2
    assert page.evaluate(UNNAMED) == 0
    page.locator(".result").first.click()
    page.locator("#photo-name").wait_for()
    assert page.evaluate("document.getElementById('photo').scrollWidth") <= PHONE["width"]
    watched.close()


def test_scrolling(browser: Any, tmp_path: Path) -> None:
    write_images(tmp_path / "many", 160)
    with PhotoIndex.of(tmp_path / "many") as index:
        index.add(tmp_path / "many", progress=False)
        expected = [item.id for item in index.list(0, 160)[0]]
    with serving(tmp_path / "many.index", tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.until_here(watched.ids, "the first are there")
        assert len(watched.ids()) < 160

        def scrolled() -> bool:
            watched.page.mouse.wheel(0, 4000)
            return len(watched.ids()) == 160

        watched.until_here(scrolled, "all of them are there")
        assert watched.ids() == expected
        watched.close()


def test_page_follows_the_index(browser: Any, mine: PhotoIndex, tmp_path: Path) -> None:
    """Photos that another process adds appear; formats that browsers do not show have a preview."""
    with serving(mine.folder, tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.ready()
        before = watched.ids()
        file = tmp_path / "pictures" / "new.heic"
        with Image.open(tmp_path / "pictures" / "street.jpg") as image:
            pillow_heif.from_pillow(image).save(file)
        mine.add(file, progress=False)
        watched.until_here(lambda: len(watched.ids()) == len(before) + 1, "the new photo is there")
        (id,) = set(watched.ids()) - set(before)
        watched.page.goto(f"{server.address}/#photo={id}")
        watched.until("document.getElementById('large').naturalWidth > 400")
        watched.page.keyboard.press("Escape")
        mine.remove(id)
        watched.until_here(lambda: watched.ids() == before, "it is gone")
        watched.close()


def test_folder_fills(browser: Any, tmp_path: Path) -> None:
    with serving(fill(tmp_path / "pictures"), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.until_here(lambda: len(watched.ids()) == 9, "all photos appear without a reload")
        watched.close()


def test_page_for_programs(browser: Any, served: Served) -> None:
    watched = Watched(browser, f"{served.address}/api", WIDE)
    watched.page.locator("pre", has_text=served.address).first.wait_for()
    text = "\n".join(watched.page.locator("pre code").all_inner_texts())
    addresses = re.findall(r"'(http[^']+)'", text)
    assert len(addresses) == 11
    with served.client() as client:
        for address in addresses:
            if not address.endswith("/search?k=5"):
                assert client.get(address).status_code == 200, address
    watched.close()
