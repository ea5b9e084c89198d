"""The documentation names every field and word of the formats, and its links and code work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ymir_opt.domain.documents import schema
from ymir_opt.domain.plan import ActionKind, Reason, StoppedBy
from ymir_opt.domain.snapshot import Mode, Reclaim, Sharing

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def fields(part: Any) -> Iterator[str]:
    """Yield the names of all properties in a JSON Schema."""
    if isinstance(part, dict):
        for name, inner in part.get("properties", {}).items():
            yield name
            yield from fields(inner)
        for name, inner in part.items():
            if name != "properties":
                yield from fields(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from fields(inner)


def words(page: str) -> set[str]:
    """Return the identifiers in a page's code spans."""
    text = (ROOT / page).read_text()
    return set(re.findall(r"[A-Za-z_0-9]+", " ".join(re.findall(r"`[^`]+`", text))))


@pytest.mark.parametrize("name", ["snapshot", "plan"])
def test_every_field_is_described(name: str) -> None:
    missing = set(fields(schema(name))) - words("docs/formats.md")
    assert not missing


def test_every_word_is_described() -> None:
    for kind in (ActionKind, Reason, StoppedBy, Mode, Reclaim, Sharing):
        assert {member.value for member in kind} <= words("docs/formats.md"), kind
    assert {mode.value for mode in Mode} <= words("docs/concepts.md")
    assert {kind.value for kind in ActionKind} <= words("docs/concepts.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


def test_the_readmes_code_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(ROOT)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert "in 300 s" in capsys.readouterr().out


def test_the_readmes_commands_exist() -> None:
    from importlib.metadata import entry_points

    known = {entry.name for entry in entry_points(group="ymir_opt.commands")}
    for page in PAGES:
        named = set(re.findall(r"ymir-plan ([a-z][a-z-]*)", page.read_text()))
        assert named <= known, page


def test_the_readmes_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), (page, target)
