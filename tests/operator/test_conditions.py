from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from operator_objects import NOW

from nllb_operator.conditions import (
    MAX_EXCEPTIONS,
    MAX_MESSAGE,
    Trouble,
    Verdict,
    announcement,
    exceptions_of,
    set_conditions,
)

YES, NO = Verdict(True, "Good", "good"), Verdict(False, "Bad", "bad")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["A", "B"])), min_size=1, max_size=12))
def test_the_time_of_a_condition_moves_exactly_when_its_status_does(steps: list[tuple[bool, str]]) -> None:
    conditions: list[dict[str, object]] = []
    before = None
    for minute, (holds, reason) in enumerate(steps):
        now = NOW + timedelta(minutes=minute)
        verdicts = {"Ready": Verdict(holds, reason, "why")}
        conditions = set_conditions(conditions, verdicts, generation=minute, now=now)
        (condition,) = conditions

        assert condition["status"] == str(holds) and condition["reason"] == reason
        assert condition["observedGeneration"] == minute
        if before is not None and before["status"] == condition["status"]:
            assert condition["lastTransitionTime"] == before["lastTransitionTime"]
        else:
            assert condition["lastTransitionTime"] == now.strftime("%Y-%m-%dT%H:%M:%SZ")
        before = condition


def test_a_status_names_ten_pods_at_most() -> None:
    troubles = [Trouble(f"pod-{number:03}", "Broken", "x" * 5000) for number in range(500, 0, -1)]

    exceptions = exceptions_of(troubles)

    assert len(exceptions) == MAX_EXCEPTIONS
    assert exceptions[0]["pod"] == "pod-001"
    assert all(len(item["message"]) <= MAX_MESSAGE for item in exceptions)


def status(verdict: Verdict) -> dict[str, object]:
    return {"conditions": set_conditions([], {"Ready": verdict}, generation=1, now=NOW)}


def test_an_event_tells_of_ready_and_of_new_reasons_that_stay() -> None:
    assert announcement({}, status(YES)) == ("Normal", "Good", "good")
    assert announcement(status(YES), status(NO)) == ("Warning", "Bad", "bad")
    assert announcement(status(NO), status(YES)) == ("Normal", "Good", "good")


def test_no_event_tells_what_is_known_or_passes_by_itself() -> None:
    assert announcement(status(NO), status(Verdict(False, "Bad", "in other words"))) is None
    assert announcement({}, status(Verdict(False, "Spreading", "0 of 3"))) is None
