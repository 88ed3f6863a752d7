"""What pods as local processes need from this machine: loopback addresses, process groups, files.

Linux only (127.0.0.0/8 is loopback there, /proc tells a process from a later one with the same number).
Knows nothing of pods.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

_TAIL_BYTES = 600


def free_loopback_address(ports: Collection[int], taken: Collection[str] = ()) -> str:
    """An address 127.x.y.z, not in `taken`, on which all `ports` can be bound now. OSError if none is."""
    for _ in range(200):
        ip = f"127.{random.randint(64, 254)}.{random.randint(0, 254)}.{random.randint(1, 254)}"
        if ip not in taken and all(_can_bind(ip, port) for port in ports):
            return ip
    raise OSError("no free loopback address: pods as local processes need Linux's 127.0.0.0/8")


def _can_bind(ip: str, port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ip, port))
        except OSError:
            return False
    return True


def birth(pid: int) -> int | None:
    """When the process began (clock ticks since boot); None: no such process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that `pid` leads; a group that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def write_pid(file: Path, pid: int) -> None:
    """Note a process so that `living` tells it from a later one with the same number."""
    write_atomically(file, f"{pid} {birth(pid)}")


def living(file: Path) -> int | None:
    """The process noted in `file`, if that very process still runs."""
    try:
        pid, born = file.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if born != "None" and birth(int(pid)) == int(born) else None


def kill_leftover(file: Path) -> bool:
    """Kill the process group noted in `file` if its leader still runs. True: there was one."""
    pid = living(file)
    if pid is not None:
        signal_group(pid, signal.SIGKILL)
    file.unlink(missing_ok=True)
    return pid is not None


def write_atomically(file: Path, text: str) -> None:
    """Write through to the disk, then rename into place: a reader sees the old text or the new one."""
    draft = file.with_name(f".{file.name}.draft")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


def mirror_files(folder: Path, files: Mapping[str, str]) -> None:
    """Make `folder` hold exactly these text files; unchanged ones are not touched."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_atomically(file, text)
    for file in folder.iterdir():
        if file.name not in files and not file.name.startswith("."):
            file.unlink()


def remove_tree(folder: Path) -> None:
    """Delete a folder with all it holds; links are removed, not followed."""
    shutil.rmtree(folder, ignore_errors=True)


def tail(file: Path, offset: int = 0) -> str | None:
    """The last lines that a process wrote after `offset`, for an error message; None if it wrote nothing."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(offset, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return None
    return text or None


def last_line(file: Path, offset: int = 0) -> str | None:
    """The last line that a process wrote after `offset`: of a Python traceback, the error itself."""
    lines = (tail(file, offset) or "").splitlines()
    return lines[-1].strip() if lines else None
