"""A real browser, in which pages are opened from disk without a network."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page from disk without a network; it must have complained of nothing."""
    contexts = []

    def open_page(explorer, place="", **settings):
        file = explorer.save(tmp_path / "page.html")
        context = browser.new_context(offline=True, **settings)
        contexts.append(context)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        page.goto(f"{file.as_uri()}{place}")
        page.wait_for_selector("main")
        assert said == [file.as_uri()]
        page.said = said
        return page

    yield open_page
    for context in contexts:
        context.close()
