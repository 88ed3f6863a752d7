from typing import Any

from operator_objects import Objects, digest_of

from nllb_operator.wanted import adopt_digests, resolve_adapters, source_problem, standalone_set


def last_ready(name: str, deployment: str = "fleet") -> dict[str, Any]:
    ready = {
        "deployment": deployment,
        "digest": digest_of(name),
        "uri": f"pvc://models/{name}",
        "generation": 1,
    }
    return {"lastReady": ready}


def test_the_oldest_claim_on_a_name_wins_and_the_other_is_told_whose_it_is(make: Objects) -> None:
    young = make.adapter_body("young", servedName="polite", age=1)
    old = make.adapter_body("old", servedName="polite", age=9)

    first, second = make.views(young, old)

    assert first.problem is None and first.adapter.metadata.name == "old"
    assert second.problem is not None and second.problem.reason == "NameConflict"
    assert "LoraAdapter old" in second.problem.message


def test_of_two_made_in_the_same_second_always_the_same_one_wins(make: Objects) -> None:
    bodies = [make.adapter_body(name, servedName="polite") for name in ("one", "two")]

    winners = {make.views(*order)[0].adapter.metadata.name for order in (bodies, bodies[::-1])}

    assert len(winners) == 1


def test_of_two_active_ones_the_older_is_and_the_other_is_resident_and_says_so(make: Objects) -> None:
    young = make.adapter_body("young", active=True, age=1)
    old = make.adapter_body("old", active=True, age=9)

    first, second = make.views(young, old)

    assert (first.active, second.active) == (True, False)
    assert second.problem is None
    assert second.remark is not None and second.remark.reason == "ActiveConflict"


def test_an_adapter_that_is_being_deleted_is_not_wanted(make: Objects) -> None:
    body = make.adapter_body()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert make.views(body) == []


def test_a_volume_that_the_fleet_lacks_is_named_with_those_it_has(make: Objects) -> None:
    (view,) = make.views(make.adapter_body(source={"uri": "pvc://other/a"}))

    assert view.problem is not None and view.problem.reason == "VolumeNotFound"
    assert "'other'" in view.problem.message and "it has models" in view.problem.message


def test_files_of_the_image_need_the_platforms_consent(make: Objects) -> None:
    deployment = make.deployment()

    refused = source_problem(deployment, "file:///models/a", allow_file_uris=False)
    allowed = source_problem(deployment, "file:///models/a", allow_file_uris=True)

    assert refused is not None and refused.reason == "SourceNotAllowed"
    assert allowed is None


def test_a_source_that_became_unusable_takes_nothing_away(make: Objects) -> None:
    body = make.adapter_body("polite", source={"uri": "pvc://other/a"}, status=last_ready("polite"))

    (view,) = make.views(body)

    assert view.problem is None and view.required
    assert view.wanted.digest == digest_of("polite")
    assert view.remark is not None and view.remark.reason == "VolumeNotFound"


def test_content_that_is_here_already_needs_no_source(make: Objects) -> None:
    source = {"uri": "pvc://other/a", "sha256": digest_of("polite")}

    (view,) = make.views(make.adapter_body("polite", source=source, status=last_ready("polite")))

    assert view.required and view.problem is None and view.remark is None


def test_an_observed_digest_holds_for_the_uri_it_was_seen_at(make: Objects) -> None:
    status = {"digest": digest_of("a"), "digestUri": "pvc://models/a"}

    (same,) = make.views(make.adapter_body(source={"uri": "pvc://models/a"}, status=status))
    (other,) = make.views(make.adapter_body(source={"uri": "pvc://models/b"}, status=status))

    assert same.wanted.digest == digest_of("a")
    assert other.wanted.digest is None


def test_a_digest_in_the_spec_beats_one_that_was_observed(make: Objects) -> None:
    status = {"digest": digest_of("a"), "digestUri": "pvc://models/a"}
    source = {"uri": "pvc://models/a", "sha256": digest_of("b")}

    (view,) = make.views(make.adapter_body(source=source, status=status))

    assert view.wanted.digest == digest_of("b")


def test_what_has_been_ready_here_is_required_of_new_pods(make: Objects) -> None:
    (here,) = make.views(make.adapter_body("polite", status=last_ready("polite")))
    (elsewhere,) = make.views(make.adapter_body("polite", status=last_ready("polite", "another")))

    assert here.required and here.previous is None
    assert not elsewhere.required and elsewhere.previous is None


def test_a_new_version_remembers_the_one_that_was_ready(make: Objects) -> None:
    (view,) = make.views(make.adapter_body("new", status=last_ready("old")))

    assert not view.required
    assert view.previous is not None and view.previous.digest == digest_of("old")


def test_only_a_fetch_of_this_very_version_fixes_its_digest(make: Objects) -> None:
    body = make.adapter_body("polite", source={"uri": "pvc://models/polite"})
    body["metadata"]["generation"] = 2
    (view,) = make.views(body)
    stale = make.inventory("a", make.entry(view, "Loaded", digest=digest_of("old"), generation=1))
    going = make.inventory("b", make.entry(view, "Fetching", digest=None))
    done = make.inventory("c", make.entry(view, "Stored", digest=digest_of("new")))

    assert adopt_digests([view], [stale, going])[0].wanted.digest is None
    assert adopt_digests([view], [stale, going, done])[0].wanted.digest == digest_of("new")


def test_a_pod_without_operator_loads_what_was_ready_and_nothing_unverified(make: Objects) -> None:
    views = make.views(
        make.adapter_body("new", status=last_ready("old"), age=3),
        make.adapter_body("known", age=2),
        make.adapter_body("unknown", source={"uri": "pvc://models/unknown"}, age=1),
    )

    alone = standalone_set("fleet", views)

    assert alone.revision == 0
    wanted = {entry.name: (entry.digest, entry.required) for entry in alone.adapters}
    assert wanted == {"new": (digest_of("old"), True), "known": (digest_of("known"), False)}
    assert all([source.kind for source in entry.sources] == ["origin"] for entry in alone.adapters)


def test_a_body_that_cannot_be_read_harms_no_other_adapter(make: Objects) -> None:
    broken = make.adapter_body("broken", source={"uri": "nonsense"}, age=9)

    views = resolve_adapters(make.deployment(), [broken, make.adapter_body("fine")], allow_file_uris=False)

    assert [view.problem.reason if view.problem else None for view in views] == ["InvalidSpec", None]
