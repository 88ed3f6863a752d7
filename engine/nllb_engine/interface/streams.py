"""Streams, events and host synchronisation. Handles are integers; 0 is the default stream."""


class ModelStreams:
    """Order of device work. The defaults fit a model that synchronises by itself."""

    def default_stream(self) -> int:
        """The stream that forwards run on when given 0. Seed's default: 0."""
        return 0

    def create_stream(self) -> int:
        """A new stream's handle. Seed's default: 0."""
        return 0

    def create_event(self) -> int:
        """A new event's handle. Seed's default: 0."""
        return 0

    def record_event(self, event: int, stream: int) -> None:
        """Record `event` after the work queued on `stream`. Seed's default: nothing."""
        return None

    def stream_wait_event(self, stream: int, event: int) -> None:
        """Make `stream` wait for `event` on the device; the host does not block. Seed's default: nothing."""
        return None

    def synchronize(self, stream: int) -> None:
        """Block the host until the work of `stream` has completed. Seed's default: nothing."""
        return None
