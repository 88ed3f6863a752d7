"""Runs the container of one Pod manifest as a local process and reports what a kubelet would report.

Knows: the process (start, restart with backoff, stop), its probes, its files (ConfigMaps kept fresh, claims,
empty folders) and its log. What the manifest means is read by `pod_container`. Must not know who created the
pod, a ReplicaSet, a Service or a node; used by the local backend and by the tests' process node alike.

A pod's address is a loopback address of its own (127.x.y.z), so the container's ports need no translation.
The program is told by NLLB_HOST to bind to it. No orphans: the kernel kills the process when the parent dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from nllb_operator import machine, pod_container, pod_launch
from nllb_operator.pod_container import Manifest, Mount, PodNotRunnable
from nllb_operator.pod_probes import watch_probes
from nllb_operator.pod_status import PodStatus

ConfigMapReader = Callable[[str], Awaitable[Mapping[str, str] | None]]
"""Reads the data of a ConfigMap of the pod's namespace; None: there is none of that name. Must not raise."""


@dataclass(frozen=True)
class PodHost:
    """What the machine offers to a pod."""

    folder: Path  # the pod's own: files, log; its `rootfs` goes when the pod stops
    ip: str  # loopback address of its own, see `machine.free_loopback_address`
    config_map: ConfigMapReader
    claims: Mapping[str, Path] = field(default_factory=dict)  # claim name → folder
    entrypoint: Sequence[str] = (sys.executable, "-m", "nllb_server")  # stands in for the image's
    replaces_command: bool = False  # True: `entrypoint` runs, whatever the manifest's command and args are
    env: Mapping[str, str] = field(default_factory=dict)  # has the last word
    backoff: Sequence[float] = (
        0.0,
        1.0,
        2.0,
        5.0,
        10.0,
        30.0,
    )  # seconds before restart 1, 2, …; last repeats
    refresh_seconds: float = 1.0  # how often ConfigMaps are read again

    @property
    def rootfs(self) -> Path:
        """Mirror of the container's paths."""
        return self.folder / "rootfs"

    @property
    def log(self) -> Path:
        """What the process wrote, over all its restarts."""
        return self.folder / "log"

    @property
    def pid_file(self) -> Path:
        """Names the running process, for `machine.kill_leftover` after a crash of this one."""
        return self.folder / "pid"


