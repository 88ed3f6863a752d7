import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from nllb_operator.dirty_queue import DirtyQueue


async def soon(queue: DirtyQueue[str]) -> str | None:
    try:
        async with asyncio.timeout(0.02):
            return await queue.take()
    except TimeoutError:
        return None


async def test_a_key_marked_twice_comes_once() -> None:
    queue: DirtyQueue[str] = DirtyQueue()
    queue.mark("a")
    queue.mark("a")

    assert await soon(queue) == "a"
    queue.done("a")
    assert await soon(queue) is None


async def test_a_key_marked_while_it_is_worked_on_comes_again_and_not_before() -> None:
    queue: DirtyQueue[str] = DirtyQueue()
    queue.mark("a")
    assert await soon(queue) == "a"

    queue.mark("a")
    assert await soon(queue) is None
    queue.done("a")

    assert await soon(queue) == "a"


async def test_a_key_that_is_worked_on_holds_up_no_other() -> None:
    queue: DirtyQueue[str] = DirtyQueue()
    queue.mark("a")
    assert await soon(queue) == "a"
    queue.mark("a")
    queue.mark("b")

    assert await soon(queue) == "b"


async def test_an_earlier_appointment_replaces_a_later_one() -> None:
    queue: DirtyQueue[str] = DirtyQueue()
    queue.mark("a", 60)
    assert await soon(queue) is None

    queue.mark("a")

    assert await soon(queue) == "a"
    queue.done("a")
    assert len(queue) == 0 and await soon(queue) is None


async def test_a_later_appointment_does_not_put_off_an_earlier_one() -> None:
    queue: DirtyQueue[str] = DirtyQueue()
    queue.mark("a", 0.005)
    queue.mark("a", 60)

    assert await soon(queue) == "a"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.001])), min_size=1, max_size=30))
def test_no_mark_is_ever_lost_and_no_key_has_two_workers(marks: list[tuple[str, float]]) -> None:
    async def scenario() -> None:
        queue: DirtyQueue[str] = DirtyQueue()
        dirty: set[str] = set()
        at_work: set[str] = set()

        async def work() -> None:
            while True:
                key = await queue.take()
                assert key not in at_work
                at_work.add(key)
                dirty.discard(key)
                await asyncio.sleep(0)
                at_work.discard(key)
                queue.done(key)

        workers = [asyncio.create_task(work()) for _ in range(3)]
        for key, delay in marks:
            dirty.add(key)
            queue.mark(key, delay)
            await asyncio.sleep(0)
        async with asyncio.timeout(2):
            while dirty or at_work:
                await asyncio.sleep(0.001)
        for worker in workers:
            worker.cancel()
            assert isinstance(
                (await asyncio.gather(worker, return_exceptions=True))[0], asyncio.CancelledError
            )

    asyncio.run(scenario())
