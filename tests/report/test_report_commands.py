"""``--report`` of ``solve`` and ``compare`` writes the page, or refuses before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_console import console

from ymir_opt.cli.main import run
from ymir_opt.cli.synthetic import synthetic_snapshot
from ymir_opt.domain.documents import dump_json, parse_plan

SWF = "\n".join(
    f"{n} {60 * n} -1 {200 + 37 * n} {1 + n % 3} -1 -1 {1 + n % 3} -1 -1 1 1 1 -1 1 -1 -1 -1"
    for n in range(1, 13)
)


@pytest.fixture
def pages(tmp_path: Path) -> tuple[Path, Path]:
    """Return the pages of a small plan and of a small comparison, made on the command line."""
    snapshot, plan, page = (tmp_path / name for name in ("s.json", "p.json", "p.html"))
    snapshot.write_text(dump_json(synthetic_snapshot(20, 16)))
    assert run(["solve", str(snapshot), "-o", str(plan), "--report", str(page)]) == 0
    assert parse_plan(plan.read_text()).groups
    trace, report = tmp_path / "t.swf", tmp_path / "c.html"
    trace.write_text(SWF + "\n")
    arguments = ["compare", str(trace), "--cluster", "1x4:V100", "--policies", "fifo,srtf", "--jobs", "1"]
    assert run([*arguments, "--report", str(report)]) == 0
    return page, report


@pytest.mark.browser
def test_both_pages_open(pages: tuple[Path, Path], opened: Callable[[str], Any]) -> None:
    page, report = pages
    driver = opened(page.read_text())
    assert driver.find_elements("css selector", ".map .gpu.held")
    driver = opened(report.read_text())
    assert driver.execute_script("return document.getElementById('gpus').data[0].x.length") >= 12
    assert "fifo" in driver.find_element("css selector", ".figures").text
    assert console(driver) == []


def test_a_page_that_cannot_be_written_stops_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "s.json"
    snapshot.write_text(dump_json(synthetic_snapshot(4, 4)))
    assert run(["solve", str(snapshot), "--report", str(tmp_path / "no" / "p.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
