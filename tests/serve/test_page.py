"""The page in a real browser: what people do with it, on a desk and on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.browser import chromium
from tests.serve.processes import Served, serving
from tests.toys import PATIENCE, wait_until

pytestmark = pytest.mark.slow
GIVE = """([way, name, type, bytes]) => {
    const held = new DataTransfer();
    held.items.add(new File([new Uint8Array(bytes)], name, { type }));
    const [kind, key] = { drop: [DragEvent, "dataTransfer"], paste: [ClipboardEvent, "clipboardData"] }[way];
    document.body.dispatchEvent(new kind(way, { bubbles: true, cancelable: true, [key]: held }));
}"""  # drops or pastes a file: its bytes, or a number of zeros
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Watched:
    """A page, with everything that it asked for and complained about."""

    def __init__(self, browser: Any, address: str, viewport: dict[str, int]) -> None:
        self.page = browser.new_page(viewport=viewport)
        self.page.set_default_timeout(1000 * PATIENCE)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.goto(address)

    def _listen(self, message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:  # refusals are part of the story
            self.complaints.append(message.text)

    def answered(self, title: str) -> None:
        """Wait until the results of a question with this title stand there."""
        self.page.locator("h1", has_text=title).wait_for()
        self.until("!document.body.classList.contains('waiting')")

    def until(self, condition: str) -> None:
        """Wait for a condition; the page's policy forbids playwright's own way, which evaluates text in the page."""
        self.until_here(lambda: self.page.evaluate(condition), condition)

    def until_here(self, condition: Callable[[], object], words: str) -> None:
        """Wait for a condition that is looked at on this side, while events of the page arrive."""
        wait_until(condition, words, pause=lambda: self.page.wait_for_timeout(20))

    def ids(self) -> list[str]:
        sources = self.page.locator(".result img").evaluate_all("all => all.map(i => i.getAttribute('src'))")
        return [source.removeprefix("thumbnails/") for source in sources]

    def fragment(self) -> str:
        return unquote(self.page.url.partition("#")[2])


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Watched]:
    watched = Watched(browser, served.address, WIDE)
    yield watched
    watched.page.close()
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((served.address, "blob:"))] == []


@pytest.fixture(scope="module")
def photo(scene_folder: Path) -> Path:
    return sorted((scene_folder / "images").iterdir())[3]


def test_upload_then_click_through_and_back(opened: Watched, photo: Path) -> None:
    page = opened.page
    page.locator("#popular button").first.wait_for()
    page.set_input_files("#file", photo)
    opened.answered("Most like your picture")
    first = opened.ids()
    assert len(first) == 24
    assert page.locator(".far").first.inner_text() == "same code"
    assert page.locator("#status").inner_text().startswith("The nearest 24 of")
    assert page.locator("#weights input").count() >= 1
    assert page.locator("#preview").get_attribute("src").startswith("blob:")
    opened.until("[...document.querySelectorAll('.result img')].every(i => i.naturalWidth > 0)")

    page.locator(".result").nth(2).click()
    opened.answered("Most like this one")
    second = opened.ids()
    assert first[2] not in second  # it is the query
    assert page.locator("#preview").get_attribute("src") == f"thumbnails/{first[2]}"
    assert page.evaluate("document.activeElement.id") == "found-title"

    page.go_back()
    opened.answered("Most like your picture")
    assert opened.ids() == first
    page.go_forward()
    opened.answered("Most like this one")
    assert opened.ids() == second
    page.go_back()
    page.go_back()
    opened.answered("Find pictures like yours")
    assert opened.ids() == []


def test_weights_rank_anew_while_they_move(opened: Watched) -> None:
    page = opened.page
    page.locator("#popular button").nth(1).wait_for()
    names = page.locator("#popular button").evaluate_all("all => all.map(b => b.firstChild.textContent)")
    page.locator("#popular button").first.click()
    opened.answered(names[0].capitalize())
    box = page.get_by_role("combobox", name="Add a label")
    page.keyboard.press("/")
    box.type(names[1])
    page.get_by_role("option", name=names[1]).first.wait_for()
    box.press("Enter")
    opened.answered(f"{names[0].capitalize()} and {names[1]}")
    before = opened.ids()
    assert opened.fragment() == f"labels={names[0]}:1,{names[1]}:0.5"

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
    direct = page.evaluate(f"fetch('search?labels={names[0]}:0.05,{names[1]}:0.5&k=24').then(r => r.json())")
    expected = [row["id"] for row in direct["results"]]
    assert expected != before
    shown = "[...document.querySelectorAll('.result img')].map(i => i.getAttribute('src').slice(11)).join()"
    opened.until(f"{shown} === '{','.join(expected)}'")
    assert page.evaluate("document.activeElement.type") == "range"  # still in hand
    assert page.locator("#weights output").all_inner_texts() == ["9 %", "91 %"]

    def moves() -> list[str]:
        return [url for url in opened.requests[asked:] if f"labels={names[0]}%3A" in url]

    # the answer to 0.06 may be the same, and be there before 0.05 is asked for
    opened.until_here(lambda: "%3A0.05" in (moves() or [""])[-1], "the last weight is asked for")
    assert len(moves()) <= 2  # many in quick succession are one question

    page.go_back()  # the steps of one slider are one step back
    opened.answered(names[0].capitalize())
    slider_value = page.get_by_role("slider", name=names[0]).input_value()
    assert slider_value == "100"


def test_filter_keyboard_and_more(opened: Watched) -> None:
    page = opened.page
    popular = page.locator("#popular button").first
    name = popular.evaluate("button => button.firstChild.textContent")
    popular.click()
    opened.answered(name.capitalize())
    box = page.get_by_role("combobox", name="Filter by a label")
    box.click()
    box.press("ArrowDown")
    box.press("Enter")
    label = page.locator("#filters li").inner_text().rstrip("×").strip()
    opened.until("location.hash.includes('having=')")
    opened.answered(name.capitalize())
    for chips in page.locator(".result .chips").all():
        assert label in chips.inner_text()
    page.get_by_role("button", name=f"No longer only with {label}").click()
    opened.until("!location.hash.includes('label=')")
    opened.answered(name.capitalize())
    assert len(opened.ids()) == 24
    page.get_by_role("button", name="Show more").click()
    opened.until("document.querySelectorAll('.result').length > 24")

    page.locator(".result").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    second = opened.ids()[1]
    page.keyboard.press("Enter")
    opened.answered("Most like this one")
    assert opened.fragment() == f"id={second}"


def test_dropped_and_pasted_pictures(opened: Watched, photo: Path) -> None:
    page = opened.page
    page.locator("#popular button").first.wait_for()
    for number, kind in enumerate(("drop", "paste"), start=1):
        page.evaluate(GIVE, [kind, "given.jpg", "image/jpeg", list(photo.read_bytes())])
        opened.until(f"location.hash === '#picture={number}'")
        opened.answered("Most like your picture")
        assert len(opened.ids()) == 24


def test_errors_are_shown_kindly(opened: Watched, served: Served) -> None:
    page = opened.page
    page.locator("#popular button").first.wait_for()
    alert = page.get_by_role("alert")
    for name, kind, size, words in (
        ("notes.txt", "text/plain", 9, "“notes.txt” is not a picture."),
        ("torn.jpg", "image/jpeg", 9, "“torn.jpg” could not be read as a picture."),
        ("huge.png", "image/png", 20_000_001, "“huge.png” is too large."),
    ):
        page.evaluate(GIVE, ["drop", name, kind, size])
        page.locator("#error-title", has_text=words).wait_for()
        assert not re.search("Error|exception|undefined|null", alert.inner_text())
        page.get_by_role("button", name="Dismiss").click()
        assert not alert.is_visible()
    page.goto(f"{served.address}/#id=no-such-picture")
    page.locator("#error-title", has_text="no longer in the index").wait_for()
    page.route("**/search*", lambda route: route.abort())
    page.goto(f"{served.address}/#id=another")
    page.locator("#error-text", has_text="Is it still running?").wait_for()
    opened.complaints = [text for text in opened.complaints if "ERR_FAILED" not in text]  # the one just made
    page.goto(f"{served.address}/#picture=7")
    page.locator("#error-title", has_text="not kept").wait_for()


def test_on_a_phone_nothing_is_cut_off(browser: Any, served: Served, photo: Path) -> None:
    watched = Watched(browser, served.address, PHONE)
    watched.page.locator("#popular button").first.wait_for()
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    watched.page.set_input_files("#file", photo)
    watched.answered("Most like your picture")
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    unnamed = """[...document.querySelectorAll('button, input, a, img')].filter(e => e.tagName === 'IMG'
        ? !e.hasAttribute('alt')
        : !(e.innerText || e.getAttribute('aria-label') || e.labels?.length || e.querySelector('img[alt]'))).length"""
    assert watched.page.evaluate(unnamed) == 0
    assert watched.complaints == []
    watched.page.close()


def test_an_empty_index_says_how_to_fill_it(
    browser: Any, scene_index: Callable[[int], Path], tmp_path: Path
) -> None:
    with serving(scene_index(0), tmp_path / "log") as server:
        watched = Watched(browser, server.address, WIDE)
        watched.answered("An empty index")
        assert watched.page.locator("pre").inner_text() == "centerhash index add scenes.index PICTURES"
        assert watched.complaints == []
        watched.page.close()
