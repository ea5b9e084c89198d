"""The store's figures as a snapshot's profiles, as CSV and as Parquet; and profiles into the store."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ymir_opt.domain.documents import parse_snapshot
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import (
    PROFILE_ROWS,
    BackboneRow,
    ColocationMember,
    ColocationRow,
    Mode,
    Profiles,
    SwitchRow,
    ThroughputRow,
    TransferMode,
    TransferRow,
)
from ymir_profiler.analysis.transfer import transfers
from ymir_profiler.store.store import Record, Store

__all__ = ["flat_rows", "import_profiles", "profiles_of", "to_csv", "to_parquet"]


def profiles_of(records: Sequence[Record], fraction: float = 0.9) -> Profiles:
    """Return every measured figure that a planner can use.

    A figure measured twice (on two machines of the same type, say) is given once, the newest. Failed
    measurements and pairs whose work ratio nobody knows are left out.

    Parameters
    ----------
    records : sequence of Record
    fraction : float
        Target of the work ratios, see :func:`ymir_profiler.analysis.transfer.transfers`.
    """
    newest = sorted(records, key=lambda record: (record.finished_at_s, record.key))
    throughput: dict[Any, ThroughputRow] = {}
    switch: dict[Any, SwitchRow] = {}
    backbone: dict[str, BackboneRow] = {}
    colocation: dict[Any, ColocationRow] = {}
    imported: dict[str, dict[str, Any]] = {name: {} for name in PROFILE_ROWS}
    for record in newest:
        value, subject, model = record.value, record.subject, record.foundation_model
        if record.kind == "imported":
            table = str(subject["table"])
            imported[table][record.key] = PROFILE_ROWS[table].model_validate_json(json.dumps(value))
        elif record.kind == "throughput" and "samples_per_s" in value:
            row = ThroughputRow(
                foundation_model=model,
                peft_type=subject["peft_type"],
                config=subject["config"],
                gpu_type=subject["gpu_type"],
                gpus=1,
                batch_size=int(value["measured_batch_size"]),
                samples_per_s=float(value["samples_per_s"]),
                memory_gib=value.get("memory_gib"),
            )
            throughput[model, row.peft_type, row.config, row.gpu_type, row.batch_size] = row
        elif record.kind == "switch" and "cold_s" in value:
            switch[model, subject["gpu_type"]] = SwitchRow(
                foundation_model=model,
                gpu_type=subject["gpu_type"],
                cold_s=float(value["cold_s"]),
                warm_s=float(value["warm_s"]),
            )
        elif record.kind == "backbone":
            backbone[model] = BackboneRow(foundation_model=model, gib=float(value["gib"]))
        elif record.kind == "colocation" and "speed_ratio" in value:
            member = ColocationMember(
                foundation_model=model,
                peft_type="LORA",
                config=subject["config"],
                batch_size=int(subject["batch_size"]),
            )
            key = (model, subject["mode"], subject["gpu_type"], member, len(value["speed_ratio"]))
            colocation[key] = ColocationRow(
                mode=Mode(subject["mode"]),  # type: ignore[arg-type]
                gpu_type=subject["gpu_type"],
                gpus=1,
                members=(member,) * len(value["speed_ratio"]),
                speed_ratio=tuple(float(r) for r in value["speed_ratio"]),
                memory_gib=value.get("memory_gib"),
            )
    return Profiles(
        throughput=(*throughput.values(), *imported["throughput"].values()),
        switch_s=(*switch.values(), *imported["switch_s"].values()),
        backbone_gib=(*backbone.values(), *imported["backbone_gib"].values()),
        transfer=(*_transfer_rows(records, fraction), *imported["transfer"].values()),
        colocation=(*colocation.values(), *imported["colocation"].values()),
    )


def _transfer_rows(records: Sequence[Record], fraction: float) -> list[TransferRow]:
    rows = []
    for found in transfers(records, fraction):
        if found.work_ratio is None:
            continue
        joint = found.mode == "joint"
        rows.append(
            TransferRow(
                mode=TransferMode.JOINT if joint else TransferMode.WARM_START,
                foundation_model=found.foundation_model,
                source=(found.source,) if joint else found.source,
                target=found.target,
                work_ratio=found.work_ratio,
                low=found.low,
                high=found.high,
                p_benefit=found.p_benefit,
                matched_hyperparameters=True,
            )
        )
    return rows


def import_profiles(store: Store, data: bytes, name: str, origin: str) -> int:
    """Put the rows of a snapshot's profiles (Titan's or Gavel's tables, say) into the store.

    Parameters
    ----------
    store : Store
    data : bytes
        A snapshot, or its ``profiles`` alone.
    name : str
        For messages.
    origin : str
        Where the figures come from; kept with each.

    Returns
    -------
    int
        Rows that were not there before.
    """
    profiles = _parse(data, name)
    added = 0
    for table in PROFILE_ROWS:
        for row in getattr(profiles, table):
            document = json.loads(row.model_dump_json(exclude_defaults=True))
            model = document.get("foundation_model") or "several"
            record = Record(
                "imported", model, {"table": table, "origin": origin, "row": document}, document, machine={}
            )
            added += store.put(record)
    return added


def _parse(data: bytes, name: str) -> Profiles:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(name, "is not valid JSON", "give a snapshot, or its profiles") from None
    if isinstance(document, dict) and "schema" not in document:
        bare = {"schema": "ymir.snapshot/1", "taken_at_s": 0, "profiles": document}
        data = json.dumps(bare).encode()
    return parse_snapshot(data, name).profiles


def flat_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return one flat row a measurement: nested names are joined by dots, lists are JSON."""
    rows = []
    for record in records:
        row: dict[str, Any] = {
            "key": record.key,
            "kind": record.kind,
            "foundation_model": record.foundation_model,
            "status": record.status,
            "cpu_s": record.cpu_s,
            "wall_s": record.wall_s,
            "finished_at_s": record.finished_at_s,
        }
        for name, part in (("subject", record.subject), ("value", record.value), ("machine", record.machine)):
            _flatten(name, part or {}, row)
        rows.append(row)
    return rows


def _flatten(prefix: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value):
            _flatten(f"{prefix}.{key}", value[key], into)
    else:
        into[prefix] = json.dumps(value) if isinstance(value, list | tuple) else value


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would run as a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=_columns(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _harmless(value) for key, value in row.items()})
    return out.getvalue()


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and re.match(r"[=+\-@\t\r]", value) else value


def to_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as Parquet, completely or not at all; a column of several types becomes text."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise InputError(str(path), "needs the package pyarrow", "pip install pyarrow") from None
    table = {}
    for column in _columns(rows):
        values = [row.get(column) for row in rows]
        kinds = {float if isinstance(v, int | float) and not isinstance(v, bool) else type(v) for v in values}
        if kinds - {type(None)} == {float}:
            table[column] = pa.array([None if v is None else float(v) for v in values], pa.float64())
        else:
            table[column] = pa.array([None if v is None else str(v) for v in values], pa.string())
    partial = path.with_name(f".{path.name}.partial")
    try:
        parquet.write_table(pa.table(table), partial)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(str(path), f"cannot be written ({error})", "name a writable folder") from None
