"""The map of the cluster: every GPU of every node, coloured by the group that holds it."""

from __future__ import annotations

from ymir_opt.domain.snapshot import Node, NodeState, Snapshot
from ymir_opt.report.html import Html, el
from ymir_opt.report.occupancy import Occupancy, PlannedGroup, usable
from ymir_opt.report.text import count_of, duration

__all__ = ["HUES", "colour_class", "colour_styles", "map_section"]

HUES = 36
"""Distinct colours; a group's number is written in its GPUs, so that two groups may share one."""

_GOLDEN_ANGLE = 137.508
_COMPACT_FROM = 600


def colour_class(number: int) -> str:
    """Return the colour class of a group's number; consecutive numbers are far apart on the wheel."""
    return f"c{(number - 1) % HUES}"


def colour_styles() -> str:
    """Return the style rules of the colour classes."""
    return "\n".join(f".c{i}{{--hue:{(25 + i * _GOLDEN_ANGLE) % 360:.0f}}}" for i in range(HUES))


def map_section(snapshot: Snapshot, occupancy: Occupancy) -> Html:
    """Return the nodes by GPU type, their GPUs coloured by group."""
    nodes = snapshot.cluster.nodes
    if not nodes:
        return el("p", "The cluster has no nodes.", class_="empty")
    total = sum(node.gpus for node in nodes)
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        by_type.setdefault(node.gpu_type, []).append(node)
    seen: set[tuple[int, str]] = set()
    return el(
        "div",
        [_type_block(name, members, occupancy, seen) for name, members in by_type.items()],
        class_="map compact" if total >= _COMPACT_FROM else "map",
    )


def _type_block(name: str, nodes: list[Node], occupancy: Occupancy, seen: set[tuple[int, str]]) -> Html:
    used = sum(occupancy.used(node) for node in nodes)
    able = sum(usable(node) for node in nodes)
    return el(
        "div",
        el(
            "h3",
            name,
            el(
                "span",
                f"{used} of {count_of(able, 'GPU')} used on {count_of(len(nodes), 'node')}",
                class_="note",
            ),
        ),
        el("div", [_node_card(node, occupancy, seen) for node in nodes], class_="nodes"),
    )


def _node_card(node: Node, occupancy: Occupancy, seen: set[tuple[int, str]]) -> Html:
    state = None if node.state is NodeState.READY else el("span", node.state.value, class_="badge warn")
    facts = [f"{node.gpu_type}, {node.gpu_memory_gib:g} GiB a GPU"]
    if node.rack is not None:
        facts.append(f"rack {node.rack}")
    facts += [f"{key}={value}" for key, value in list(node.labels.items())[:8]]
    return el(
        "div",
        el(
            "div",
            el("span", node.id, class_="name"),
            state,
            el("span", f"{occupancy.used(node)}/{node.gpus}", class_="count"),
            class_="head",
        ),
        el("div", [_cell(node, gpu, occupancy, seen) for gpu in range(node.gpus)], class_="gpus"),
        class_=f"node {node.state.value}",
        title="\n".join(facts),
    )


def _cell(node: Node, gpu: int, occupancy: Occupancy, seen: set[tuple[int, str]]) -> Html:
    key = (node.id, gpu)
    where = f"{node.id} GPU {gpu}"
    number = occupancy.holder.get(key)
    if number is not None:
        planned = occupancy.groups[number - 1]
        marks = " shared" * planned.shared + " changes" * planned.changes
        # One stop of the tab key a group and node is enough.
        first = (number, node.id) not in seen
        seen.add((number, node.id))
        return el(
            "a",
            str(number),
            class_=f"gpu held {colour_class(number)}{marks}",
            href=f"#g{number}",
            data_g=number,
            tabindex=None if first else -1,
            title=f"{where}: {_group_line(planned)}",
        )
    if key in occupancy.profiled:
        return el("span", "m", class_="gpu profile", title=f"{where}: measures {occupancy.profiled[key]}")
    if node.state is NodeState.DOWN or gpu in node.unavailable_gpus:
        return el("span", "×", class_="gpu out", title=f"{where}: unavailable")
    external = node.external_used_gib[gpu] if gpu < len(node.external_used_gib) else 0.0
    text = f"{where}: free" + (f", {external:g} GiB used by others" if external else "")
    return el("span", "", class_="gpu free external" if external else "gpu free", title=text)


def _group_line(planned: PlannedGroup) -> str:
    jobs = planned.group.jobs
    named = ", ".join(jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    kinds = ", ".join(dict.fromkeys(kind.value for kind in planned.kinds))
    return f"group {planned.number}, {planned.group.mode.value} ({kinds}): {named}"


def finish_text(planned: PlannedGroup, taken_at_s: float) -> str:
    """Return when the last member with a prediction finishes, from the snapshot's time on."""
    ends = [p.finish_at_s for p in planned.group.predicted.values() if p.finish_at_s is not None]
    return duration(max(ends) - taken_at_s if ends else None)
