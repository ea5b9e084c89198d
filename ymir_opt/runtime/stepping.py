"""One step for several jobs, in which the failure of one does not reach the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ymir_opt.runtime.dataset import Encoded
from ymir_opt.runtime.member import Member
from ymir_opt.runtime.memory import is_out_of_memory, release
from ymir_opt.runtime.session import Result, Rows, Runtime

__all__ = ["Outcome", "Stepper"]


@dataclass(frozen=True)
class Outcome:
    """What a step was for one member: its loss, or why the job cannot go on."""

    loss: float = float("nan")
    updated: bool = False
    seconds: float = 0.0
    failure: str = ""


class Stepper:
    """Takes steps; remembers whether the members fit into memory together.

    Parameters
    ----------
    runtime : Runtime
    report : callable
        Called as ``report(key or None, text)`` where memory ran out.
    """

    def __init__(self, runtime: Runtime, report: Callable[[str | None, str], None]) -> None:
        self.runtime = runtime
        self.report = report
        self._too_large: frozenset[str] = frozenset()

    def step(self, members: Sequence[Member]) -> dict[str, Outcome]:
        """Train every member on its next rows, in one pass where that works.

        An error in the common pass changes no weight; every member then takes its step alone, so that
        the one at fault is found. Out of memory alone: the rows a pass are halved until they fit.
        """
        keys = frozenset(member.key for member in members)
        if len(members) > 1 and not (self._too_large and self._too_large <= keys):
            try:
                return self._pass(members)
            except (RuntimeError, MemoryError, ValueError, IndexError) as error:
                self._drop(members)
                if is_out_of_memory(error):
                    self._too_large = keys
                    self.report(None, f"{len(members)} members do not fit together; they take turns")
        return {member.key: self._alone(member) for member in members}

    def _drop(self, members: Sequence[Member]) -> None:
        for member in members:
            self.runtime.adapters[member.adapter].drop_gradients()
        release(self.runtime.device)

    def _alone(self, member: Member) -> Outcome:
        while True:
            try:
                return self._pass([member])[member.key]
            except (RuntimeError, MemoryError, ValueError, IndexError) as error:
                self._drop([member])
                if not is_out_of_memory(error):
                    text = " ".join(str(error).split())[:160] or type(error).__name__
                    return Outcome(failure=f"a step at sample {member.samples} failed ({text})")
                if member.rows_per_pass == 1:
                    return Outcome(
                        failure="out of memory with one row a pass; lower training.max_length or peft.r, "
                        "or use a larger device"
                    )
                member.rows_per_pass = (member.rows_per_pass + 1) // 2
                self.report(member.key, f"out of memory: {member.rows_per_pass} rows a pass from here on")

    def _pass(self, members: Sequence[Member]) -> dict[str, Outcome]:
        started = time.perf_counter()
        batches = {member.key: member.batch() for member in members}
        losses = dict.fromkeys(batches, 0.0)
        usable = dict.fromkeys(batches, True)
        for part in range(max(len(parts) for parts in batches.values())):
            active = [member for member in members if part < len(batches[member.key])]
            for member, result in zip(active, self._accumulate(active, batches, part), strict=True):
                share = len(batches[member.key][part].labels) / member.settings.batch_size
                losses[member.key] += share * result.loss
                usable[member.key] &= result.updated
        updated = {m.key: self.runtime.update(m.adapter, usable=usable[m.key]) for m in members}
        seconds = time.perf_counter() - started
        return {key: Outcome(losses[key], updated[key], seconds) for key in batches}

    def _accumulate(
        self, active: Sequence[Member], batches: dict[str, list[Encoded]], part: int
    ) -> list[Result]:
        rows = []
        for member in active:
            encoded = batches[member.key][part]
            share = len(encoded.labels) / member.settings.batch_size
            rows.append(Rows(member.adapter, member.key, encoded.inputs, encoded.labels, share, part))
        return self.runtime.accumulate(rows)
