"""Workers as Ray actors: one placement group a GPU, on the node that the plan names.

Each actor is detached, named by its action's id and runs the same worker process as the local executor, as a
child that dies with it; both speak through the jobs folder, which every node must see. Without an address
a Ray instance of this machine is started, which emulates the nodes' GPUs on its cores and ends with this
process; an existing cluster is never stopped.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Node, NodeState
from ymir_opt.executors.backend import Handle, Launch
from ymir_opt.executors.base import Options
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.local import CPU, WORKER, memory_gib, this_machine, worker_environment
from ymir_opt.executors.pool import WorkerPool

__all__ = ["RayBackend", "WorkerActor", "connect", "make"]

ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
OBJECT_STORE = 80 << 20
NODES_EVERY_S = 0.5
POLL_EVERY_S = 0.5
READY_S = 10.0
ANSWER_S = 5.0
SHARE = 0.01
UNKNOWN_GPU_GIB = 16.0


class WorkerActor:
    """The actor's body: starts one worker process and answers for it."""

    def __init__(self, command: Sequence[str], folder: str, jobs_dir: str, cpu: bool) -> None:
        environment = worker_environment()
        if cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"the jobs folder {jobs_dir} is not visible on this node")
        with open(Path(folder) / "stderr.txt", "ab") as errors:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment,
                cwd=jobs_dir,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 -- one system call; nothing else can do it
            )

    def poll(self) -> int | None:
        """Return the process's exit code, None while it runs."""
        return self._child.poll()

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self._child.poll() is None:
            self._child.send_signal(number)


def _die_with_parent() -> None:
    import ctypes

    # a node that is lost must not leave a process behind that goes on training
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


