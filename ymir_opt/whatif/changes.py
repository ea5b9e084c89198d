"""Changes of a snapshot that a what-if asks about: nodes, jobs, fields of jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ymir_opt.domain.base import nearest, short
from ymir_opt.domain.documents import dump_json, parse_job
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.snapshot import Cluster, Job, Node, NodeState, Snapshot, Target, Workers
from ymir_opt.domain.validate import validate
from ymir_opt.importers.nodes import gpu_memory
from ymir_opt.simulator.cluster import parse_cluster

__all__ = ["add_job", "add_nodes", "drop_node", "jobs_from", "set_field", "unknown_types"]

PREFIX = "new"
_PARTS: Mapping[str, type[BaseModel]] = {"target": Target, "workers": Workers}
_FREE = ("labels", "node_selector")


def add_nodes(snapshot: Snapshot, spec: str, memory_gib: Mapping[str, float] | None = None) -> Snapshot:
    """Return the snapshot with more nodes, ready and empty.

    Parameters
    ----------
    snapshot : Snapshot
    spec : str
        Nodes x GPUs : type, such as ``2x8:A100``. A node of a type that the cluster has gets its
        memory, CPUs and host memory (in proportion to its GPUs), and the labels that all its nodes have.
    memory_gib : mapping of str to float, optional
        GPU memory of types that the cluster does not have, GiB.

    Raises
    ------
    InputError
        The specification is not of that form, or a type's memory is unknown.
    """
    known = {node.id for node in snapshot.cluster.nodes}
    first = 0
    while any(name.startswith(PREFIX) and name[len(PREFIX) :] == str(first) for name in known):
        first += 1
    try:
        specs = parse_cluster(spec, PREFIX, first)
    except InputError as error:
        raise InputError("--add-nodes", error.problem, error.remedy.replace("--cluster", "")) from None
    nodes = list(snapshot.cluster.nodes)
    for new in specs:
        if new.id in known:
            raise InputError("--add-nodes", f"node {short(new.id)} exists", "rename that node")
        alike = [node for node in snapshot.cluster.nodes if node.gpu_type == new.gpu_type]
        nodes.append(_node(new.id, new.gpu_type, new.gpus, alike, memory_gib or {}))
    return _with_nodes(snapshot, nodes)


def _node(name: str, gpu_type: str, gpus: int, alike: list[Node], memory_gib: Mapping[str, float]) -> Node:
    if not alike:
        return Node(id=name, gpu_type=gpu_type, gpus=gpus, gpu_memory_gib=gpu_memory(gpu_type, memory_gib))
    model = next((node for node in alike if node.gpus == gpus), alike[0])
    scale = gpus / model.gpus if model.gpus else 1.0
    common = {
        key: value
        for key, value in model.labels.items()
        if all(node.labels.get(key) == value for node in alike)
    }
    return Node(
        id=name,
        gpu_type=gpu_type,
        gpus=gpus,
        gpu_memory_gib=memory_gib.get(gpu_type, model.gpu_memory_gib),
        cpus=None if model.cpus is None else model.cpus * scale,
        host_memory_gib=None if model.host_memory_gib is None else model.host_memory_gib * scale,
        labels=common,
    )


def _with_nodes(snapshot: Snapshot, nodes: list[Node]) -> Snapshot:
    made = snapshot.model_copy(update={"cluster": Cluster(nodes=tuple(nodes))})
    validate(made)
    return made


def unknown_types(source: Snapshot, changed: Snapshot) -> tuple[str, ...]:
    """Return GPU types that a change brought and on which no speed is known."""
    before = {node.gpu_type for node in source.cluster.nodes}
    known = before | {row.gpu_type for row in changed.profiles.throughput}
    new = dict.fromkeys(node.gpu_type for node in changed.cluster.nodes)
    return tuple(name for name in new if name not in known)


def drop_node(snapshot: Snapshot, name: str) -> Snapshot:
    """Return the snapshot in which a node is down: what runs on it is stopped.

    Raises
    ------
    NotFoundError
        There is no such node.
    InputError
        It is down already.
    """
    nodes = list(snapshot.cluster.nodes)
    names = [node.id for node in nodes]
    if name not in names:
        raise NotFoundError("--drop-node", f"{short(name)} is not a node", nearest(name, set(names)))
    i = names.index(name)
    if nodes[i].state is NodeState.DOWN:
        raise InputError("--drop-node", f"{short(name)} is down already", "name another node")
    nodes[i] = nodes[i].model_copy(update={"state": NodeState.DOWN})
    return _with_nodes(snapshot, nodes)


def jobs_from(text: str | bytes, name: str, taken_at_s: float) -> tuple[Job, ...]:
    """Return the jobs of a document: one job of a snapshot, or a list of them.

    Parameters
    ----------
    text : str or bytes
        JSON.
    name : str
        What to call the document in an error.
    taken_at_s : float
        When a job without ``submitted_at_s`` arrives.

    Raises
    ------
    InputError
        The document is not of that form.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise InputError(name, "is nested too deeply", "give a job as in a snapshot's jobs") from None
    except ValueError:
        return (parse_job(text, name),)  # says what is wrong
    listed = document if isinstance(document, list) else [document]
    if not listed:
        raise InputError(name, "holds no job", "give a job as in a snapshot's jobs")
    out = []
    for i, item in enumerate(listed):
        place = f"{name}[{i}]" if isinstance(document, list) else name
        filled = {"submitted_at_s": taken_at_s, **item} if isinstance(item, dict) else item
        out.append(_job(json.dumps(filled), place))
    return tuple(out)


