from hypothesis import given
from hypothesis import strategies as st

from nllb_operator import naming

FLEET_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(FLEET_NAMES)
def test_every_child_of_every_fleet_has_a_name_that_a_service_may_have(fleet: str) -> None:
    names = [
        naming.peers_name(fleet),
        naming.wanted_name(fleet),
        naming.pods_account_name(fleet),
        naming.replica_set_name(fleet, "0123456789"),
    ]

    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 63
        assert name[0].isalpha() and name[-1].isalnum()


def test_long_names_that_differ_at_the_end_do_not_meet() -> None:
    assert naming.peers_name("a" * 62 + "b") != naming.peers_name("a" * 62 + "c")


def test_a_short_name_stays_readable() -> None:
    assert naming.peers_name("tiny") == "tiny-peers"


def test_the_hash_knows_values_and_not_their_order() -> None:
    assert naming.short_hash({"a": 1, "b": [2]}) == naming.short_hash({"b": [2], "a": 1})
    assert naming.short_hash({"a": 1}) != naming.short_hash({"a": "1"})
