"""The wanted set that is mounted into the pod: what to hold when no operator calls.

Knows the file and how long to wait. Must not know how adapters are brought here.
"""

import asyncio
import logging
from pathlib import Path

from pydantic import ValidationError

from nllb_server.pod import Pod
from nllb_server.problems import ApiError
from nllb_server.wire import Source, WantedSet

log = logging.getLogger(__name__)

_REREAD_SECONDS = 10.0


def read_wanted_file(path: Path) -> WantedSet | None:
    """The set in the file; None when there is none, or it cannot be read (which is logged)."""
    try:
        return WantedSet.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.error("%s cannot be used (%s); waiting for the operator", path, type(error).__name__)
        return None


def by_origin(wanted: WantedSet) -> WantedSet:
    """The same set, each adapter from its origin: without an operator nobody vouches for peers."""
    origin = [Source(kind="origin")]
    adapters = [adapter.model_copy(update={"sources": origin}) for adapter in wanted.adapters]
    return wanted.model_copy(update={"adapters": adapters})


async def converge_alone(pod: Pod) -> None:
    """Wait for the operator; as long as it never called, follow the file, which somebody may still change."""
    await asyncio.sleep(pod.settings.boot_grace_seconds)
    while not pod.operator_called:
        wanted = await asyncio.to_thread(read_wanted_file, pod.settings.wanted_file)
        if wanted is not None and not pod.operator_called and wanted.revision > pod.manager.revision:
            log.warning("no operator has called; following %s, by origin", pod.settings.wanted_file)
            try:
                pod.manager.accept(by_origin(wanted))
            except ApiError as error:
                log.error("%s is not for this pod: %s", pod.settings.wanted_file, error.message)
        await asyncio.sleep(_REREAD_SECONDS)
