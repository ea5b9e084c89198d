"""What else could be done with each job, what that would lose, and why it is not the plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ymir_opt.domain.plan import Alternative, DeltaKind, Group, ObjectiveDelta, Reason
from ymir_opt.domain.snapshot import Mode, Sharing
from ymir_opt.explain.merging import MergeReasons, RuledOut, telling
from ymir_opt.explain.options import EVERY_PAIR_TO, SHARED, Kind, Option, Options, extend
from ymir_opt.explain.pricing import GPU_FAMILIES, Pricing
from ymir_opt.explain.waiting import WaitingReasons
from ymir_opt.explain.words import gpus_of, names, seconds, worth
from ymir_opt.formulation.columns import MODES

if TYPE_CHECKING:
    from ymir_opt.planner.search import Round
    from ymir_opt.planner.selection import Selection

__all__ = ["Alternatives", "Offer"]

IntArray = NDArray[np.int64]

# lines a job in a plan; a single job that is asked about gets all of them
MOST_PLACES, MOST_MERGES, MOST_RULED_OUT = 6, 3, 4
SHARED_COLUMNS = 20
_QUOTA = {
    "quota": "that quota of queue {queue}",
    "lending": "that quota of cohort {cohort}",
    "cohort": "that quota of cohort {cohort}",
    "resource": "its CPUs or host memory",
}
_TOKEN = {
    "quota": Reason.EXCEEDS_MAX_QUOTA,
    "lending": Reason.EXCEEDS_MAX_QUOTA,
    "cohort": Reason.EXCEEDS_MAX_QUOTA,
    "nominal": Reason.EXCEEDS_MAX_QUOTA,
    "reclaim": Reason.EXCEEDS_MAX_QUOTA,
    "priority": Reason.LOWER_PRIORITY,
    "gpu": Reason.INSUFFICIENT_GPUS,
}


@dataclass(frozen=True)
class Offer:
    """An alternative, with the option that it speaks of (None where no plan can contain it)."""

    alternative: Alternative
    option: Option | None = None


@dataclass
class Alternatives:
    """The alternatives of a plan's jobs.

    Parameters
    ----------
    work : Round
        What the plan was chosen from.
    selection : Selection
        What was chosen.
    groups : list of Group
        The plan's.
    waiting : WaitingReasons
    bound : int or None
        The plan's proven bound, in quanta.
    merge : bool
        The policy makes groups.
    exact_types : frozenset of int
        GPU types that needed exact node-level rows.
    only : int or None
        One job that is asked about, with every partner and without a limit of lines.
    """

    work: Round
    selection: Selection
    groups: list[Group]
    waiting: WaitingReasons
    bound: int | None = None
    merge: bool = True
    exact_types: frozenset[int] = frozenset()
    only: int | None = None
    _group: dict[str, Group] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.evaluator = self.work.evaluator
        self.instance = self.work.evaluator.instance
        self._group = {name: group for group in self.groups for name in group.jobs}
        rows = np.arange(len(self.instance.jobs)) if self.only is None else np.array([self.only])
        self.extended = extend(self.work, rows.astype(np.int64), merge=self.merge)
        self.table = self.extended.table
        self.pricing = Pricing(self.extended, self.exact_types)
        most = SHARED_COLUMNS if self.only is None else None
        self.options = Options(self.extended, self.pricing.columns, most)
        self.merging = MergeReasons(self.work, self.only)

    # -- prices ---------------------------------------------------------------------------------

    @property
    def prices(self) -> dict[str, float]:
        """What one GPU-second of each class is worth to the round, in units of the objective.

        What a GPU of the class would save in this round's objective, over the seconds of a round. A class
        is a GPU type, with its usable memory where the type has several.
        """
        scale = self.table.quantum / self.instance.snapshot.round_s
        out = {}
        for (t, level), value in self.pricing.gpu_worth().items():
            several = len(self.instance.levels[t]) > 1
            name = self.instance.types[t]
            if several:
                name += f" {float(self.instance.levels[t][level]):.6g} GiB"
            out[name] = value * scale
        return out

    # -- one job --------------------------------------------------------------------------------

    def of(self, j: int) -> list[Offer]:
        """Return a job's alternatives: possible ones by what they lose, then what is ruled out."""
        name = self.instance.jobs[j].id
        barred = self._barred(j)
        if barred is not None:
            return [Offer(barred)]
        if not self.evaluator.jobs.known[j] and self.instance.running_of[j] < 0:
            return []
        everything = self.options.of(j)
        group = self._group.get(name)
        places: list[tuple[float, Option, int | None]] = []
        merges: list[tuple[float, Option, int | None]] = []
        ruled_out: list[Offer] = []
        if group is not None and self._follows(name, group):
            everything = [_without_transfer(option) for option in everything]
        for option in everything:
            if self._chosen(option, group):
                continue
            never = self._never(option)
            if never is not None:
                ruled_out.append(_ruled_out(option.text, never))
                continue
            loss = self._loss(option)
            (merges if option.kind is Kind.MERGE else places).append((float(loss or 0), option, loss))
        ruled_out += self._types(j, everything)
        ruled_out += self._partners(j, everything)
        limits: tuple[int | None, ...] = (None, None, None)
        if self.only is None:
            limits = (MOST_PLACES, MOST_MERGES, MOST_RULED_OUT)
        found = _least(places, limits[0]) + _least(merges, limits[1])
        found.sort(key=lambda item: item[0])
        return [self._offer(option, loss, group) for _, option, loss in found] + ruled_out[: limits[2]]

    def _barred(self, j: int) -> Alternative | None:
        """Return why nothing else may be done with a job, or None."""
        evaluator = self.evaluator
        if evaluator.jobs.backed_off[j]:
            reason, message = self.waiting.backed_off(j)
            return Alternative(option="to start now", why_not=message, reason=reason)
        if not evaluator.pinned[j]:
            return None
        return Alternative(
            option="anything else",
            why_not=self.waiting.protected(j),
            reason=Reason.MIN_RUNTIME_PROTECTED if evaluator.jobs.protected[j] else Reason.UNKNOWN_THROUGHPUT,
        )

    def _chosen(self, option: Option, group: Group | None) -> bool:
        """Say whether an option is what the plan does, or only repeats it on other GPUs."""
        if option.kind is Kind.WAIT:
            return group is None
        if group is None:
            return option.kind is Kind.START
        name = self.instance.jobs[option.job].id
        table, c = self.table, int(option.columns[0])
        same_place = self.instance.types[table.type[c]] == group.gpu_type and table.gpus[c] == group.gpus
        kept = self._kept(group)
        if option.kind is Kind.KEEP:
            return kept
        if option.kind is Kind.SOLO:
            return group.mode is Mode.SOLO and same_place
        if option.kind is Kind.START:
            if kept or group.mode is not Mode.SOLO or not same_place:
                return True
            start = int(table.start[c, 0])
            source = group.starts_from.get(name)
            planned = None if source is None else source.adapter
            return planned == (self.instance.snapshot.adapters[start].id if start >= 0 else None)
        other = self.instance.jobs[option.partner].id
        if MODES[table.mode[c]] is not group.mode or other not in group.jobs:
            return False
        if group.mode is not Mode.SEQUENCE:
            return True
        return (group.jobs.index(other) < group.jobs.index(name)) == option.after

    @staticmethod
    def _follows(name: str, group: Group) -> bool:
        """Say whether a job waits for another one's weights."""
        return group.mode is Mode.SEQUENCE and group.jobs[0] != name

    def _kept(self, group: Group) -> bool:
        return group.id in self._kept_ids

    @cached_property
    def _kept_ids(self) -> set[str]:
        return {self.instance.running[r].id for r in self.selection.kept(self.work.table)}

    # -- what an option loses -------------------------------------------------------------------

    def _offer(self, option: Option, loss: int | None, group: Group | None) -> Offer:
        delta = None
        if loss is not None:
            delta = ObjectiveDelta(value=loss * self.table.quantum, kind=DeltaKind.LOWER_BOUND)
        reason, text = self._why(option, group)
        if loss is None:
            text += ("; " if text else "") + "not proven worse: the plan's gap leaves room for it"
        return Offer(
            Alternative(option=option.text, why_not=text, reason=reason, objective_delta=delta), option
        )

    def _loss(self, option: Option) -> int | None:
        """Return by how much the objective rises at least, in quanta; None where that is not proven."""
        known = [bound for bound in (self.pricing.least(option), self.bound) if bound is not None]
        if not known:
            return None
        loss = max(known) - self.selection.objective
        return loss if loss >= 0 else None

    def _why(self, option: Option, group: Group | None) -> tuple[Reason | None, str]:
        """Say in figures what speaks against an option."""
        if option.kind is Kind.WAIT:
            return None, self._place_saves(group)
        c = self.pricing.cheapest(option)
        members = set(self.table.jobs[c].tolist())
        parts = [self._finish(option, c, group)]
        restart = self._restart(option, c)
        if restart:
            parts.append(f"a restart costs {seconds(restart)}")
        reason, text = self._resources(option, c)
        parts.append(text)
        left = [] if group is None else [n for n in group.jobs if self.instance.job_row[n] not in members]
        if left and self.only is None:
            parts.append(f"{names(left)} would need another place")
        if restart and reason is None:
            reason = Reason.SWITCH_COST_EXCEEDS_GAIN
        return reason, "; ".join(part for part in parts if part)

    def _place_saves(self, group: Group | None) -> str:
        if group is None:
            return ""
        saved = self._saved[frozenset(self.instance.job_row[name] for name in group.jobs)]
        whose = "its place" if len(group.jobs) == 1 else "the group"
        return f"{whose} saves {worth(saved)} against waiting"

    @cached_property
    def _saved(self) -> dict[frozenset[int], float]:
        """What each chosen group saves against queueing its members, in units of the objective."""
        table, out = self.work.table, {}
        for c, cost in zip(self.selection.columns, self.selection.cost, strict=True):
            rows = [int(j) for j in table.jobs[c] if j >= 0]
            out[frozenset(rows)] = float(table.queued_cost[rows].sum() - cost) * table.quantum
        return out

    def _finish(self, option: Option, c: int, group: Group | None) -> str:
        """Return when the job and its partner would finish."""
        table = self.table
        now = self.instance.snapshot.taken_at_s
        found: dict[int, float] = dict(zip(table.jobs[c].tolist(), table.finish_s[c].tolist(), strict=True))
        mine = found[option.job]
        if not math.isfinite(mine):
            return ""
        text = f"would finish in {seconds(mine)}"
        planned = None
        if group is not None:
            planned = group.predicted[self.instance.jobs[option.job].id].finish_at_s
        if planned is not None:
            planned_s = seconds(planned - now)
            text += ", as in the plan" if planned_s == seconds(mine) else f", in the plan in {planned_s}"
        for other, finish in found.items():
            if other >= 0 and other != option.job and math.isfinite(finish):
                text += f"; {self.instance.jobs[other].id} in {seconds(finish)}"
        return text

    def _restart(self, option: Option, c: int) -> float:
        """Return the seconds that a running job loses by a change: its start, and work since a checkpoint."""
        j, r = option.job, int(self.instance.running_of[option.job])
        if option.kind is Kind.KEEP or r < 0 or j not in self.instance.running[r].holders:
            return 0.0
        jobs, t = self.evaluator.jobs, int(self.table.type[c])
        start = jobs.warm[j, t] if self.table.warm[c] else jobs.cold[j, t]
        return float(start + self.evaluator.lost_s[j])

    def _resources(self, option: Option, c: int) -> tuple[Reason | None, str]:
        """Name the resource that others need most of what a column takes, and what it is worth to them."""
        shares: dict[str, float] = {}
        for family, value in self.pricing.worth(c).items():
            key = "gpu" if family in GPU_FAMILIES or family.startswith("node") else family
            shares[key] = shares.get(key, 0.0) + value
        if not shares:
            return None, ""
        family = max(shares, key=lambda key: (shares[key], key))
        value = shares[family] * self.table.quantum
        if value <= 0:
            return None, ""
        reason = _TOKEN.get(family)
        if family == "gpu":
            what = f"its {self.table.gpus[c]} {self.instance.types[self.table.type[c]]}"
            return reason, f"others save {worth(value)} with {what}"
        if family == "priority":
            return reason, "it would take GPUs from higher priority classes"
        if family in ("nominal", "reclaim"):
            return reason, "it would take what other queues may keep"
        if family in _QUOTA:
            queue = self.instance.jobs[option.job].queue
            entry = self.instance.queues.get(queue)
            cohort = entry.cohort if entry is not None else None
            return (
                reason,
                f"others save {worth(value)} with {_QUOTA[family].format(queue=queue, cohort=cohort)}",
            )
        return reason, f"others save {worth(value)} with what it takes"

    # -- what is ruled out ----------------------------------------------------------------------

    def _never(self, option: Option) -> RuledOut | None:
        """Return the quota that an option alone exceeds in any plan, or None."""
        if option.kind is not Kind.SOLO:
            return None
        c, quotas = int(option.columns[0]), self.work.quotas
        row = int(quotas.row_of[quotas.queue_of[option.job], self.table.type[c]])
        if row < 0 or not self._grows(option.job, c):
            return None
        rule, unit = quotas.rows[row], quotas.unit
        needed = int(self.table.gpus[c])
        if rule.limit is not None and needed * unit > rule.limit:
            owner, limit = f"queue {rule.queue}", rule.limit / unit
        else:
            pool = next((p for p in quotas.pools() if row in p.rows), None)
            if pool is None:
                return None
            owner = f"cohort {rule.cohort}"
            limit = sum(quotas.rows[r].nominal for r in pool.rows) / unit
            if needed <= limit:
                return None
        return Reason.EXCEEDS_MAX_QUOTA, f"needs {gpus_of(needed)}, the quota of {owner} is {gpus_of(limit)}"

    def _grows(self, j: int, c: int) -> bool:
        """Say whether a column charges a job more than it is charged now (kept use may exceed a quota)."""
        r = int(self.instance.running_of[j])
        if r < 0 or j not in self.instance.running[r].holders:
            return True
        group = self.instance.running[r]
        return bool(group.type != self.table.type[c] or len(group.gpus) < self.table.gpus[c])

    def _types(self, j: int, everything: list[Option]) -> list[Offer]:
        """Return the GPU types on which the job cannot run at all, each with its reason."""
        possible = {int(self.table.type[c]) for option in everything for c in option.columns}
        return [
            _ruled_out(self.instance.types[t], self.waiting.on_type(j, t))
            for t in range(len(self.instance.types))
            if t not in possible
        ]

    def _partners(self, j: int, everything: list[Option]) -> list[Offer]:
        """Return the merges that are no candidates: one line a partner, the most telling mode's."""
        jobs = self.evaluator.jobs
        if jobs.rigid[j] or jobs.fm[j] < 0:
            return []
        others = np.flatnonzero((jobs.fm == jobs.fm[j]) & ~jobs.rigid)
        others = others[others != j]
        if not self.merge:
            if not len(others):
                return []
            return [_ruled_out("any group", (None, "this policy makes no new groups"))]
        if self.instance.jobs[j].sharing is Sharing.NONE:
            if not len(others):
                return []
            listed = names((self.instance.jobs[o].id for o in others), 3, "job")
            return [
                _ruled_out(
                    f"any group with {listed}", (Reason.SHARING_DISABLED, "it shares nothing (sharing: none)")
                )
            ]
        few = jobs.count <= EVERY_PAIR_TO or self.only is not None
        asked = range(jobs.count) if few else self.merging.partners(j)
        offered = {(option.partner, option.text) for option in everything if option.kind is Kind.MERGE}
        found: list[tuple[int, str, Offer]] = []
        for other in asked:
            if other == j:
                continue
            best = self._ruled_out_partner(j, int(other), offered)
            if best is not None:
                found.append(best)
        return [offer for _, _, offer in sorted(found, key=lambda item: item[:2])]

    def _ruled_out_partner(
        self, j: int, other: int, offered: set[tuple[int, str]]
    ) -> tuple[int, str, Offer] | None:
        name = self.instance.jobs[other].id
        options: list[tuple[int, str, RuledOut]] = []
        for mode in SHARED:
            ways = [(f"{mode.value} with {name}", j, other)]
            if mode is Mode.SEQUENCE:
                ways = [(f"sequence before {name}", j, other), (f"sequence after {name}", other, j)]
            for text, first, second in ways:
                if (other, text) in offered:
                    continue
                why = self.merging.why_not(mode, first, second)
                if why is not None:
                    options.append((telling(why), text, why))
        if not options:
            return None
        rank, text, why = min(options, key=lambda item: item[:2])
        if rank > telling((Reason.SHARING_DISABLED, "")) and any(o == other for o, _ in offered):
            return None  # the pair is offered in another mode, and nothing telling is known of this one
        return rank, text, _ruled_out(text, why)


def _without_transfer(option: Option) -> Option:
    """Tell waiting for one's own start from waiting for another job's weights."""
    return replace(option, text="to wait without the transfer") if option.kind is Kind.WAIT else option


def _ruled_out(option: str, why: RuledOut) -> Offer:
    return Offer(Alternative(option=option, why_not=why[1], reason=why[0]))


def _least(
    found: list[tuple[float, Option, int | None]], limit: int | None
) -> list[tuple[float, Option, int | None]]:
    return sorted(found, key=lambda item: item[0])[:limit]