class PodProcess:
    """One pod: `start()` once, `stop()` once. `status` is current, `on_change` is called when it changes."""

    def __init__(
        self, pod: Manifest, host: PodHost, on_change: Callable[[PodStatus], None] | None = None
    ) -> None:
        """Prepare to run `pod`; nothing happens before `start`."""
        self.pod = pod
        self.host = host
        self.status = PodStatus(ip=host.ip)
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._grace = float(pod["spec"].get("terminationGracePeriodSeconds", 30))

    def start(self) -> None:
        """Begin to run the pod, in the background."""
        self._tasks = [asyncio.create_task(self._run())]

    async def stop(self, grace_seconds: float | None = None) -> None:
        """SIGTERM, after the grace period SIGKILL; then the pod's files go, its log stays."""
        if grace_seconds is not None:
            self._grace = grace_seconds
        self._stopping.set()
        self._change(ready=False)
        await asyncio.gather(*self._tasks)
        self._change(phase="Succeeded" if self.status.exit_code in (0, None) else "Failed")
        await asyncio.to_thread(machine.remove_tree, self.host.rootfs)

    async def refresh(self) -> None:
        """Write the ConfigMaps' present content into the pod's folder."""
        for mount in pod_container.mounts_of(self.pod):
            if mount.config_map is None:
                continue
            data = await self.host.config_map(mount.config_map)
            if data is None and not mount.optional:
                raise PodNotRunnable("ConfigMapMissing", f"waits for the ConfigMap {mount.config_map!r}")
            files = {
                name: (data or {})[key]
                for key, name in (mount.keys or {key: key for key in data or ()}).items()
                if key in (data or {})
            }
            machine.mirror_files(self._place(mount), files)

    def _change(self, **values: object) -> None:
        status = replace(self.status, **values)  # type: ignore[arg-type]
        if status != self.status:
            self.status = status
            if self._on_change is not None:
                self._on_change(status)

    # --- the life of the pod

    async def _run(self) -> None:
        restarts = 0
        while not self._stopping.is_set():
            argv = await self._prepared()
            if argv is None:
                return
            began = time.time()
            offset = self.host.log.stat().st_size if self.host.log.exists() else 0
            try:
                with self.host.log.open("ab") as log:
                    await self._spawn(argv, log)
            except OSError as problem:
                self._change(state="waiting", reason="MachineProblem", message=str(problem))
                await self._stopping_within(self.host.backoff[-1])
                continue
            self._change(phase="Running", state="running", reason=None, message=None, started_at=began)
            code = await self._until_exit()
            self._change(
                ready=False, state="terminated", exit_code=code, finished_at=time.time(),
                reason="Completed" if code == 0 else "Error", message=self._last_words(code, offset),
            )  # fmt: skip
            policy = self.pod["spec"].get("restartPolicy", "Always")
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                self._change(phase="Succeeded" if code == 0 else "Failed")
                return
            restarts += 1
            pause = self.host.backoff[min(restarts, len(self.host.backoff)) - 1]
            if not self._stopping.is_set():
                self._change(restarts=restarts, state="waiting", reason="CrashLoopBackOff")
            await self._stopping_within(pause)

    def _last_words(self, code: int, offset: int) -> str:
        end = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        said = machine.last_line(self.host.log, offset)
        return f"the process {end}: {said}" if said else f"the process {end} and said nothing"

    async def _prepared(self) -> list[str] | None:
        """Lay out the files, waiting for what is missing; None: stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                self._lay_out()
                await self.refresh()
                for kind in pod_container.PROBES:
                    pod_container.probe_of(self.pod, kind)  # refuses what cannot be probed
                return self._argv()
            except PodNotRunnable as problem:
                self._change(state="waiting", reason=problem.reason, message=str(problem))
            except OSError as problem:  # a full disk, no file handles left
                self._change(state="waiting", reason="MachineProblem", message=str(problem))
            await self._stopping_within(self.host.refresh_seconds)
        return None

    def _place(self, mount: Mount) -> Path:
        return self.host.rootfs / mount.path.lstrip("/")

    def _lay_out(self) -> None:
        for mount in pod_container.mounts_of(self.pod):
            place = self._place(mount)
            place.parent.mkdir(parents=True, exist_ok=True)
            if mount.claim is None:
                place.mkdir(exist_ok=True)
                continue
            folder = self.host.claims.get(mount.claim)
            if folder is None or not folder.is_dir():
                known = ", ".join(sorted(self.host.claims)) or "none"
                raise PodNotRunnable(
                    "ClaimNotMapped",
                    f"the claim {mount.claim!r} has no folder on this machine (known: {known}); "
                    f"start with --volume {mount.claim}=FOLDER",
                )
            if not place.is_symlink():
                place.symlink_to(folder.resolve())

    def _argv(self) -> list[str]:
        if self.host.replaces_command:
            return list(self.host.entrypoint)
        return pod_container.argv_of(self.pod, self._environment(), self.host.rootfs, self.host.entrypoint)

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NLLB_")}
        own = pod_container.environment_of(self.pod, self.host.ip, self.host.rootfs)
        if any(mount.path == "/tmp" for mount in pod_container.mounts_of(self.pod)):
            own["TMPDIR"] = str(self.host.rootfs / "tmp")  # what a crash leaves there goes with the pod
        return {**inherited, **own, "NLLB_HOST": self.host.ip, **self.host.env}

    async def _spawn(self, argv: Sequence[str], log: IO[bytes]) -> None:
        program = sys.executable if argv[0] in ("python", "python3") else argv[0]
        launcher = (sys.executable, "-I", "-S", pod_launch.__file__, str(os.getpid()))
        self._process = await asyncio.create_subprocess_exec(
            *launcher, program, *argv[1:],
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            env=self._environment(), cwd=self.host.folder, start_new_session=True,
        )  # fmt: skip
        machine.write_pid(self.host.pid_file, self._process.pid)

    async def _until_exit(self) -> int:
        """Watch the process: probes, fresh ConfigMaps, the order to stop. Returns its exit code."""
        process = self._process
        assert process is not None
        exit_ = asyncio.create_task(process.wait())
        watchers = [asyncio.create_task(self._probe()), asyncio.create_task(self._keep_fresh())]
        stopping = asyncio.create_task(self._stopping.wait())
        unhealthy = watchers[0]
        await asyncio.wait([exit_, stopping, unhealthy], return_when=asyncio.FIRST_COMPLETED)
        if not exit_.done():
            self._change(ready=False)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait([exit_], timeout=self._grace)
        machine.signal_group(process.pid, signal.SIGKILL)  # also what it may have started itself
        code = await exit_
        for task in (*watchers, stopping):
            task.cancel()
        await asyncio.gather(*watchers, stopping, return_exceptions=True)
        self.host.pid_file.unlink(missing_ok=True)
        return code

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.host.refresh_seconds)
            with contextlib.suppress(PodNotRunnable, OSError):  # the last content stays
                await self.refresh()

    async def _probe(self) -> None:
        """Keeps `ready` true; returns when the process is to be restarted."""

        def on_ready(ready: bool) -> None:
            if not (ready and self._stopping.is_set()):
                self._change(ready=ready)

        await watch_probes(self.pod, self.host.ip, on_ready)

    async def _stopping_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):        # wait_for may swallow a cancellation before 3.12
                await self._stopping.wait()
