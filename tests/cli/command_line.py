"""Running ``ymir-plan`` inside the test process, and a planner that decides nothing."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small_documents import plan_data, plan_of

from ymir_opt.cli.main import run
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot

__all__ = ["Answer", "StubPlanner", "Terminal", "ymir_plan"]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def one_line(self) -> str:
        """Return the only line on standard error; nothing may be on standard output."""
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        assert self.err.startswith("ymir-plan: ")
        assert "Traceback" not in self.err
        line = self.err[len("ymir-plan: ") : -1]
        assert line.isprintable()
        return line


class Terminal(io.TextIOWrapper):
    """A text stream that may say that it is a terminal."""

    def __init__(self, data: bytes = b"", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.is_terminal = terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def ymir_plan(*arguments: str | Path, stdin: str | bytes = b"", terminal: bool = False) -> Answer:
    """Run one command line; ``terminal`` says whether standard output is one."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    with pytest.MonkeyPatch.context() as patch:
        out, err = Terminal(terminal=terminal), Terminal(terminal=terminal)
        patch.setattr(sys, "stdin", Terminal(data))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("COLUMNS", "160")
        code = run([str(argument) for argument in arguments])
        return Answer(code, out.text(), err.text())


class StubPlanner(ModuleType):
    """Takes the planner's place: every job waits or is kept, and what was asked is remembered."""

    def __init__(self) -> None:
        super().__init__("ymir_opt.api")
        self.asked: list[dict[str, Any]] = []
        self.fails: Exception | None = None

    def solve(self, snapshot: Snapshot, **options: Any) -> Plan:
        self.asked.append({"snapshot": snapshot, **options})
        if self.fails is not None:
            raise self.fails
        return plan_of(plan_data(snapshot))