def _job(text: str, place: str) -> Job:
    try:
        return parse_job(text, place)
    except InputError as error:
        where = error.place if error.place.startswith(place) else f"{place}: {error.place}"
        raise type(error)(where, error.problem, error.remedy) from None


def add_job(snapshot: Snapshot, job: Job) -> Snapshot:
    """Return the snapshot with one more job; raises `InputError` where it does not fit in."""
    if any(other.id == job.id for other in snapshot.jobs):
        raise InputError("--add-job", f"job {short(job.id)} exists already", "give it another id")
    made = snapshot.model_copy(update={"jobs": (*snapshot.jobs, job)})
    _validated(made, f"--add-job {job.id}", len(snapshot.jobs))
    return made


def set_field(snapshot: Snapshot, text: str) -> Snapshot:
    """Return the snapshot with one field of one job changed.

    Parameters
    ----------
    snapshot : Snapshot
    text : str
        ``JOB.FIELD=VALUE``; a value is JSON, or else text. ``null`` takes the field out. Parts of a field
        follow another point, as in ``JOB.target.max_samples=5000``.

    Raises
    ------
    NotFoundError
        There is no such job or field; the nearest name is suggested.
    InputError
        The text is not of that form, or the value does not fit.
    """
    left, equals, value = text.partition("=")
    if not equals or "." not in left:
        raise InputError("--set", f"{short(text)} is not JOB.FIELD=VALUE", "write it as sst2.max_gpus=4")
    i, path = _target(snapshot, left)
    place = f"--set {left}"
    data: dict[str, Any] = json.loads(dump_json(snapshot.jobs[i], exclude_defaults=True))
    holder = data
    for part in path[:-1]:
        inner = holder.setdefault(part, {})
        holder[part] = inner if isinstance(inner, dict) else {}
        holder = holder[part]
    found = _value(value)
    if found is None:
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = found
    changed = _job(json.dumps(data), place)
    jobs = (*snapshot.jobs[:i], changed, *snapshot.jobs[i + 1 :])
    made = snapshot.model_copy(update={"jobs": jobs})
    _validated(made, place, i)
    return made


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _target(snapshot: Snapshot, left: str) -> tuple[int, list[str]]:
    """Return the job's index and the path of the field; ids may contain points."""
    names = {job.id: i for i, job in enumerate(snapshot.jobs)}
    cuts = [i for i, character in enumerate(left) if character == "."]
    known = [cut for cut in cuts if left[:cut] in names]
    if not known:
        name = left[: cuts[0]] if len(cuts) == 1 else left.rpartition(".")[0]
        raise NotFoundError("--set", f"{short(name)} is not a job", nearest(name, set(names)))
    cut = known[-1]
    path = left[cut + 1 :].split(".")
    fields = set(Job.model_fields)
    if path[0] not in fields:
        raise NotFoundError("--set", f"a job has no field {short(path[0])}", nearest(path[0], fields))
    if path[0] == "id":
        raise InputError("--set", "a job's id cannot be changed", "add a job under another id (--add-job)")
    if len(path) > 1 and path[0] not in _FREE:
        inner = _PARTS.get(path[0])
        if inner is None or len(path) > 2:
            raise InputError("--set", f"field {short(path[0])} has no parts", "name a field")
        if path[1] not in inner.model_fields:
            raise NotFoundError(
                "--set", f"{path[0]} has no field {short(path[1])}", nearest(path[1], set(inner.model_fields))
            )
    return names[left[:cut]], path


def _validated(snapshot: Snapshot, place: str, index: int) -> None:
    """Validate, and name the change instead of the position of the job."""
    try:
        validate(snapshot)
    except InputError as error:
        own = f"jobs[{index}]."
        where = place
        if error.place.startswith(own) and not place.endswith(error.place.removeprefix(own)):
            where = f"{place}: {error.place.removeprefix(own)}"
        raise type(error)(where, error.problem, error.remedy) from None
