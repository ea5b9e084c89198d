"""Workers as processes of this machine, on cores or CUDA devices.

Each worker is a process group of its own, so that it outlives the executor; it has one thread and, on
cores, one core. Its memory is watched, not limited by the kernel: a process above the limit of its GPU is
asked to checkpoint and end. Only processes that carry their action's id and were started when the journal
says are ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Node, NodeState
from ymir_opt.executors.backend import Handle, Launch
from ymir_opt.executors.base import Options
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.executors.journal import Journal
from ymir_opt.executors.pool import WorkerPool
from ymir_opt.executors.processes import ProcessId, alive, find_by_argument, identity, rss_mib, send

__all__ = ["CPU", "WORKER", "LocalBackend", "make", "memory_gib", "this_machine", "worker_environment"]

CPU = "CPU"
WORKER = (sys.executable, "-m", "ymir_opt.runtime.process")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def worker_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a worker's environment: one thread, no tokeniser threads, output as it comes."""
    found = dict(os.environ if base is None else base)
    found.update(dict.fromkeys(THREADS, "1"))
    found.update({"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"})
    return found


def this_machine(cores: int | None = None) -> tuple[Node, ...]:
    """Return this machine as one node: its CUDA devices, or its cores as GPUs of the type ``CPU``.

    Parameters
    ----------
    cores : int, optional
        Use so many cores, each as a node of its own; default: all that this process may use, as one node.
    """
    usable = sorted(os.sched_getaffinity(0))
    memory = memory_gib()
    if cores is not None:
        each = memory / max(cores, 1)
        return tuple(Node(id=f"n{i}", gpu_type=CPU, gpus=1, gpu_memory_gib=each) for i in range(cores))
    cuda = _cuda_devices()
    if cuda:
        kind, least = cuda[0][0], min(gib for _, gib in cuda)
        return (Node(id="n0", gpu_type=kind, gpus=len(cuda), gpu_memory_gib=least),)
    return (Node(id="n0", gpu_type=CPU, gpus=len(usable), gpu_memory_gib=memory / len(usable)),)


def memory_gib() -> float:
    """Return this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _cuda_devices() -> list[tuple[str, float]]:
    """Return (type, GiB) of each CUDA device, as the driver's own tool tells it."""
    query = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.splitlines():
        name, _, mib = line.rpartition(",")
        with contextlib.suppress(ValueError):
            found.append((re.sub(r"[^\w.]+", "-", name.strip()).strip("-"), float(mib) / 1024))
    return found


class LocalBackend:
    """Processes of this machine.

    Parameters
    ----------
    folder : JobsFolder
    options : Options
    """

    name = "local"

    def __init__(self, folder: JobsFolder, options: Options) -> None:
        self._folder = folder
        self._command = tuple(options.worker or WORKER)
        self._nodes = options.nodes or this_machine()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._cores = sorted(os.sched_getaffinity(0))
        first = 0
        self._first: dict[str, int] = {}
        for node in self._nodes:
            self._first[node.id] = first
            first += node.gpus if node.gpu_type == CPU else 0

    def nodes(self) -> tuple[Node, ...]:
        """Return this machine's nodes; they do not come and go."""
        return self._nodes

    def _node(self, name: str) -> Node:
        for node in self._nodes:
            if node.id == name and node.state is not NodeState.DOWN:
                return node
        raise InputError(f"node {name!r}", "is not a node of this executor", "plan for its nodes")

    def device(self, node: str, gpu: int) -> str:
        """Return ``cpu``, or ``cuda:0``: a worker sees only the device it was given."""
        return "cpu" if self._node(node).gpu_type == CPU else "cuda:0"

    def start(self, launch: Launch) -> Handle:
        """Start a process."""
        node = self._node(launch.node)
        environment = worker_environment()
        if node.gpu_type == CPU:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        else:
            environment["CUDA_VISIBLE_DEVICES"] = str(launch.gpu)
        command = (*self._command, *launch.arguments)
        try:
            with open(launch.folder / "stderr.txt", "ab") as errors:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=environment,
                    cwd=launch.jobs_dir,
                    start_new_session=True,
                )
        except OSError as error:
            raise InputError(
                f"worker {launch.action}", f"cannot be started ({error.strerror})", "see the machine"
            ) from None
        self._children[launch.action] = child
        if node.gpu_type == CPU:
            core = self._cores[(self._first[node.id] + launch.gpu) % len(self._cores)]
            # the threads that it starts later inherit this
            with contextlib.suppress(OSError):
                os.sched_setaffinity(child.pid, {core})
        process = identity(child.pid) or ProcessId(child.pid, 0)
        return {"pid": process.pid, "started": process.started}

    def find(self) -> Mapping[str, Handle]:
        """Return the processes that name this jobs folder, by the action in their arguments."""
        found = find_by_argument("--action", "--jobs-dir", str(self._folder.root))
        return {action: {"pid": process.pid, "started": process.started} for action, process in found}

    @staticmethod
    def _process(handle: Handle) -> ProcessId | None:
        if "pid" not in handle:
            return None
        return ProcessId(int(handle["pid"]), int(handle["started"]))

    def ended(self, action: str, handle: Handle) -> str | None:
        """Return the exit code or signal of a child; of an adopted process, that it is gone."""
        child = self._children.get(action)
        if child is not None:
            code = child.poll()
            if code is None:
                return None
            del self._children[action]
            return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        process = self._process(handle)
        return None if process is not None and alive(process) else "it is gone"

    def ask(self, action: str, handle: Handle) -> None:
        """Send SIGTERM: finish the step, checkpoint, end."""
        self._send(action, handle, signal.SIGTERM)

    def kill(self, action: str, handle: Handle) -> None:
        """Send SIGKILL."""
        self._send(action, handle, signal.SIGKILL)

    def _send(self, action: str, handle: Handle, number: signal.Signals) -> None:
        process = self._process(handle)
        if process is not None:
            send(process, action, number)

    def over_limit(self, action: str, handle: Handle, launch_at: tuple[str, int]) -> str | None:
        """Compare the resident memory with the node's memory per GPU; CUDA memory limits itself."""
        process = self._process(handle)
        limit = next(
            (n.gpu_memory_gib for n in self._nodes if n.id == launch_at[0] and n.gpu_type == CPU), None
        )
        if process is None or not limit:
            return None
        used = rss_mib(process) / 1024
        return f"{used:.1f} GiB are more than its {limit:.1f} GiB" if used > limit else None

    def close(self) -> None:
        """Forget the children; they go on."""
        for child in self._children.values():
            # the interpreter would warn about a process that was never waited for
            child.returncode = child.poll() or 0
        self._children.clear()


def make(folder: JobsFolder, journal: Journal, options: Options) -> WorkerPool:
    """Return the executor ``local``.

    Raises
    ------
    InputError
        An address is given, which only clusters have.
    """
    if options.address is not None:
        raise InputError(
            "--address", "is of no use to --executor local", "leave it out, or use --executor ray"
        )
    return WorkerPool(LocalBackend(folder, options), folder, journal, options)
