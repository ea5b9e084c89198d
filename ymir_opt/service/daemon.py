"""The daemon: requests are taken, measured once, planned each round and on events, and carried out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ymir_opt.domain.errors import YmirError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Profiles, Snapshot
from ymir_opt.executors.base import Happening, StalePlanError
from ymir_opt.executors.journal import LeaseLostError
from ymir_opt.executors.pool import CHANGES, WorkerPool
from ymir_opt.executors.records import JobPhase
from ymir_opt.service.intake import Intake
from ymir_opt.service.measured import measured_profiles, merged_profiles
from ymir_opt.service.observe import observe
from ymir_opt.service.realised import write_rows

if TYPE_CHECKING:
    from ymir_opt.estimates.protocols import Predictor

__all__ = ["Daemon", "Settings"]

POLL_S = 0.1


@dataclass(frozen=True)
class Settings:
    """How the daemon plans.

    Attributes
    ----------
    policy : str
    round_s : float
        Seconds between plans where nothing happens.
    spacing_s : float
        At least this long between two plans, except at the first and where a plan was stale.
    solve_s : float
        Wall-clock guard of one plan.
    once_empty : bool
        End when no job is left.
    poll_s : float
        How often workers and requests are looked at.
    """

    policy: str = "ymir"
    round_s: float = 120.0
    spacing_s: float = 10.0
    solve_s: float = 20.0
    once_empty: bool = False
    poll_s: float = POLL_S


class Daemon:
    """Keeps a pool of workers doing what a policy plans.

    Parameters
    ----------
    pool : WorkerPool
        Its journal's lease is held by this process.
    settings : Settings
    profiles : Profiles
        Rows given from outside; those that workers measure come after them.
    predictor : Predictor, optional
        Fitted models.
    on_round : callable, optional
        Told of every plan that was applied: snapshot and plan.
    on_news : callable, optional
        Told of everything that happened.
    """

    def __init__(
        self,
        pool: WorkerPool,
        settings: Settings,
        profiles: Profiles | None = None,
        predictor: Predictor | None = None,
        on_round: Callable[[Snapshot, Plan], None] | None = None,
        on_news: Callable[[tuple[Happening, ...]], None] | None = None,
    ) -> None:
        self.pool, self.settings, self.predictor = pool, settings, predictor
        self._given = profiles or Profiles()
        self._on_round, self._on_news = on_round, on_news
        self._clock: Callable[[], float] = time.time
        self.intake = Intake(pool, pool.folder, self._clock)
        self._profiles: Profiles | None = None
        self._previous: Plan | None = None
        self._planned_s: float | None = None
        self._due = True

    @property
    def profiles(self) -> Profiles:
        """Everything known of speed and transfer; the same object until something was measured."""
        if self._profiles is None:
            self._profiles = merged_profiles(self._given, measured_profiles(self.pool.journal))
        return self._profiles

    def step(self) -> bool:
        """Look once at everything, and plan where it is time to; return whether there is still a job."""
        self.intake.take()
        self._take(self.pool.tick())
        if self._is_time(self._clock()):
            self.plan()
        return any(not JobPhase(job.phase).over for job in self.pool.state.jobs.values())

    def _is_time(self, now: float) -> bool:
        if self._planned_s is None:
            return True
        last, waited = self._planned_s, now - self._planned_s
        # a job that backed off may start again
        ripe = any(
            last < job.not_before_s <= now
            for job in self.pool.state.jobs.values()
            if job.not_before_s is not None and not job.over
        )
        return waited >= self.settings.round_s or ((self._due or ripe) and waited >= self.settings.spacing_s)

    def _take(self, news: tuple[Happening, ...]) -> None:
        if not news:
            return
        self._due |= any(event["event"] in CHANGES for event in news)
        if any(event["event"] == "profiled" for event in news):
            self._profiles = None
        write_rows(self.pool, news)
        if self._on_news is not None:
            self._on_news(news)

    def snapshot(self) -> Snapshot:
        """Return the snapshot of now, without jobs whose request is damaged: they end."""
        self.pool.end_unreadable()
        return observe(self.pool, self.profiles, self._clock(), self.settings.round_s)

    def solve(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan, checked; raises `YmirError` where there is none that holds."""
        from ymir_opt.api import solve
        from ymir_opt.domain.errors import InvalidPlanError
        from ymir_opt.verify import check

        plan = solve(
            snapshot,
            policy=self.settings.policy,
            previous=self._previous,
            estimates=self.predictor,
            time_limit_s=self.settings.solve_s,
        )
        broken = check(snapshot, plan, predictor=self.predictor)
        if broken:
            raise InvalidPlanError("plan", str(broken[0]), "report the snapshot")
        return plan

    def plan(self) -> None:
        """Plan and apply; a plan that something overtook is made again at the next step."""
        self._due = False
        self._planned_s = self._clock()
        try:
            snapshot = self.snapshot()
        except LeaseLostError:
            raise
        except YmirError as error:
            self.pool.state.tell("no_plan", reason=error.one_line())
            return
        if not snapshot.jobs:
            if self.pool.state.groups or self.pool.state.wishes:
                self.pool.state.set_groups(())
                self.pool.state.set_wishes(())
            return
        self.pool.observed(snapshot)
        try:
            plan = self.solve(snapshot)
        except YmirError as error:
            self.pool.state.tell("no_plan", reason=error.one_line())
            return
        except Exception as error:
            # what runs goes on, and the next round may be another; a service does not end over one plan
            self.pool.state.tell("no_plan", reason=f"internal error: {type(error).__name__}: {error}")
            return
        # planning took its time: look again before acting
        self._take(self.pool.tick())
        try:
            differences = self.pool.apply(plan, snapshot)
        except StalePlanError:
            self._due, self._planned_s = True, None
            return
        except YmirError as error:
            self.pool.state.tell("no_plan", reason=error.one_line())
            return
        for line in differences:
            self.pool.state.tell("to_do", lasting=False, difference=line)
        self._previous = plan
        if self._on_round is not None:
            self._on_round(snapshot, plan)

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Go on until asked to stop, or until no job is left where `Settings.once_empty` says so.

        Returns
        -------
        bool
            Whether every job is over. The workers were asked to checkpoint and have ended.
        """
        left = True
        while not stopped():
            left = self.step()
            if self.settings.once_empty and not left and not any(self.pool.folder.requests.glob("*.yaml")):
                break
            time.sleep(self.settings.poll_s)
        self.pool.stop()
        return not left
