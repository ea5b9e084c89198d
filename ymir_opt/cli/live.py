"""A table of jobs that follows what happens, and one line for each thing that happens elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ymir_opt.cli.console import Output
from ymir_opt.cli.formats import duration, figure, printable

if TYPE_CHECKING:
    from rich.table import Table

    from ymir_opt.executors.base import Happening
    from ymir_opt.service.listing import Listed

__all__ = ["Follower", "jobs_table", "stop_on_signals"]

QUIET = frozenset(("ready", "applied", "adopted"))
REFRESH_S = 0.5


def jobs_table(lines: Sequence[Listed], now: float, title: str = "jobs") -> Table:
    """Return the table of ``jobs ps`` and of the live view."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for name in ("job", "tenant", "state", "where", "samples", "metric", "samples/s", "age", "reason"):
        # names and reasons may be long; the figures beside them stay whole
        table.add_column(name, overflow="fold", no_wrap=name not in ("job", "tenant", "reason"))
    for line in lines:
        done = "" if line.samples is None else f"{line.samples:.0f}/{line.max_samples or 0:.0f}"
        until = line.finished_at_s if line.finished_at_s is not None else now
        where = line.where if line.mode in (None, "solo") else f"{line.where} {line.mode}"
        table.add_row(
            printable(line.id),
            printable(line.tenant),
            line.state,
            where,
            done,
            "" if line.metric is None else figure(line.metric, 4),
            "" if line.samples_per_s is None else figure(line.samples_per_s, 3),
            "" if line.submitted_at_s is None else duration(until - line.submitted_at_s),
            printable(line.reason),
        )
    return table


class Follower:
    """Shows what happens: a live table on a terminal, else a line for each event.

    Parameters
    ----------
    lines : callable
        Returns the present lines of the table.
    """

    def __init__(self, lines: Callable[[], Sequence[Listed]]) -> None:
        self._lines = lines
        self._console = Output().console()
        self._live: Any = None
        self._shown_s = 0.0

    def __enter__(self) -> Follower:
        """Begin the live table where there is a terminal."""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last table on the screen."""
        if self._live is not None:
            self.show(force=True)
            self._live.stop()

    def show(self, *, force: bool = False) -> None:
        """Draw the table anew, not too often."""
        now = time.time()
        if self._live is None or (not force and now - self._shown_s < REFRESH_S):
            return
        self._shown_s = now
        self._live.update(jobs_table(self._lines(), now), refresh=True)

    def news(self, events: tuple[Happening, ...]) -> None:
        """Tell what happened."""
        from rich.text import Text

        if self._live is not None:
            return
        for event in events:
            if event["event"] in QUIET:
                continue
            facts = " ".join(
                f"{name}={value}"
                for name, value in event.items()
                if name not in ("event", "at_s", "seq", "rows") and value not in (None, "")
            )
            clock = time.strftime("%H:%M:%S", time.localtime(float(event["at_s"])))
            self._console.print(Text(printable(f"{clock} {event['event']} {facts}")), soft_wrap=True)


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a wish to stop; yields what asks for it, and restores both after."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: received.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
