"""Where training data came from: files, checksums, licences; errors that name what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ymir_opt.domain.errors import NotFoundError
from ymir_opt.domain.snapshot import Profiles

__all__ = ["describe", "describe_profiles", "require_folder"]

UPSTREAM = {
    "titan": ("github.com/gaow0007/TitanSched @ f71cf44", "MIT"),
    "gavel": ("github.com/stanford-futuredata/gavel @ c4fa4009", "MIT"),
    "taskweb": ("github.com/danieljkim0118/TaskWeb @ 4d5b1d3", "none stated"),
    "standley": ("github.com/tstandley/taskgrouping @ bb1496e", "MIT"),
    "mtgnet": ("github.com/ShawnKS/MTG-Net @ dd361da", "none stated"),
}


def require_folder(folder: Path, *names: str) -> Path:
    """Return the folder if it holds the named files or folders.

    Raises
    ------
    NotFoundError
        Naming the first that is missing.
    """
    if not folder.is_dir():
        raise NotFoundError(str(folder), "no such folder", "name the folder with the data")
    for name in names:
        if not (folder / name).exists():
            raise NotFoundError(str(folder), f"has no {name}", "name the folder that holds it")
    return folder


def describe(name: str, folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """Return what an artefact records of one data set: upstream, licence and a checksum of the files read.

    Parameters
    ----------
    name : str
        Folder name of the data set, such as ``titan``.
    folder : Path
    files : iterable of Path
        The files that were read, in any order.
    """
    digest = hashlib.sha256()
    count = 0
    for path in sorted(files):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
        count += 1
    upstream, licence = UPSTREAM.get(name, ("own measurements", ""))
    return {
        "name": name,
        "upstream": upstream,
        "licence": licence,
        "files": count,
        "sha256": digest.hexdigest(),
    }


def describe_profiles(profiles: Profiles) -> dict[str, Any]:
    """Return what an artefact records of own measurements."""
    digest = hashlib.sha256(profiles.model_dump_json().encode()).hexdigest()
    return {"name": "profiles", "upstream": "own measurements", "licence": "", "files": 1, "sha256": digest}
