"""One run of a comparison, described by plain values: what it needs, how it is run, where its result lies.

A comparison is a product of traces, policies and seeds. Every run can be made in a process of its own, leaves
its result in a file, and goes on from its checkpoint if it was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ymir_opt.domain.documents import sha256, write_atomic
from ymir_opt.domain.errors import InputError
from ymir_opt.policies.base import Cadence, load_policy
from ymir_opt.simulator.archive import read_result, write_result
from ymir_opt.simulator.bootstrap import bootstrap
from ymir_opt.simulator.bounds import JctBound, bound_instance, lower_bound
from ymir_opt.simulator.cluster import NodeEvent, NodeSpec, parse_cluster, parse_drop
from ymir_opt.simulator.engine import Engine, Progress
from ymir_opt.simulator.estimates import EstimateError
from ymir_opt.simulator.metrics import metrics_row
from ymir_opt.simulator.results import Recorder, SimulationResult
from ymir_opt.simulator.traces import TraceOptions, load_trace, scale_load
from ymir_opt.simulator.workload import Workload

__all__ = ["Experiment", "bound_of", "finished", "perform", "prepare", "row_of"]


@dataclass(frozen=True)
class Experiment:
    """A run.

    Attributes
    ----------
    trace, policy : str
    cluster : str
        Nodes x GPUs : type, such as ``8x4:V100``.
    seed : int
        0: the trace as it is; others: resampled in blocks of time.
    profiles : str or None
    scale_load : float
    add_nodes : str
        More nodes from the beginning, in the form of `cluster`; they are named a0, a1, ...
    drop_nodes : tuple of str
        ``ID@SECONDS``.
    round_s, min_spacing_s : float or None
        Cadence instead of the policy's own.
    against : {"best_single", "trace"}
        Denominator of the transfer ratios.
    warm_s : float or None
    work_error, speed_error, transfer_error : float
        Standard deviations of the logarithm.
    segments : bool
        Keep who held which GPU when.
    """

    trace: str
    policy: str
    cluster: str
    seed: int = 0
    profiles: str | None = None
    scale_load: float = 1.0
    add_nodes: str = ""
    drop_nodes: tuple[str, ...] = ()
    round_s: float | None = None
    min_spacing_s: float | None = None
    against: str = "best_single"
    warm_s: float | None = None
    work_error: float = 0.0
    speed_error: float = 0.0
    transfer_error: float = 0.0
    segments: bool = False

    def identity(self) -> str:
        """Return a hash of everything that the result depends on (the trace by name and size)."""
        path = Path(self.trace)
        size = path.stat().st_size if path.is_file() else 0
        version = metadata.version("ymir-opt")
        facts = {"drop_nodes": list(self.drop_nodes), "trace_bytes": size, "version": version}
        return sha256({**asdict(self), **facts})[:16]

    def nodes(self) -> tuple[NodeSpec, ...]:
        """Return the cluster's nodes."""
        own = parse_cluster(self.cluster)
        return own + (parse_cluster(self.add_nodes, "a") if self.add_nodes else ())

    def events(self) -> tuple[NodeEvent, ...]:
        """Return the nodes' departures."""
        return tuple(parse_drop(text) for text in self.drop_nodes)

    def cadence(self) -> Cadence | None:
        """Return the cadence that replaces the policy's own, if any."""
        if self.round_s is not None:
            return Cadence.rounds(self.round_s)
        return None if self.min_spacing_s is None else Cadence.events(self.min_spacing_s)

    def as_json(self) -> str:
        """Return the description as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Experiment:
        """Return the description that :meth:`as_json` gave."""
        values = json.loads(text)
        return cls(**{**values, "drop_nodes": tuple(values["drop_nodes"])})


def prepare(experiment: Experiment) -> Workload:
    """Return the run's workload: read, scaled, resampled.

    Raises
    ------
    InputError
        The trace, the cluster or an option is wrong.
    """
    nodes = experiment.nodes()
    options = TraceOptions(
        profiles=experiment.profiles,
        gpu_types=tuple(dict.fromkeys(node.gpu_type for node in nodes)),
        cluster_gpus=sum(node.gpus for node in nodes),
        against=experiment.against,
        warm_s=experiment.warm_s,
    )
    workload = load_trace(experiment.trace, options)
    return bootstrap(scale_load(workload, experiment.scale_load), experiment.seed)


def perform(
    experiment: Experiment,
    folder: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    workload: Workload | None = None,
) -> SimulationResult:
    """Run it, or return the result that lies in the folder already.

    Parameters
    ----------
    experiment : Experiment
    folder : Path or None
        Where result and checkpoint are kept; None: nowhere.
    progress : callable or None
        Called after every planning round.
    workload : Workload or None
        What :func:`prepare` returned for it, if it was asked already.
    """
    done = finished(experiment, folder)
    if done is not None:
        return done
    engine = Engine(
        workload or prepare(experiment),
        experiment.nodes(),
        load_policy(experiment.policy),
        policy_name=experiment.policy,
        cadence=experiment.cadence(),
        node_events=experiment.events(),
        error=EstimateError(
            experiment.work_error, experiment.speed_error, experiment.transfer_error, experiment.seed
        ),
        seed=experiment.seed,
        recorder=Recorder(segments=experiment.segments),
    )
    checkpoint = None if folder is None else folder / f"{experiment.identity()}.checkpoint.json"
    if checkpoint is not None and checkpoint.exists():
        engine.restore(checkpoint)
    result = engine.run(progress, checkpoint)
    if folder is not None:
        write_result(_path(experiment, folder), result, experiment=json.loads(experiment.as_json()))
    return result


def _path(experiment: Experiment, folder: Path) -> Path:
    return folder / f"{experiment.identity()}.json"


def finished(experiment: Experiment, folder: Path | None) -> SimulationResult | None:
    """Return the result that lies in a folder, if there is one."""
    if folder is None or not _path(experiment, folder).exists():
        return None
    return read_result(_path(experiment, folder))[0]


def bound_of(
    experiment: Experiment,
    folder: Path | None = None,
    *,
    quick: bool = False,
    workload: Workload | None = None,
) -> JctBound:
    """Return the clairvoyant lower bounds of the run's jobs on its cluster (the same for every policy)."""
    kind = "quick" if quick else "full"
    anonymous = replace(experiment, policy="", segments=False, round_s=None, min_spacing_s=None)
    path = None if folder is None else folder / f"{anonymous.identity()}.bound-{kind}.json"
    if path is not None and path.exists():
        return _read_bound(path)
    found = lower_bound(
        bound_instance(workload or prepare(experiment), experiment.nodes(), experiment.events()), quick=quick
    )
    if path is not None:
        write_atomic(path, json.dumps({name: getattr(found, name) for name in _BOUND}))
    return found


_BOUND = tuple(f.name for f in fields(JctBound) if f.name != "detail")


def _read_bound(path: Path) -> JctBound:
    try:
        values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return JctBound(**values)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(str(path), f"is no bound ({error})", "remove the file") from None


def row_of(experiment: Experiment, result: SimulationResult, bound: JctBound | None) -> dict[str, Any]:
    """Return the run's figures as ``compare --json`` prints them."""
    return metrics_row(result, bound, experiment.trace)
