"""One browser for all tests of the page, and reports opened in an empty folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, Page, chromium
from tests.report.scenes import story

from polymux.report import write_report

Opener = Callable[..., Page]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the constructed tables with every kind of finding."""
    folder = tmp_path_factory.mktemp("story")
    write_report(story().write(folder / "tables"), folder / "report.html", title="The story")
    return folder / "report.html"


@pytest.fixture
def open_alone(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Copy a report into an empty folder and open it there; tabs are closed afterwards."""
    pages: list[Page] = []

    def opened(report: Path, dark: bool = False, width: int = 1400) -> Page:
        alone = tmp_path / f"alone-{len(pages)}"
        alone.mkdir()
        copy = Path(shutil.copy(report, alone / "moved.html"))
        pages.append(browser.open(copy, dark=dark, width=width))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
