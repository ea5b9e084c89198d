"""Taking the names out of a snapshot or a case.

Every text that a user chose (ids, names, paths, labels, configurations, metrics) is replaced by a
pseudonym: its rank among the document's texts and a keyed hash. The key is random and dropped, so the
hash says nothing. The same text has the same pseudonym everywhere, and pseudonyms sort as the texts
did, so references, equalities and ties by id stay what they were: the planner finds the same plan under
other names. Numbers and times stay.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal, get_origin

from ymir_opt.domain.base import Model
from ymir_opt.domain.documents import dump_json, parse_plan, parse_snapshot, snapshot_sha256
from ymir_opt.domain.plan import Plan, PlannerInfo, SolverInfo
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.snapshots.capture import capture
from ymir_opt.snapshots.case import Case

__all__ = ["anonymize_case", "anonymize_snapshot"]

Rename = Callable[[str], str]

PIVOT = "default"
"""The queue that exists without being defined; it keeps its name."""
KEPT = frozenset({"", PIVOT, "*"})
"""Texts that mean something to the planner: nothing, the default queue, every GPU type."""
KEPT_KEYS = frozenset({"rack", "id"})
"""Keys of a node selector that name a node's own fields."""
FREE_FIELDS = frozenset({"labels", "node_selector"})
DIGITS = 10


def anonymize_snapshot(snapshot: Snapshot, key: bytes | None = None) -> Snapshot:
    """Return the snapshot under pseudonyms.

    Parameters
    ----------
    snapshot : Snapshot
    key : bytes, optional
        Key of the hash; the default is random and forgotten.
    """
    return _snapshot(snapshot, _renamer(_texts(snapshot), key))


def anonymize_case(case: Case, estimator: Any = None, key: bytes | None = None) -> Case:
    """Return the case under pseudonyms: the planner is asked again, and the note is dropped.

    Parameters
    ----------
    case : Case
    estimator : optional
        Fitted models of the case. They know foundation models and tasks by name and cannot answer for
        pseudonyms, so a plan that needs them changes.
    key : bytes, optional
        Key of the hash; the default is random and forgotten.
    """
    texts = [*_texts(case.snapshot), *(() if case.previous is None else _texts(case.previous))]
    rename = _renamer(texts, key)
    snapshot = _snapshot(case.snapshot, rename)
    previous = None
    if case.previous is not None:
        previous = _previous(case.previous, rename, snapshot_sha256(case.snapshot), snapshot_sha256(snapshot))
    return capture(snapshot, previous=previous, request=case.request, estimator=estimator)


def _previous(plan: Plan, rename: Rename, before: str, after: str) -> Plan:
    """Return the previous plan renamed; where it names the snapshot by its hash, it does so again."""
    from ymir_opt.planner.carry import OUTCOME_LABEL

    data = _document(plan, rename)
    if plan.snapshot_sha256 == before:
        data["snapshot_sha256"] = after
    digest = plan.labels.get(OUTCOME_LABEL)
    if digest is not None:
        labels = {key: value for key, value in data["labels"].items() if key != rename(OUTCOME_LABEL)}
        data["labels"] = {**labels, OUTCOME_LABEL: after if digest == before else rename(str(digest))}
    return parse_plan(dump_json(Plan.model_construct(**data)))


def _snapshot(snapshot: Snapshot, rename: Rename) -> Snapshot:
    return parse_snapshot(dump_json(Snapshot.model_construct(**_document(snapshot, rename))))


def _renamer(texts: Iterable[str], key: bytes | None) -> Rename:
    secret = secrets.token_bytes(32) if key is None else key
    ordered = sorted(set(texts) - KEPT)
    width = len(str(max(len(ordered) - 1, 0)))
    names = {}
    for rank, text in enumerate(ordered):
        digest = hmac.new(secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        # "*" and the pivot keep their place in the order: 'c' < "default" < 'n'
        names[text] = f"{'c' if text < PIVOT else 'n'}{rank:0{width}d}-{digest[:DIGITS]}"
    return lambda text: text if text in KEPT else names[text]


def _document(model: Model, rename: Rename) -> dict[str, Any]:
    """Return the fields of a model with every free text renamed, ready for ``model_construct``."""
    return {name: _field(model, name, rename) for name in type(model).model_fields}


def _field(model: Model, name: str, rename: Rename) -> Any:
    value = getattr(model, name)
    if get_origin(type(model).model_fields[name].annotation) is Literal:
        return value
    return _label(value, rename) if name in FREE_FIELDS else _value(value, rename)


def _value(value: Any, rename: Rename) -> Any:
    if isinstance(value, Enum) or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, PlannerInfo | SolverInfo):
        return value
    if isinstance(value, Model):
        return type(value).model_construct(**_document(value, rename))
    if isinstance(value, Mapping):
        return {_key(key, rename): _value(item, rename) for key, item in value.items()}
    return tuple(_value(item, rename) for item in value)


def _label(value: Any, rename: Rename) -> Any:
    """Rename labels to the leaves; a number is compared as text with selectors, so it is one here."""
    if isinstance(value, Mapping):
        return {_key(key, rename): _label(item, rename) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_label(item, rename) for item in value)
    return rename(str(value))


def _key(key: Any, rename: Rename) -> str:
    return str(key) if key in KEPT_KEYS else rename(str(key))


def _texts(model: Model) -> list[str]:
    """Return every free text of a model, by walking it as the renaming does."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _document(model, note)
    return found
