"""The identity of an adapter folder: one SHA-256 over its files.

Knows which files of a folder count and how they are hashed. Must not know what is in them, the store, or
torch.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nllb_engine.errors import AdapterRejected

MAX_FILES = 64
_CHUNK = 1 << 20
_NOT_COUNTED = "README.md"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class FileEntry:
    """One counted file: its name inside the folder, size in bytes, lowercase hex SHA-256."""

    name: str
    size: int
    sha256: str


def is_digest(text: str) -> bool:
    """Whether `text` is a lowercase hex SHA-256."""
    return _DIGEST.match(text) is not None


def counted_files(folder: Path) -> list[str]:
    """Names of the files that make the identity, sorted: all but README.md, dotfiles and subfolders.

    Raises AdapterRejected for a folder that is missing, or that holds links, devices, too many files, or
    names that cannot travel between pods.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise AdapterRejected(
            "FolderMissing",
            f"{folder} cannot be read ({error.strerror}); give a folder that PEFT's save_pretrained wrote",
        ) from error
    names = []
    for entry in entries:
        if entry.name.startswith(".") or entry.name == _NOT_COUNTED or entry.is_dir(follow_symlinks=False):
            continue
        if not entry.is_file(follow_symlinks=False):
            raise AdapterRejected(
                "NotARegularFile",
                f"{entry.name} is a link or a device; an adapter folder holds plain files only",
            )
        if not _FILE_NAME.match(entry.name):
            raise AdapterRejected(
                "BadFileName",
                f"{entry.name[:64]!r} cannot travel between pods; use letters, digits, '.', '_' and '-'",
            )
        names.append(entry.name)
    if len(names) > MAX_FILES:
        raise AdapterRejected(
            "TooManyFiles", f"the folder holds {len(names)} files; at most {MAX_FILES} count"
        )
    return sorted(names)


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, never through a link; AdapterRejected when it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise AdapterRejected("FileUnreadable", f"{path.name} cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        yield file


def folder_manifest(folder: Path) -> list[FileEntry]:
    """Hash each counted file, in constant memory, in the order of the digest."""
    return [_hash_file(folder / name) for name in counted_files(folder)]


def digest_of(manifest: Iterable[FileEntry]) -> str:
    """SHA-256 over one line `name NUL size NUL sha256 LF` per file, sorted by name."""
    total = hashlib.sha256()
    for entry in sorted(manifest, key=lambda entry: entry.name):
        total.update(f"{entry.name}\0{entry.size}\0{entry.sha256}\n".encode())
    return total.hexdigest()


def folder_digest(folder: Path) -> str:
    """The adapter's identity: lowercase hex, 64 characters."""
    return digest_of(folder_manifest(folder))


def _hash_file(path: Path) -> FileEntry:
    sha256 = hashlib.sha256()
    size = 0
    with open_plain(path) as file:
        while chunk := file.read(_CHUNK):
            sha256.update(chunk)
            size += len(chunk)
    return FileEntry(path.name, size, sha256.hexdigest())
