"""Which file system a folder lies on: a journal must not lie on one that cannot lock."""

from __future__ import annotations

import re
from pathlib import Path

from ymir_opt.domain.errors import InputError

__all__ = ["NETWORK", "kind_of", "require_local"]

# fmt: off
NETWORK = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.juicefs", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "pvfs2", "smb2", "smb3", "smbfs",
})
# fmt: on
MOUNTS = Path("/proc/self/mountinfo")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def kind_of(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that holds a folder, or None where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    here = folder.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or not kinds:
            continue
        point = Path(_unescaped(fields[4]))
        # the last mount on the same point covers the earlier ones
        if here.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kinds[0])
    return None if best is None else best[1]


def require_local(folder: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a folder on a network file system.

    Raises
    ------
    InputError
        SQLite's write-ahead log and file locks do not hold there.
    """
    kind = kind_of(folder, mounts)
    if kind in NETWORK:
        raise InputError(
            str(folder),
            f"lies on a network file system ({kind}), where locks do not hold",
            "name a folder on a local disk",
        )
