"""Adapters on disk: weights and optimiser as safetensors, the rest as JSON, complete or not at all.

A checkpoint is a folder with ``adapter.json``, which names a tensor file and its SHA-256. A new state
writes a new tensor file first and then replaces the JSON file, so that a crash at any moment leaves the
former state or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ymir_opt.domain.documents import write_atomic
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.runtime.adapters import Adapter, AdapterSpec
from ymir_opt.runtime.session import Runtime

__all__ = ["SCHEMA", "exists", "load_adapter", "read_facts", "save_adapter"]

SCHEMA = "ymir.adapter/1"
INDEX = "adapter.json"
_KINDS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "updates"}


def _tensors(adapter: Adapter, *, optimiser: bool) -> dict[str, torch.Tensor]:
    tensors = {
        f"weight.{name}": weight.detach().cpu().contiguous() for name, weight in adapter.named_parameters()
    }
    if optimiser:
        for kind, parts in adapter.optimiser_state().items():
            for name, value in parts.items():
                # the step counter is one number for many weights; a file holds no tensor twice
                tensors[f"{_KINDS.get(kind, kind)}.{name}"] = (
                    value.detach().cpu().reshape(value.shape or (1,)).clone()
                )
    return tensors


def save_adapter(adapter: Adapter, folder: Path, *, optimiser: bool = True, **facts: Any) -> Path:
    """Write an adapter; a crash leaves the former checkpoint whole.

    Parameters
    ----------
    adapter : Adapter
    folder : Path
        Made if it does not exist.
    optimiser : bool
        Keep the moments too, so that training goes on as if it had not stopped.
    **facts
        JSON values to keep beside it, such as the foundation model.

    Returns
    -------
    Path
        The JSON file.

    Raises
    ------
    InputError
        If the folder cannot be written or the disk is full; nothing half written remains.
    """
    from safetensors.torch import save

    folder = Path(folder)
    data = save(_tensors(adapter, optimiser=optimiser))
    digest = hashlib.sha256(data).hexdigest()
    target = folder / f"adapter-{digest[:16]}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_bytes(target, data)
    except OSError as error:
        raise InputError(
            str(folder), f"cannot be written ({error.strerror})", "free space, or name another folder"
        ) from None
    index = {
        "schema": SCHEMA,
        "name": adapter.name,
        "spec": adapter.spec.as_dict(),
        "steps": adapter.steps,
        "hidden": adapter.hidden,
        "heads": {task: head.classes for task, head in adapter.heads.items()},
        "tensors": target.name,
        "sha256": digest,
        "facts": facts,
    }
    write_atomic(folder / INDEX, json.dumps(index, indent=1, sort_keys=True) + "\n")
    for old in folder.glob("adapter-*.safetensors"):
        if old.name != target.name:
            with contextlib.suppress(OSError):
                old.unlink()
    return folder / INDEX


def _write_bytes(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".adapter.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def exists(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint."""
    return (Path(folder) / INDEX).is_file()


def _index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        others = sorted(p.name for p in path.parent.glob("*.bin"))
        remedy = f"name a folder with {INDEX}"
        if others:
            remedy += f"; {others[0]} is not read: weights come as safetensors"
        raise NotFoundError(str(path.parent), "holds no adapter", remedy) from None
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read ({error})", "save the adapter again") from None
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        raise InputError(str(path), f"is not a document of schema {SCHEMA}", "save the adapter again")
    return index


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    path = Path(folder) / INDEX
    index = _index(path)
    name = str(index.get("tensors", ""))
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise InputError(str(path), f"names {name!r} as its tensors", "save the adapter again")
    try:
        data = (Path(folder) / name).read_bytes()
    except OSError as error:
        raise InputError(str(folder), f"{name} cannot be read ({error.strerror})", "save it again") from None
    if hashlib.sha256(data).hexdigest() != index.get("sha256"):
        raise InputError(str(folder), f"{name} is damaged: its checksum differs", "save it again")
    return index, data


def _layers(
    runtime: Runtime, tensors: Mapping[str, torch.Tensor], folder: Path
) -> Mapping[str, tuple[int, int]]:
    """Return the backbone's layers that an adapter changes."""
    names = [
        key[len("weight.") : -len(".lora_a")]
        for key in tensors
        if key.endswith(".lora_a") and key.startswith("weight.")
    ]
    found = runtime.layers_of(sorted({name.rsplit(".", 1)[-1] for name in names}))
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            str(folder), f"does not fit this backbone at {missing[0]}", "load the model it was made for"
        )
    return {name: found[name] for name in found if name in names}


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what :func:`save_adapter` was told to keep beside the adapter; raises `InputError`."""
    facts: dict[str, Any] = _index(Path(folder) / INDEX).get("facts", {})
    return facts


def load_adapter(runtime: Runtime, folder: Path, name: str | None = None) -> Adapter:
    """Add the adapter of a checkpoint to a runtime, with heads, optimiser and step counter.

    Raises
    ------
    NotFoundError
        If there is no checkpoint.
    InputError
        If it is damaged or was made for another backbone.
    """
    from safetensors.torch import load

    index, data = _read(folder)
    tensors = load(data)
    spec = AdapterSpec.from_dict(index["spec"])
    layers = _layers(runtime, tensors, folder)
    adapter = Adapter(name or str(index["name"]), spec, layers, runtime.hidden, runtime.device)
    for task, classes in index["heads"].items():
        adapter.add_head(task, int(classes))
    adapter.steps = int(index["steps"])
    with torch.no_grad():
        for key, weight in adapter.named_parameters():
            found = tensors.get(f"weight.{key}")
            if found is None or found.shape != weight.shape:
                raise InputError(
                    str(folder), f"does not fit this backbone at {key}", "load the model it was made for"
                )
            weight.copy_(found)
    state: dict[str, dict[str, torch.Tensor]] = {}
    for kind, prefix in _KINDS.items():
        names = {key[len(prefix) + 1 :]: key for key in tensors if key.startswith(f"{prefix}.")}
        parts = {name: tensors[key] for name, key in names.items()}
        state[kind] = {name: v.reshape(()) if kind == "step" else v for name, v in parts.items()}
    adapter.restore_optimiser(state)
    runtime.adapters[adapter.name] = adapter
    return adapter
