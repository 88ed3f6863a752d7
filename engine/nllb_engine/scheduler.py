"""Which requests enter the batch, which rows take part in the next step, and which are given up.

Knows ids, row counts and deadlines. Must not know tensors, tokens or the model: it is plain arithmetic over
queues, so that every order of events can be tested.

The policy is first in, first out. A request that does not fit waits at the head, and nobody overtakes it: so
a wide beam search is never starved by narrow requests. A row that ends is refilled at the next step.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from nllb_engine.errors import InvalidRequest

PREFILL_TOKENS_PER_STEP = 4096
"""Source tokens that may enter in one step, so that running rows are not held up by a flood of new ones."""


@dataclass(frozen=True)
class Ticket:
    """What scheduling knows about a request.

    `rows` is its share of the batch (a beam search takes one row per beam), `tokens` the length of its
    source, `deadline` a moment of the caller's monotonic clock, in seconds, after which it is given up.
    """

    id: int
    rows: int
    tokens: int
    is_beam: bool = False
    deadline: float | None = None


@dataclass(frozen=True)
class Plan:
    """The next step, as ids. `dropped` and `expired` have left; their memory must be freed before `admit`."""

    dropped: Sequence[int]
    expired: Sequence[int]
    admit: Sequence[int]
    decode: Sequence[int]
    beams: Sequence[int]


class Scheduler:
    """Waiting and running requests of one model. Invariant: the rows of `running` never exceed `max_rows`.

    The counts may be read from any thread; everything else belongs to one.
    """

    def __init__(self, max_rows: int) -> None:
        """`max_rows` is the model's batch: rows of one decode step."""
        self._max_rows = max_rows
        self._waiting: OrderedDict[int, Ticket] = OrderedDict()
        self._running: dict[int, Ticket] = {}
        self._cancelled: set[int] = set()
        self._hold_admission = False
        self._rows = 0
        self._tokens = 0

    @property
    def busy(self) -> bool:
        """Whether a step would find anything to do."""
        return bool(self._waiting or self._running or self._cancelled)

    @property
    def max_rows(self) -> int:
        """Rows of one step."""
        return self._max_rows

    @property
    def rows_in_use(self) -> int:
        """Rows held by running requests."""
        return self._rows

    @property
    def waiting_requests(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Source tokens in the queue."""
        return self._tokens

    def add(self, ticket: Ticket) -> None:
        """Queue a request; InvalidRequest when it could never run."""
        if not 1 <= ticket.rows <= self._max_rows:
            raise InvalidRequest(
                f"a request of {ticket.rows} rows does not fit the batch of {self._max_rows}; use fewer beams"
            )
        self._waiting[ticket.id] = ticket
        self._tokens += ticket.tokens

    def cancel(self, ticket_id: int) -> None:
        """Give up a request at the next step; nothing happens when it has ended already."""
        if ticket_id in self._waiting or ticket_id in self._running:
            self._cancelled.add(ticket_id)

    def schedule(self, now: float) -> Plan:
        """Decide the next step; admitted requests count as running from here on."""
        dropped = sorted(self._cancelled)
        tickets = [*self._running.values(), *self._waiting.values()]
        expired = [
            ticket.id
            for ticket in tickets
            if ticket.deadline is not None and ticket.deadline <= now and ticket.id not in self._cancelled
        ]
        for ticket_id in (*dropped, *expired):
            self.finish(ticket_id)
        self._cancelled.clear()
        decode = [ticket.id for ticket in self._running.values() if not ticket.is_beam]
        beams = [ticket.id for ticket in self._running.values() if ticket.is_beam]
        return Plan(dropped, expired, self._admit(), decode, beams)

    def finish(self, ticket_id: int) -> None:
        """The request has ended for whatever reason; its rows are free."""
        self._cancelled.discard(ticket_id)
        if ticket := self._running.pop(ticket_id, None):
            self._rows -= ticket.rows
            self._hold_admission = False
        elif ticket := self._waiting.pop(ticket_id, None):
            self._tokens -= ticket.tokens

    def defer(self, ticket_ids: Sequence[int]) -> bool:
        """Put admitted requests back to the head of the queue: the model had no memory for them.

        They are admitted again once another request has ended. Returns False, and queues nothing, when no
        other request runs: waiting would not help.
        """
        if len(self._running) == len(ticket_ids):
            return False
        for ticket_id in reversed(ticket_ids):
            ticket = self._waiting[ticket_id] = self._running.pop(ticket_id)
            self._waiting.move_to_end(ticket_id, last=False)
            self._rows, self._tokens = self._rows - ticket.rows, self._tokens + ticket.tokens
        self._hold_admission = True
        return True

    def _admit(self) -> list[int]:
        admitted: list[int] = []
        new_tokens = 0
        while self._waiting and not self._hold_admission:
            ticket = next(iter(self._waiting.values()))
            too_many_tokens = admitted and new_tokens + ticket.tokens > PREFILL_TOKENS_PER_STEP
            if self._rows + ticket.rows > self._max_rows or too_many_tokens:
                break
            self._running[ticket.id] = self._waiting.pop(ticket.id)
            self._rows, self._tokens = self._rows + ticket.rows, self._tokens - ticket.tokens
            new_tokens += ticket.tokens
            admitted.append(ticket.id)
        return admitted
