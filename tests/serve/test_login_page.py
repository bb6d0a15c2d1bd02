"""The login page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from centerhash.search import Index
from centerhash.serve.password import MOST_WRONG
from tests.serve.processes import PHONE, WIDE, Served, Watched, serving
from tests.serve.toys import colour_index

pytestmark = pytest.mark.slow
PASSWORD = "Sesam öffne dich"


@pytest.fixture
def guarded(tmp_path: Path, feature_run: Path) -> Iterator[Served]:
    """A server of six pictures with a password."""
    with colour_index(tmp_path / "six.index", feature_run, 6):
        pass
    with serving(tmp_path / "six.index", tmp_path / "log", "--password", PASSWORD) as server:
        yield server
    assert "Traceback" not in (tmp_path / "log").read_text()


def log_in(watched: Watched, text: str) -> None:
    watched.page.locator("#password").fill(text)
    watched.page.keyboard.press("Enter")


def test_after_the_login_the_page_that_was_wanted_is_shown(browser: Any, guarded: Served) -> None:
    with Index.open(guarded.folder, read_only=True) as index:
        first = str(next(iter(index)).id)
    watched = Watched(browser, f"{guarded.address}/#photo={first}", PHONE)
    page = watched.page
    log_in(watched, "wrong")
    page.locator("#problem", has_text="This is not the password.").wait_for()
    log_in(watched, PASSWORD)
    watched.until_here(lambda: watched.photo() == first, "the photo of the link is shown")
    page.locator("#close").click()
    page.locator("#log-out").click()
    page.locator("#password").wait_for()
    assert watched.complaints == []  # later ones are of the browser's own page around an image
    page.goto(f"{guarded.address}/images/{first}")
    assert page.title().startswith("Log in")  # and not the photo, which is in the cache of the browser
    with page.expect_response(lambda answer: "/images/" in answer.url and answer.status == 200) as shown:
        log_in(watched, PASSWORD)
    assert shown.value.headers["content-type"] == "image/png"
    page.close()


def test_a_session_that_ends_leads_to_the_login(browser: Any, guarded: Served) -> None:
    watched = Watched(browser, guarded.address, WIDE)
    page = watched.page
    log_in(watched, PASSWORD)
    page.locator(".wall > li").first.wait_for()
    page.context.clear_cookies()
    page.evaluate("location.hash = '#page=duplicates'")
    page.locator("#password").wait_for()
    log_in(watched, PASSWORD)
    page.locator("h1", has_text="Duplicates").wait_for()
    page.close()


def test_a_link_on_another_site_needs_no_second_login(browser: Any, guarded: Served, served: Served) -> None:
    """The cookie is not sent with that first request; the login page looks again by itself."""
    watched = Watched(browser, guarded.address, WIDE)
    page = watched.page
    log_in(watched, PASSWORD)
    page.locator(".wall > li").first.wait_for()
    page.goto(served.address.replace("127.0.0.1", "localhost"))  # another site for the browser
    page.evaluate(
        "address => { const a = document.createElement('a'); a.href = address; a.id = 'link'; a.text = 'x';"
        " document.querySelector('main').prepend(a); }",
        guarded.address,
    )
    with page.expect_response(lambda response: response.url == f"{guarded.address}/") as first:
        page.locator("#link").click()
    assert first.value.status == 401
    page.locator(".wall > li").first.wait_for()
    assert page.locator("#log-out").is_visible()
    page.close()


def test_too_many_wrong_passwords(browser: Any, guarded: Served) -> None:
    with guarded.client() as client:
        for _ in range(MOST_WRONG):
            assert client.post("/login", json={"password": "wrong"}).status_code == 401
    watched = Watched(browser, guarded.address, PHONE)
    log_in(watched, PASSWORD)
    watched.page.locator("#problem", has_text="Too many wrong passwords. Try again in 5 minutes.").wait_for()
    watched.page.close()
