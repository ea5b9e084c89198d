"""Fitting models and writing them with their cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ymir_models.artefact import render
from ymir_models.card import render_card
from ymir_models.registry import KINDS, Fitted, TooLittleError, find
from ymir_opt.domain.documents import parse_snapshot, write_atomic
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Profiles

__all__ = ["read_profiles", "train", "write"]


def read_profiles(content: bytes, path: str) -> Profiles:
    """Return the profiles of a snapshot, or of a document that holds profiles alone.

    ``path`` is what the document is called in an error.

    Raises
    ------
    InputError
        Naming place, value and remedy.
    """
    from pydantic import ValidationError

    from ymir_opt.domain.base import first_error

    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(path, "is cut off or not JSON", "give a snapshot or an exported profile") from None
    if isinstance(body, dict) and "schema" in body:
        return parse_snapshot(content, path).profiles
    inner = body.get("profiles", body) if isinstance(body, dict) else body
    try:
        return Profiles.model_validate_json(json.dumps(inner))
    except ValidationError as error:
        raise first_error(error, Profiles, "profiles") from None


def train(
    kinds: tuple[str, ...], data: Path | None, own: Profiles | None, folder: Path
) -> list[dict[str, Any]]:
    """Fit the named kinds (all that the given data allow, if none is named) and write them.

    Returns
    -------
    list of dict
        kind, path, card and sha256 of each; kind and ``skipped``, the reason, of one with too little data
        if none is named.

    Raises
    ------
    InputError
        If there is nothing to fit from, or a folder is missing.
    """
    if data is None and own is None:
        raise InputError("fit", "has no data", "name --data DIR, --profiles FILE, or both")
    chosen = [find(name) for name in dict.fromkeys(kinds)] if kinds else list(KINDS.values())
    if not kinds:
        chosen = [k for k in chosen if (data is not None and (data / k.data).is_dir()) or _has(own, k.name)]
        if not chosen:
            raise InputError(
                str(data or "--profiles"), "holds nothing to fit", "name a folder with titan, gavel, ..."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), f"cannot be made ({error.strerror})", "name another folder") from None
    written: list[dict[str, Any]] = []
    lacking: list[TooLittleError] = []
    for kind in chosen:
        try:
            written.append(write(kind.fit(data, own), folder))
        except TooLittleError as error:
            # what was asked for by name must not be left out
            if kinds:
                raise
            lacking.append(error)
            written.append({"kind": kind.name, "skipped": error.problem})
    if len(lacking) == len(chosen):
        raise lacking[0]
    return written


def _has(profiles: Profiles | None, kind: str) -> bool:
    return bool(profiles is not None and getattr(profiles, kind, ()))


def write(fitted: Fitted, folder: Path) -> dict[str, Any]:
    """Write one artefact and its card; nothing is left half written."""
    text = render(fitted.kind, fitted.version, fitted.parameters, fitted.source)
    digest: str = json.loads(text)["sha256"]
    path = folder / f"{fitted.kind}.json"
    card = folder / f"{fitted.kind}.md"
    write_atomic(path, text)
    write_atomic(card, render_card(fitted, digest))
    return {"kind": fitted.kind, "path": str(path), "card": str(card), "sha256": digest}
