"""The scheduler as plain arithmetic: admission, refilling, cancellation, deadlines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nllb_engine.errors import InvalidRequest
from nllb_engine.scheduler import PREFILL_TOKENS_PER_STEP, Scheduler, Ticket


def ticket(number: int, rows: int = 1, tokens: int = 5, deadline: float | None = None) -> Ticket:
    return Ticket(number, rows, tokens, is_beam=rows > 1, deadline=deadline)


def scheduler_with(*tickets: Ticket, max_rows: int = 4) -> Scheduler:
    scheduler = Scheduler(max_rows)
    for one in tickets:
        scheduler.add(one)
    return scheduler


def test_requests_enter_in_the_order_they_came_until_the_rows_are_full() -> None:
    scheduler = scheduler_with(*(ticket(number) for number in range(6)))
    assert list(scheduler.schedule(0).admit) == [0, 1, 2, 3]
    assert (scheduler.rows_in_use, scheduler.waiting_requests, scheduler.waiting_tokens) == (4, 2, 10)


def test_a_row_that_ends_is_refilled_at_the_next_step() -> None:
    scheduler = scheduler_with(*(ticket(number) for number in range(6)))
    scheduler.schedule(0)
    scheduler.finish(1)
    plan = scheduler.schedule(0)
    assert (list(plan.admit), list(plan.decode)) == ([4], [0, 2, 3])


def test_a_beam_search_takes_a_row_per_beam_and_is_not_overtaken() -> None:
    scheduler = scheduler_with(ticket(0), ticket(1), ticket(2, rows=3), ticket(3))
    assert list(scheduler.schedule(0).admit) == [0, 1]
    scheduler.finish(0)
    plan = scheduler.schedule(0)
    assert list(plan.admit) == [2]
    assert list(scheduler.schedule(0).beams) == [2]


def test_a_request_wider_than_the_batch_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="use fewer beams"):
        scheduler_with(ticket(0, rows=5))


def test_a_cancelled_request_leaves_at_the_next_step_whether_it_waits_or_runs() -> None:
    scheduler = scheduler_with(*(ticket(number) for number in range(5)))
    scheduler.schedule(0)
    scheduler.cancel(0)
    scheduler.cancel(4)
    plan = scheduler.schedule(0)
    assert (list(plan.dropped), list(plan.decode), list(plan.admit)) == ([0, 4], [1, 2, 3], [])
    assert scheduler.rows_in_use == 3


def test_cancelling_what_has_ended_does_nothing() -> None:
    scheduler = scheduler_with(ticket(0))
    scheduler.schedule(0)
    scheduler.finish(0)
    scheduler.cancel(0)
    assert not scheduler.busy


def test_a_request_past_its_deadline_is_given_up_even_in_the_queue() -> None:
    scheduler = scheduler_with(ticket(0, rows=4, deadline=9), ticket(1, deadline=5), ticket(2))
    assert list(scheduler.schedule(4.9).admit) == [0]
    assert list(scheduler.schedule(5.0).expired) == [1]
    plan = scheduler.schedule(9.0)
    assert (list(plan.expired), list(plan.admit)) == ([0], [2])


def test_a_flood_of_long_sources_enters_in_several_steps() -> None:
    scheduler = scheduler_with(*(ticket(number, tokens=PREFILL_TOKENS_PER_STEP // 2) for number in range(4)))
    assert list(scheduler.schedule(0).admit) == [0, 1]
    assert list(scheduler.schedule(0).admit) == [2, 3]


def test_one_source_longer_than_the_step_budget_still_enters() -> None:
    scheduler = scheduler_with(ticket(0, tokens=2 * PREFILL_TOKENS_PER_STEP), ticket(1))
    assert list(scheduler.schedule(0).admit) == [0]


def test_deferred_requests_return_to_the_head_and_wait_until_memory_is_given_back() -> None:
    scheduler = scheduler_with(ticket(0), ticket(1), ticket(2))
    scheduler.schedule(0)
    assert scheduler.defer([1, 2])
    scheduler.add(ticket(3))
    assert list(scheduler.schedule(0).admit) == []
    scheduler.finish(0)
    assert list(scheduler.schedule(0).admit) == [1, 2, 3]


def test_deferring_everything_is_refused_because_nobody_would_give_memory_back() -> None:
    scheduler = scheduler_with(ticket(0))
    scheduler.schedule(0)
    assert not scheduler.defer([0])


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(EVENTS)
def test_any_order_of_events_keeps_the_counts_and_ends_every_request(events: list[tuple[str, int]]) -> None:
    scheduler, rows = Scheduler(4), {}
    running: set[int] = set()
    left: set[int] = set()
    now = 0.0

    def step() -> None:
        plan = scheduler.schedule(now)
        gone = {*plan.dropped, *plan.expired}
        assert not gone & left, "nobody leaves twice"
        left.update(gone)
        running.difference_update(gone)
        assert {*plan.decode, *plan.beams} == running
        running.update(plan.admit)
        assert sum(rows[one] for one in running) == scheduler.rows_in_use <= 4

    for event, value in events:
        if event == "add":
            number = len(rows)
            rows[number] = value
            scheduler.add(ticket(number, rows=value, deadline=now + 20 if number % 3 == 0 else None))
        elif event == "cancel":
            scheduler.cancel(value)
        elif event == "finish" and value in running:
            scheduler.finish(value)
            running.remove(value)
            left.add(value)
        elif event == "step":
            now += value
            step()
    for _ in range(2 * len(rows) + 1):
        step()
        for one in list(running):
            scheduler.finish(one)
            running.remove(one)
            left.add(one)
    assert left == set(rows)
    assert (scheduler.busy, scheduler.rows_in_use, scheduler.waiting_tokens) == (False, 0, 0)
