"""Where tables go: to standard output on a terminal, else to standard error."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output"]

LOG_WIDTH = 120


@dataclass(frozen=True)
class Output:
    """How one command answers.

    Attributes
    ----------
    json : bool
        JSON was asked for (``--json``): no tables.
    to_stdout : bool
        A document goes to standard output (``-o -``), so tables must not.
    """

    json: bool = False
    to_stdout: bool = False

    @property
    def terminal(self) -> bool:
        """Whether standard output is a terminal."""
        return sys.stdout.isatty()

    @property
    def wants_json(self) -> bool:
        """Whether JSON goes to standard output."""
        return self.json or self.to_stdout or not self.terminal

    @property
    def wants_tables(self) -> bool:
        """Whether tables are shown at all."""
        return not self.json

    def console(self) -> Console:
        """Return the console for tables."""
        from rich.console import Console

        console = Console(
            stderr=self.to_stdout or not self.terminal, highlight=False, markup=False, emoji=False
        )
        if not console.is_terminal and "COLUMNS" not in os.environ:
            # a file or a log has no width of its own
            console.width = LOG_WIDTH
        return console
