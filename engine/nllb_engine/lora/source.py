"""How the engine asks for an adapter's bytes without opening a socket itself.

Knows one call. Must not know transports, addresses' meaning, or what is done with the files.
"""

from pathlib import Path
from typing import Protocol


class AdapterSource(Protocol):
    """Something that can bring an adapter's files from a peer. The server implements it over HTTP."""

    def fetch(self, peer_addr: str, adapter_id: str, into: Path) -> None:
        """Write the files of the adapter with digest `adapter_id` into the empty folder `into`, blocking.

        Called from any thread but the engine's. The caller hashes what arrived, so the source need not be
        trusted. Raises PeerUnavailable when the peer does not deliver, AdapterRejected when what it
        offers is refused before it is read to the end (too large, odd names).
        """
