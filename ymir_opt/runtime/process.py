"""The worker as a process: ``python -m ymir_opt.runtime.process --worker DIR --jobs-dir DIR --action ID``.

It reads ``assignment.json`` at step boundaries, writes ``status.json`` every second and events as they
come. SIGTERM, or ``"stop": true``: the step is finished, every job checkpointed, exit code 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError

if TYPE_CHECKING:
    from ymir_opt.runtime.worker import Worker

__all__ = ["AssignmentFile", "Heartbeat", "main", "serve"]

HEARTBEAT_S = 1.0
IDLE_S = 0.05


class AssignmentFile:
    """Reads the assignment when it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> Mapping[str, Any] | None:
        """Return the assignment if the file is another than last time, else None; raises `InputError`."""
        try:
            stat = os.stat(self.path)
        except FileNotFoundError:
            return None
        mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if mark == self._seen:
            return None
        self._seen = mark
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError) as error:
            problem = f"cannot be read ({' '.join(str(error).split())[:100]})"
            raise InputError(str(self.path), problem, "write it again") from None
        if not isinstance(found, dict) or found.get("schema") != "ymir.assignment/1":
            raise InputError(str(self.path), "is not of schema ymir.assignment/1", "write it again")
        return found


class Heartbeat:
    """Writes the newest status every second, also during long steps; ``stop`` writes the last one.

    ``tick_s`` in it is when the training loop last went round: a process that hangs is seen by it.
    """

    def __init__(self, path: Path, started: float) -> None:
        self.path = path
        self.status: Mapping[str, Any] = {
            "pid": os.getpid(),
            "started": started,
            "version": None,
            "foundation_model": None,
            "members": {},
            "rss_mib": None,
            "ready": False,
        }
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def write(self) -> None:
        """Write the status once, as far as the disk allows."""
        try:
            write_atomic(self.path, json.dumps({**self.status, "at_s": round(time.time(), 3)}) + "\n")
        except InputError:
            return

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT_S):
            self.write()

    def start(self) -> None:
        """Begin."""
        self.write()
        self._thread.start()

    def stop(self) -> None:
        """End, after a last status."""
        self._end.set()
        self._thread.join()
        self.write()


def serve(worker: Worker, folder: Path, heartbeat: Heartbeat, ended: Callable[[], bool]) -> None:
    """Run a worker by its folder until it is told to stop.

    Parameters
    ----------
    worker : Worker
    folder : Path
    heartbeat : Heartbeat
    ended : callable
        Asked between steps whether the process is to end.
    """
    assignments = AssignmentFile(folder / "assignment.json")
    while not ended() and not worker.stopped:
        try:
            found = assignments.changed()
            if found is not None:
                worker.assign(found)
        except InputError as error:
            worker.events.write("failed", reason=error.one_line())
        busy = worker.tick()
        heartbeat.status = {**worker.status(), "tick_s": round(time.time(), 3)}
        if not busy:
            time.sleep(IDLE_S)
    worker.stop()
    worker.events.flush()
    heartbeat.status = worker.status()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; return its exit code."""
    started = time.time()
    parser = argparse.ArgumentParser(prog="python -m ymir_opt.runtime.process", description="A worker.")
    parser.add_argument("--worker", type=Path, required=True, help="the worker's folder")
    parser.add_argument("--jobs-dir", type=Path, required=True, help="the jobs folder")
    parser.add_argument("--action", required=True, help="id of the action that started it")
    options = parser.parse_args(arguments)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # one thread a process: more of them fight for the cores that others use
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    heartbeat = Heartbeat(options.worker / "status.json", started)
    heartbeat.start()
    try:
        import torch

        from ymir_opt.runtime.worker import Worker

        torch.set_num_threads(1)
        worker = Worker(options.worker, options.jobs_dir, started=started)
        serve(worker, options.worker, heartbeat, stop.is_set)
    finally:
        heartbeat.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
