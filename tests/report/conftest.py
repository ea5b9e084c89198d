"""A headless Chromium for pages, shared by the tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_console import console


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Return a driver, or skip where there is no Chromium."""
    binary, service = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or service is None:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Return a function that opens a page's text and fails on anything in the console."""

    def open_page(text: str) -> Any:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        chromium.get_log("browser")
        chromium.get(path.as_uri())
        assert console(chromium) == []
        return chromium

    return open_page
