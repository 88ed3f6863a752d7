"""The disk tier: adapters' files, one folder per digest, complete and verified or not there at all.

Knows folders, digests and what a crash may leave. Must not know tensors, slots, names of adapters, or the
network. One process owns a root: at start it sweeps what a killed predecessor left half-written.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nllb_engine.errors import AdapterRejected, DigestMismatch
from nllb_engine.lora.digest import counted_files, folder_digest, is_digest, open_plain

_STAGING = ".staging"
_CHUNK = 1 << 20


class AdapterStore:
    """Invariant: `root/<digest>` exists only with exactly the files of that digest, synced to disk.

    Safe to use from several threads: what makes a folder visible or invisible is one rename.
    """

    def __init__(self, root: Path) -> None:
        """Create `root` where needed and remove half-written folders."""
        self._root = root
        self._staging = root / _STAGING
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)

    def digests(self) -> list[str]:
        """Digests of all stored adapters, sorted."""
        return sorted(entry.name for entry in os.scandir(self._root) if is_digest(entry.name))

    def path(self, digest: str) -> Path | None:
        """The folder of `digest`, or None when it is not stored."""
        if not is_digest(digest):
            raise AdapterRejected("BadDigest", f"{digest[:80]!r} is not a lowercase hex SHA-256")
        folder = self._root / digest
        return folder if folder.is_dir() else None

    def stored_bytes(self, digest: str) -> int:
        """Size of the files of `digest` in bytes; 0 when it is not stored."""
        folder = self.path(digest)
        return sum((folder / name).stat().st_size for name in counted_files(folder)) if folder else 0

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A new empty folder on the store's file system; gone afterwards unless `add_verified` took it."""
        folder = self._staging / uuid.uuid4().hex
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add_verified(self, folder: Path, digest: str, check: Callable[[Path], None] | None = None) -> Path:
        """Keep the files of `folder` as `digest`; a folder from `staging` is moved, any other is copied.

        The bytes that are kept are the bytes that are hashed. `check` sees them before anyone else can
        and refuses by raising. Raises DigestMismatch; the store is then as before. Returns the stored
        folder.
        """
        if folder.parent != self._staging:
            with self.staging() as staged:
                copy_adapter_files(folder, staged)
                return self.add_verified(staged, digest, check)
        _drop_uncounted(folder)
        found = folder_digest(folder)
        if found != digest:
            raise DigestMismatch(digest, found)
        if check is not None:
            check(folder)
        _sync(folder)
        stored = self._root / digest
        try:
            folder.rename(stored)
        except OSError:
            if not stored.is_dir():  # another thread may have stored the same digest first: that is success
                raise
        _sync_directory(self._root)
        return stored

    def remove(self, digest: str) -> bool:
        """Forget `digest`; False when it was not stored. Whoever has its files open keeps them."""
        folder = self.path(digest)
        if folder is None:
            return False
        with self.staging() as grave:
            try:
                folder.rename(grave / digest)
            except FileNotFoundError:
                return False
        _sync_directory(self._root)
        return True


def copy_adapter_files(source: Path, into: Path) -> None:
    """Copy the counted files of `source` into the folder `into`, never following links."""
    for name in counted_files(source):
        with open_plain(source / name) as reader, open(into / name, "xb") as writer:
            shutil.copyfileobj(reader, writer, _CHUNK)


def _drop_uncounted(folder: Path) -> None:
    counted = set(counted_files(folder))
    for entry in list(os.scandir(folder)):
        if entry.name in counted:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _sync(folder: Path) -> None:
    for name in counted_files(folder):
        with open_plain(folder / name) as file:
            os.fsync(file.fileno())
    _sync_directory(folder)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
