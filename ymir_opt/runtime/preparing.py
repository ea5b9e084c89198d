"""Data of the next jobs, read and tokenised while the present ones train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ymir_opt.runtime.dataset import JobData

__all__ = ["Preparer"]


class Preparer:
    """Loads jobs' data in one thread beside the training.

    Parameters
    ----------
    load : callable
        Returns a job's data by key, or raises.
    """

    def __init__(self, load: Callable[[str], JobData]) -> None:
        self._load = load
        self._pool = ThreadPoolExecutor(1, "prepare", initializer=lambda: torch.set_num_threads(1))
        self._futures: dict[str, Future[JobData]] = {}
        self._told: set[str] = set()

    def prepare(self, key: str) -> None:
        """Begin with a job's data unless that was done."""
        if key not in self._futures:
            self._futures[key] = self._pool.submit(self._load, key)

    def get(self, key: str) -> JobData:
        """Return a job's data, waiting for it if need be; raises what its loading raised."""
        if key in self._futures:
            return self._futures[key].result()
        data = self._load(key)
        done: Future[JobData] = Future()
        done.set_result(data)
        self._futures[key] = done
        self._told.add(key)
        return data

    def keep(self, keys: Iterable[str]) -> None:
        """Forget the data of all other jobs."""
        wanted = set(keys)
        for key in set(self._futures) - wanted:
            self._futures.pop(key).cancel()
            self._told.discard(key)

    def news(self) -> list[str]:
        """Return the jobs whose data became ready since the last question, failures left out."""
        ready = [
            k for k, f in self._futures.items() if k not in self._told and f.done() and not f.cancelled()
        ]
        self._told.update(ready)
        return [key for key in ready if self._futures[key].exception() is None]

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)