class RayBackend:
    """Actors of a Ray cluster.

    Parameters
    ----------
    folder : JobsFolder
        Its path names the namespace of the actors, so that two folders never meet.
    options : Options
        ``address`` of a running cluster; else ``nodes`` are emulated on this machine.
    """

    name = "ray"

    def __init__(self, folder: JobsFolder, options: Options) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise InputError(
                "--executor ray", "needs the package ray", "pip install 'ymir-opt[ray]'"
            ) from None
        self._ray: Any = ray
        self._command = tuple(options.worker or WORKER)
        self._namespace = f"ymir-{hashlib.sha256(str(folder.root).encode()).hexdigest()[:10]}"
        self._wanted = {node.gpu_type: node.gpu_memory_gib for node in options.nodes}
        self._actors: dict[str, Any] = {}
        self._polls: dict[str, Any] = {}
        self._polled_s: dict[str, float] = {}
        self._groups: dict[tuple[str, int], Any] = {}
        self._hosts: dict[str, str] = {}
        self._emulated: tuple[Node, ...] = ()
        self._known: dict[str, Node] = {}
        self._looked_s = 0.0
        self._own = not ray.is_initialized()
        if options.address is None:
            self._emulated = options.nodes or this_machine()
        own = {"num_gpus": sum(node.gpus for node in self._emulated)}
        connect(options.address, "--address", own, namespace=self._namespace)

    # -- nodes --------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with GPUs; one that left stays, as ``down``."""
        now = time.monotonic()
        if self._known and now - self._looked_s < NODES_EVERY_S:
            return tuple(self._known.values())
        self._looked_s = now
        alive = {str(node["NodeID"]): node for node in self._ray.nodes() if node["Alive"]}
        if self._emulated:
            # every emulated node is on the one machine there is
            host = next(iter(alive), "")
            self._hosts = {node.id: host for node in self._emulated}
            self._known = {node.id: node for node in self._emulated}
            return self._emulated
        for name in [*self._known]:
            if self._hosts[name] not in alive:
                self._known[name] = self._known[name].model_copy(update={"state": NodeState.DOWN})
        for number, facts in sorted(alive.items()):
            gpus = int(facts["Resources"].get("GPU", 0))
            if gpus:
                node = self._node(number, facts["Resources"], gpus)
                self._known[node.id] = node
                self._hosts[node.id] = number
        return tuple(self._known.values())

    def _node(self, number: str, resources: Mapping[str, float], gpus: int) -> Node:
        kinds = sorted(name.partition(":")[2] for name in resources if name.startswith("accelerator_type:"))
        kind = kinds[0] if kinds else CPU
        memory = resources.get("memory", memory_gib() * 2**30) / 2**30 / gpus
        if kind != CPU:
            memory = self._wanted.get(kind, UNKNOWN_GPU_GIB)
        return Node(id=f"ray-{number[:12]}", gpu_type=kind, gpus=gpus, gpu_memory_gib=memory)

    def device(self, node: str, gpu: int) -> str:
        """Return ``cpu`` for emulated GPUs, else ``cuda:0``: Ray shows an actor its own device only."""
        known = self._known.get(node)
        return "cpu" if known is None or known.gpu_type == CPU else "cuda:0"

    # -- actors -------------------------------------------------------------------------------

    def _group(self, node: str, gpu: int) -> Any:
        """Return the placement group that holds a GPU of a node, made if it is not there yet."""
        from ray.util.placement_group import get_placement_group, placement_group

        if (node, gpu) in self._groups:
            return self._groups[node, gpu]
        name = f"{self._namespace}-{node}-{gpu}"
        try:
            group = get_placement_group(name)
        except ValueError:
            group = placement_group(
                [{"GPU": 1}],
                strategy="STRICT_PACK",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": self._hosts[node]}],
            )
        if not group.wait(READY_S):
            raise InputError(
                f"node {node}",
                f"GPU {gpu} is not free after {READY_S:.0f} s",
                "see what else uses the cluster",
            )
        self._groups[node, gpu] = group
        return group

    def start(self, launch: Launch) -> Handle:
        """Start an actor that is named by its action."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._looked_s = -NODES_EVERY_S
        if not any(node.id == launch.node and node.state is not NodeState.DOWN for node in self.nodes()):
            raise InputError(f"node {launch.node}", "is not a node of this cluster", "plan for its nodes")
        try:
            actor = self._ray.remote(WorkerActor)
            self._actors[launch.action] = actor.options(
                name=launch.action,
                lifetime="detached",
                num_cpus=0,
                num_gpus=SHARE,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._group(launch.node, launch.gpu)
                ),
            ).remote(
                (*self._command, *launch.arguments),
                str(launch.folder),
                str(launch.jobs_dir),
                self.device(launch.node, launch.gpu) == "cpu",
            )
        except self._ray.exceptions.RayError as error:
            text = " ".join(str(error).split())[:160]
            raise InputError(f"worker {launch.action}", f"cannot be started ({text})", "see Ray") from None
        return {"actor": launch.action}

    def find(self) -> Mapping[str, Handle]:
        """Return the actors of this folder's namespace, by name."""
        found = self._ray.util.list_named_actors(all_namespaces=True)
        return {
            actor["name"]: {"actor": actor["name"]}
            for actor in found
            if actor["namespace"] == self._namespace
        }

    def _actor(self, action: str) -> Any:
        if action not in self._actors:
            try:
                self._actors[action] = self._ray.get_actor(action, namespace=self._namespace)
            except ValueError:
                return None
        return self._actors[action]

    def ended(self, action: str, handle: Handle) -> str | None:
        """Ask the actor for its process, without waiting for the answer."""
        actor = self._actor(action)
        if actor is None:
            self._looked_s = -NODES_EVERY_S
            return "its actor is gone"
        now = time.monotonic()
        if action not in self._polls:
            if now - self._polled_s.get(action, 0.0) < POLL_EVERY_S:
                return None
            self._polls[action], self._polled_s[action] = actor.poll.remote(), now
        ready, _ = self._ray.wait([self._polls[action]], timeout=0)
        if not ready:
            return None
        answer = self._polls.pop(action)
        try:
            code = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._forget(action)
            self._looked_s = -NODES_EVERY_S
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"its actor died: {(lines or [type(error).__name__])[-1][:160]}"
        if code is None:
            return None
        self._ray.kill(actor)
        self._forget(action)
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def _forget(self, action: str) -> None:
        for table in (self._actors, self._polls, self._polled_s):
            table.pop(action, None)

    def ask(self, action: str, handle: Handle) -> None:
        """Send SIGTERM to the actor's process."""
        actor = self._actor(action)
        if actor is not None:
            actor.send.remote(int(signal.SIGTERM))

    def kill(self, action: str, handle: Handle) -> None:
        """End the actor, and with it its process."""
        actor = self._actor(action)
        if actor is not None:
            self._ray.kill(actor)

    def over_limit(self, action: str, handle: Handle, launch_at: tuple[str, int]) -> str | None:
        """Leave memory to Ray's own monitor."""
        return None

    def close(self) -> None:
        """Give the GPUs back where no actor needs them, and leave the cluster."""
        from ray.util.placement_group import remove_placement_group

        if not self._ray.is_initialized():
            return
        if not self.find():
            for group in self._groups.values():
                remove_placement_group(group)
        self._groups.clear()
        if self._own:
            self._ray.shutdown()


def connect(address: str | None, place: str, own: Mapping[str, int], **options: Any) -> None:
    """Connect to a running cluster, or start an instance of this machine with the resources ``own``.

    Raises
    ------
    InputError
        No cluster answers; ``place`` is where its address was given.
    """
    import ray

    os.environ.update({key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()})
    options |= {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(**own, object_store_memory=OBJECT_STORE, include_dashboard=False, **options)
        return
    _require_answer(address, place)
    try:
        ray.init(address=address, ignore_reinit_error=True, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:160]
        raise InputError(place, f"no Ray cluster answers ({text})", "start one first") from None


def _require_answer(address: str, place: str) -> None:
    """Refuse an address at which nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            place, f"no Ray cluster answers at {address[:80]} ({error})", "start one first"
        ) from None


def make(folder: JobsFolder, journal: Journal, options: Options) -> WorkerPool:
    """Return the executor ``ray``."""
    return WorkerPool(RayBackend(folder, options), folder, journal, options)
