"""Adapters' origins: folders of mounted volumes.

Knows URIs, folders and the store. Must not know peers, slots or HTTP. All functions block.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nllb_engine.errors import AdapterRejected, DigestMismatch
from nllb_engine.lora.digest import counted_files, folder_digest
from nllb_engine.lora.store import AdapterStore, copy_adapter_files
from nllb_server.settings import SettingsError, folder_of


class OriginUnavailable(Exception):
    """The origin cannot be read by this pod: a volume that is not mounted, a folder that is not there."""


@contextmanager
def origin_copy(
    uri: str, digest: str | None, store: AdapterStore, *, volumes_dir: Path, max_bytes: int
) -> Iterator[tuple[Path, str]]:
    """A private copy of the files of `uri`, and their digest (lowercase hex SHA-256); gone afterwards.

    It lies on the store's file system but not in the store: nobody else sees it before it has been checked.
    With a `digest` the files must have it: else DigestMismatch. Raises OriginUnavailable, and AdapterRejected
    when the folder holds more than `max_bytes` or what no adapter holds.
    """
    try:
        folder = folder_of(uri, volumes_dir)
    except SettingsError as error:
        raise AdapterRejected("BadUri", str(error)) from error
    if not folder.is_dir():
        raise OriginUnavailable(f"{uri} is not there; check the path, and that its volume is mounted")
    size = sum((folder / name).stat().st_size for name in counted_files(folder))
    if size > max_bytes:
        raise AdapterRejected("TooLarge", f"the files have {size} bytes; at most {max_bytes} are taken")
    with store.staging() as staged:
        _require_room(staged, size)
        copy_adapter_files(folder, staged)
        found = folder_digest(staged)
        if digest is not None and found != digest:
            raise DigestMismatch(digest, found)
        yield staged, found


def _require_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OriginUnavailable(
            f"the adapter needs {size} bytes on disk and {free} are free; enlarge the volume"
        )
