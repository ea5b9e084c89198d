"""Pollux: a genetic search over allocations for the power mean of speed-ups, with fixed batches.

* Source: Qiao et al., OSDI'21, as configured in Titan's public simulator (SoCC'22); batches stay fixed.
* Parameters: population and generations of 10; fitness is the power mean (p = -1) of speed-ups over the fair
  share; a job may at most double the largest count it has had; at most one distributed job a node. The
  reference searches with NSGA-II for a second objective (utility) as well and then takes the best fitness;
  here the same operators are used with elitist survival by fitness.
* Cadence: rounds of 300 s.
* Variants: ``:faithful`` keeps the reference's mistake of comparing with an empty cluster, so that every
  running job is charged for a restart and none is spared one; ``:fixed`` charges the jobs whose allocation
  changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ymir_opt.policies.base import Cadence, variant
from ymir_opt.policies.view import Decision, SnapshotView

__all__ = ["Pollux"]

POPULATION = 10
GENERATIONS = 10
DELAY_S = 30.0
MAX_REPLICAS = 64

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Pollux:
    """Genetic search over (job, node) replica counts."""

    def __init__(self, text: str = "", seed: int = 0) -> None:
        self.fixed = "fixed" in variant("pollux", text, ())
        self.name = f"pollux:{text}" if text else "pollux"
        self.cadence = Cadence.rounds(300.0)
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """Forget the population and what was profiled."""
        self._population: dict[int, list[list[int]]] = {}
        self._most: dict[int, int] = {}
        self._round = 0

    def state(self) -> dict[str, Any]:
        """Return what is kept between rounds, as JSON values."""
        return {
            "population": list(self._population.items()),
            "most": list(self._most.items()),
            "round": self._round,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state` gave."""
        self._population = {int(key): value for key, value in state["population"]}
        self._most = {int(key): int(value) for key, value in state["most"]}
        self._round = int(state["round"])

    def decide(self, view: SnapshotView) -> Decision:
        """Search this round's allocation."""
        gpus = np.zeros(len(view), dtype=np.int64)
        rows = np.flatnonzero(view.startable | view.running)
        nodes = np.flatnonzero(view.nodes["node_ready"])
        if not len(rows) or not len(nodes):
            return Decision(gpus)
        rng = np.random.default_rng([self.seed, self._round])
        self._round += 1
        # by attained service, then submission
        rows = rows[np.lexsort((rows, view.submitted_at_s[rows], view.held_gpu_s[rows]))]
        serials = view.column("serial")[rows].tolist()
        search = _Search(view, rows, nodes, self._limits(view, rows, serials), self.fixed, rng)
        best, population = search.run(self._seeds(serials, len(nodes), search))
        self._population = {s: population[:, j].tolist() for j, s in enumerate(serials)}
        counts = best.sum(axis=1)
        counts[counts < view.min_gpus[rows]] = 0
        gpus[rows] = counts
        for serial, count in zip(serials, counts.tolist(), strict=True):
            self._most[serial] = max(self._most.get(serial, 1), count)
        self._most = {s: self._most[s] for s in serials}
        return Decision(gpus, order=rows)

    def _limits(self, view: SnapshotView, rows: IntArray, serials: list[int]) -> IntArray:
        profiled = np.array([max(1, self._most.get(s, 0)) for s in serials], dtype=np.int64)
        doubled = np.minimum(2 * profiled, MAX_REPLICAS)
        return np.minimum(np.maximum(doubled, view.min_gpus[rows]), view.max_gpus[rows])

    def _seeds(self, serials: list[int], nodes: int, search: _Search) -> IntArray:
        """Return the last population, restricted to the present jobs and nodes."""
        states = np.zeros((POPULATION, len(serials), nodes), dtype=np.int64)
        for j, serial in enumerate(serials):
            known = self._population.get(serial)
            if known is not None and len(known[0]) == nodes:
                kept = np.array(known, dtype=np.int64)[:POPULATION]
                states[: len(kept), j] = kept
        states[0] = search.base
        return states


