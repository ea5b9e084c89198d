"""Reading and writing for commands: ``-``, one-line errors, nothing half written."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ymir_opt.domain.documents import MAX_BYTES, parse_plan, parse_snapshot, write_atomic
from ymir_opt.domain.errors import InputError, NotFoundError
from ymir_opt.domain.plan import Plan
from ymir_opt.domain.snapshot import Snapshot

__all__ = [
    "STDIO",
    "ReaderGoneError",
    "emit",
    "read_bytes",
    "read_plan",
    "read_snapshot",
    "require_distinct",
    "require_once",
    "require_writable",
    "write_text",
]

STDIO = "-"


class ReaderGoneError(Exception):
    """The reader of standard output went away, such as ``head`` after its ten lines.

    Not an `OSError`, which the option parser would answer itself with exit code 1.
    """


def require_once(*paths: str) -> None:
    """Refuse to read standard input more than once."""
    if sum(path == STDIO for path in paths) > 1:
        raise InputError("-", "standard input is named twice", "name a file for one of the two")


def read_bytes(path: str) -> bytes:
    """Return the content of a file, or of standard input for ``-``.

    Raises
    ------
    InputError
        If it is missing, a directory, unreadable or larger than 1 GiB.
    """
    if path == STDIO:
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with open(path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise NotFoundError(
                path, "no such file", "name an existing file, or - for standard input"
            ) from None
        except IsADirectoryError:
            raise InputError(path, "is a directory", "name a file in it") from None
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise InputError(path, f"cannot be read ({problem})", "name a readable file") from None
    if len(data) > MAX_BYTES:
        raise InputError(path, f"is larger than {MAX_BYTES >> 20} MiB", "split the document")
    return data


def _name(path: str) -> str:
    return "standard input" if path == STDIO else path


def read_snapshot(path: str) -> Snapshot:
    """Read and validate a snapshot from a file or ``-``; raises `InputError`."""
    return parse_snapshot(read_bytes(path), _name(path))


def read_plan(path: str) -> Plan:
    """Read a plan from a file or ``-``; raises `InputError`."""
    return parse_plan(read_bytes(path), _name(path))


def require_writable(path: str | None) -> None:
    """Refuse an output that cannot be written, before the work that fills it."""
    if path is None or path == STDIO:
        return
    target = Path(path)
    if target.is_dir():
        raise InputError(path, "is a directory", "name a file in it")
    folder = target.parent
    if not folder.is_dir():
        raise InputError(path, f"the folder {folder} does not exist", "make it, or name another file")
    if not os.access(folder, os.W_OK):
        raise InputError(path, f"the folder {folder} is not writable", "name another file")


def require_distinct(outputs: Sequence[str | None], inputs: Sequence[str | None] = ()) -> None:
    """Refuse an output that another output, or an input of another kind, names too.

    Devices and pipes may be named twice: nothing is lost there.
    """
    taken = {_real(path) for path in inputs if path is not None and path != STDIO}
    for path in outputs:
        if path is None:
            continue
        real = STDIO if path == STDIO else _real(path)
        if path != STDIO and os.path.exists(real) and not os.path.isfile(real):
            continue
        if real in taken:
            name = "standard output" if path == STDIO else path
            raise InputError(name, "is named twice, and would be overwritten", "name another file")
        taken.add(real)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:
        # no file can have this name; whoever opens it says so
        return path


def write_text(path: str, text: str) -> None:
    """Write a whole file atomically, or standard output for ``-``."""
    if path == STDIO:
        emit(text)
    else:
        write_atomic(Path(path), text)


def emit(text: str) -> None:
    """Write to standard output.

    Raises
    ------
    ReaderGoneError
        Nobody reads on.
    InputError
        It cannot be written, such as a file on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGoneError from None
    except OSError as error:
        raise InputError(
            "standard output", f"cannot be written ({error.strerror})", "free space, or name a file"
        ) from None