class _Search:
    """One round's genetic search."""

    def __init__(
        self,
        view: SnapshotView,
        rows: IntArray,
        nodes: IntArray,
        limit: IntArray,
        fixed: bool,
        rng: np.random.Generator,
    ) -> None:
        self.size = view.nodes["node_gpus"][nodes].astype(np.int64)
        self.limit = limit
        self.rng = rng
        total, jobs = int(self.size.sum()), len(rows)
        top = int(limit.max())
        counts = np.arange(1, top + 1)
        times = np.stack([view.time_s(rows, np.full(jobs, n)) for n in counts.tolist()], axis=1)
        fair = int(min(max(1, -(-total // jobs)), view.speed.counts))
        base = view.time_s(rows, np.minimum(fair, view.max_gpus[rows]))
        speedup = np.divide(base[:, None], times, out=np.zeros_like(times), where=np.isfinite(times))
        speedup[~np.isfinite(base)] = 0.0
        self.speedup = np.concatenate([np.zeros((jobs, 1)), speedup], axis=1) * len(nodes) / total
        age, restarts = view.age_s[rows], view.column("restarts")[rows]
        self.factor = np.maximum(age - restarts * DELAY_S, 0.0) / (age + DELAY_S)
        self.base = _packed(view.gpus[rows], self.size)
        self.held = view.gpus[rows] if fixed else np.zeros(jobs, dtype=np.int64)

    def fitness(self, states: IntArray) -> FloatArray:
        """Return the power mean of each state, float64[P]."""
        replicas = states.sum(axis=2)
        jobs = np.arange(replicas.shape[1])
        value = self.speedup[jobs, np.minimum(replicas, self.speedup.shape[1] - 1)]
        value = value * np.where(replicas != self.held, self.factor, 1.0)
        return np.asarray(1.0 / np.mean(1.0 / (value + 1e-3), axis=1))

    def run(self, states: IntArray) -> tuple[IntArray, IntArray]:
        """Return the best state and the last population."""
        population = self.repair(states)
        score = self.fitness(population)
        for _ in range(GENERATIONS):
            children = self.repair(self.mutate(self.cross(population)))
            population = np.concatenate([population, children])
            score = np.concatenate([score, self.fitness(children)])
            keep = np.argsort(-score, kind="stable")[:POPULATION]
            population, score = population[keep], score[keep]
        return population[int(np.argmax(score))], population

    def cross(self, states: IntArray) -> IntArray:
        """Single-point crossover over jobs between random pairs."""
        size, jobs = states.shape[:2]
        first, second = self.rng.integers(size, size=(2, size))
        point = self.rng.integers(jobs, size=(size, 1))
        mask = (np.arange(jobs)[None, :] < point)[:, :, None]
        return np.asarray(np.where(mask, states[first], states[second]))

    def mutate(self, states: IntArray) -> IntArray:
        """Reset jobs to what they hold, drop some replicas, and add some where a node has room."""
        rng, shape = self.rng, states.shape
        reset = rng.random(shape[:2]) < 0.1
        states = np.where(reset[:, :, None], self.base, states)
        drop = np.where(rng.random(shape) < 0.1, 0.1, 0.0)
        states[rng.random(shape) < drop] = 0
        room = states.sum(axis=1, keepdims=True) < self.size
        room = np.broadcast_to(room, shape)
        used = (states > 0) & room
        p1 = room / np.maximum(room.sum(axis=1, keepdims=True), 1.0)
        p2 = used / np.maximum(used.sum(axis=1, keepdims=True), 1.0)
        change = rng.random(shape) < p1 + p2 - p1 * p2
        wanted = rng.integers(states, np.maximum(self.size, states) + 1)
        return np.asarray(np.where(change, wanted, states))

    def repair(self, states: IntArray) -> IntArray:
        """Enforce one distributed job a node, the jobs' limits, and the nodes' GPUs."""
        distributed = np.count_nonzero(states, axis=2) > 1
        spread = (states > 0) & distributed[:, :, None]
        states = np.where(spread & (spread.cumsum(axis=1) > 1), 0, states)
        states = np.minimum(states, self.size)
        shuffle = np.argsort(self.rng.random(states.shape), axis=2)
        shuffled = np.take_along_axis(states, shuffle, axis=2)
        capped = np.minimum(np.cumsum(shuffled, axis=2), self.limit[None, :, None])
        shuffled = np.diff(capped, axis=2, prepend=0)
        states = np.take_along_axis(shuffled, np.argsort(shuffle, axis=2), axis=2)
        within = np.minimum(np.cumsum(states, axis=1), self.size)
        return np.asarray(np.diff(within, axis=1, prepend=0))


def _packed(counts: IntArray, size: IntArray) -> IntArray:
    """Return some placement of the counts on the nodes, int64[J, N] (which nodes does not matter)."""
    free = size.copy()
    out = np.zeros((len(counts), len(size)), dtype=np.int64)
    for j in np.argsort(-counts, kind="stable").tolist():
        left = int(counts[j])
        for n in np.argsort(-free, kind="stable").tolist():
            take = min(left, int(free[n]))
            if take <= 0:
                break
            out[j, n] = take
            free[n] -= take
            left -= take
    return out
