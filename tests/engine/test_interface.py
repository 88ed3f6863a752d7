"""The interface against the seed: names, counts, documented defaults."""

import inspect
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nllb_engine import interface
from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface import (
    NULL,
    USIZE_MAX,
    Circuit,
    ForwardDisclosure,
    Legacy,
    Model,
    ModelAdapters,
    ModelCircuit,
    ModelDeviceFeed,
    ModelDraft,
    ModelEp,
    ModelForward,
    ModelLifecycle,
    ModelLogits,
    ModelSsmState,
    ModelStreams,
    ModelVerify,
    ModelVision,
    PeftAdapterConfig,
    PrefixReclaim,
    SequenceState,
)

SEED = json.loads((Path(__file__).parent / "data" / "seed_methods.json").read_text())
COUNTS = {
    "ModelAdapters": 7, "ModelCircuit": 2, "ModelDeviceFeed": 12, "ModelDraft": 25, "ModelEp": 6,
    "ModelForward": 16, "ModelLifecycle": 17, "ModelLogits": 9, "ModelSsmState": 13, "ModelStreams": 6,
    "ModelVerify": 10, "ModelVision": 5,
}  # fmt: skip
SEQ = SequenceState(slot_idx=0)


def methods(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_")]


def bare(cls):
    """The defaults of one capability: what has no default does nothing."""
    empty = {name: (lambda self, *args: None) for name in getattr(cls, "__abstractmethods__", ())}
    return type("Bare", (cls,), empty)()


@pytest.mark.parametrize("capability", sorted(COUNTS))
def test_each_capability_has_the_seeds_methods(capability):
    assert len(SEED[capability]) == COUNTS[capability]
    assert sorted(methods(getattr(interface, capability))) == sorted(SEED[capability])


def test_model_is_the_union_of_128_methods_and_adds_none():
    names = [name for capability in COUNTS for name in methods(getattr(interface, capability))]
    assert len(names) == len(set(names)) == 128
    assert methods(Model) == []
    assert {base.__name__ for base in Model.__bases__} == set(COUNTS)


def test_every_method_is_documented_with_its_default():
    for capability in COUNTS:
        for name in methods(getattr(interface, capability)):
            text = inspect.getdoc(vars(getattr(interface, capability))[name]) or ""
            assert "default" in text.lower(), f"{capability}.{name}"


def test_the_interface_imports_no_tensor_library():
    code = "import sys, nllb_engine.interface; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


REFUSED = [
    (ModelAdapters, "set_active_lora", ("x",)),
    (ModelAdapters, "swap_lora_from_disk", (Path("x"), "x", 0)),
    (ModelAdapters, "promote_lora_from_peer", ("peer", "id", "x")),
    (ModelAdapters, "promote_lora_from_disk", (Path("x"), "x")),
    (ModelCircuit, "set_forward", (Circuit("digest", frozenset(), "{}"),)),
    (ModelDeviceFeed, "decode_batch_fed", ([], [])),
    (ModelDeviceFeed, "argmax_batch_to_feed", (NULL, [], 0, 0)),
    (ModelDeviceFeed, "reserve_decode_block", (SEQ,)),
    (ModelDeviceFeed, "release_decode_blocks", (SEQ, 0)),
    (ModelDeviceFeed, "copy_d2h_async", (NULL, memoryview(b""))),
    (ModelDeviceFeed, "alloc_host_pinned", (1,)),
    (ModelDeviceFeed, "free_host_pinned", (0, 1)),
    (ModelDraft, "stash_verify_hidden_rows", ([],)),
    (ModelDraft, "save_hidden_for_mtp_from_stash", (0,)),
    (ModelForward, "generate_beam_batch", ([],)),
    (ModelLifecycle, "save_sequence_state", (SEQ, io.BytesIO())),
    (ModelLifecycle, "restore_sequence_state", (SEQ, 1, io.BytesIO())),
    (ModelLogits, "decode_logits_ptr", ()),
    (ModelVerify, "decode_verify_batched", ([], [], [])),
]


@pytest.mark.parametrize(("capability", "method", "args"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_default_that_is_an_error_names_its_method(capability, method, args):
    with pytest.raises(UnsupportedByModel, match=method):
        getattr(bare(capability), method)(*args)


ANSWERED = [
    (ModelAdapters, "adapter_id_for", (3,), 0),
    (ModelAdapters, "acquire_adapter_slot", (-1,), -1),
    (ModelAdapters, "release_adapter_slot", (-1,), None),
    (ModelCircuit, "set_forward", (Legacy(),), None),
    (ModelCircuit, "forward_disclosure", (), ForwardDisclosure("legacy", None, None)),
    (ModelDeviceFeed, "supports_device_token_feed", (), False),
    (ModelDeviceFeed, "fed_step_settled", (), None),
    (ModelDeviceFeed, "event_query", (0,), True),
    (ModelDeviceFeed, "event_synchronize", (0,), None),
    (ModelDeviceFeed, "destroy_event", (0,), None),
    (ModelDraft, "mtp_slot_draft_capacity", (0,), USIZE_MAX),
    (ModelDraft, "dflash_gamma", (), None),
    (ModelDraft, "stash_verify_catchup_rows", ([(0, 0)],), None),
    (ModelDraft, "run_mtp_catchup_batched", ([], [], [], []), 0),
    (ModelDraft, "run_mtp_propose_batched", ([], [], [], 1, []), None),
    (ModelDraft, "mtp_propose_batch_max", (), 1),
    (ModelDraft, "save_hidden_for_catchup", (0, 0), None),
    (ModelDraft, "save_dflash_hidden_for_propose", (0,), None),
    (ModelDraft, "dflash_accept_append", (SEQ,), None),
    (ModelDraft, "dflash_eagle_accept_append", (SEQ,), None),
    (ModelDraft, "dflash_eagle_kgamma_append", (SEQ, 1, 0), None),
    (ModelDraft, "dflash_serial_ctx_append", (SEQ,), None),
    (ModelDraft, "commit_ctx", (SEQ, 1, 0, 0), None),
    (ModelDraft, "dflash_capture_band", (), 0),
    (ModelDraft, "read_deferred_draft_token", (), 0),
    (ModelEp, "ep_worker_step", ([],), False),
    (ModelEp, "is_ep", (), False),
    (ModelEp, "ep_broadcast_cmd", (1,), None),
    (ModelEp, "ep_broadcast_cmd_for_seq", (1, 1), None),
    (ModelEp, "ep_protocol_v2", (), False),
    (ModelEp, "ep_broadcast_tokens", ([1],), []),
    (ModelForward, "supports_beam", (), False),
    (ModelForward, "normalize_ssm_states", (SEQ,), None),
    (ModelForward, "is_mla", (), False),
    (ModelForward, "hc_mult", (), 0),
    (ModelForward, "kv_block_size", (), None),
    (ModelForward, "prefill_tail_split", ([1],), None),
    (ModelLifecycle, "num_free_blocks", (), 0),
    (ModelLifecycle, "num_total_blocks", (), 0),
    (ModelLifecycle, "teardown", (), None),
    (ModelLifecycle, "poll_innerq", (), None),
    (ModelLifecycle, "high_speed_swap_dims", (), None),
    (ModelLifecycle, "reclaim_prefix_blocks", (4,), 0),
    (ModelLifecycle, "reclaim_prefix_blocks_for", ([1], -1, 4), PrefixReclaim(target=4, free=0)),
    (ModelLogits, "logits_ptr_is_fp32", (NULL,), False),
    (ModelLogits, "decode_logits_fp32", (), False),
    (ModelSsmState, "has_ssm_layers", (), False),
    (ModelSsmState, "decode_rollback_unsupported", (), False),
    (ModelSsmState, "decode_rollback_ring_slots", (), 0),
    (ModelSsmState, "save_decode_ssm_snapshot", (SEQ, 0), None),
    (ModelSsmState, "restore_decode_ssm_snapshot", (SEQ, 0), None),
    (ModelSsmState, "decode_marconi_checkpoint", (SEQ,), None),
    (ModelSsmState, "start_checkpoint_async", (SEQ,), None),
    (ModelSsmState, "start_rollback_and_checkpoint_async", (SEQ, 1), None),
    (ModelSsmState, "sync_secondary", (), None),
    (ModelSsmState, "commit_accepted_prefix", (SEQ, 1, 2), None),
    (ModelSsmState, "ssm_snapshot_occupancy", (), None),
    (ModelStreams, "default_stream", (), 0),
    (ModelStreams, "create_stream", (), 0),
    (ModelStreams, "create_event", (), 0),
    (ModelStreams, "record_event", (0, 0), None),
    (ModelStreams, "stream_wait_event", (0, 0), None),
    (ModelStreams, "synchronize", (0,), None),
    (ModelVerify, "can_batch_verify", ([2],), False),
    (ModelVerify, "gdn_fold_accepted", ([0], [1], 2), False),
    (ModelVision, "prepare_vision_embed", ([],), None),
    (ModelVision, "ep_sync_vision_embeds", ([1],), None),
    (ModelVision, "prepare_vision_embed_batched", ([],), []),
    (ModelVision, "set_vision_slice_base", (0, 0, 0), None),
    (ModelVision, "tokens_contain_vision_pad", ([1],), False),
]


@pytest.mark.parametrize(("capability", "method", "args", "answer"), ANSWERED, ids=lambda one: str(one)[:30])
def test_a_default_answers_as_the_seed_does(capability, method, args, answer):
    assert getattr(bare(capability), method)(*args) == answer


def test_wider_verify_forms_fall_back_to_the_plain_one():
    class Verify(bare(ModelVerify).__class__):
        def decode_verify(self, tokens, seq, stream=0):
            return [token + 1 for token in tokens]

    for form in ("decode_verify_graphed_kgamma", "decode_verify_dflash", "decode_and_verify_fused"):
        assert getattr(Verify(), form)([1, 2, 3], SEQ) == [2, 3, 4]


def test_reclaim_stops_when_nothing_is_evictable():
    class Pool(bare(ModelLifecycle).__class__):
        free = 1
        evictable = 2

        def num_free_blocks(self):
            return self.free

        def reclaim_prefix_blocks(self, num_blocks):
            got = min(num_blocks, self.evictable)
            self.evictable -= got
            self.free += got
            return got

    assert Pool().reclaim_prefix_blocks_for([], -1, 2) == PrefixReclaim(target=2, free=2)
    assert Pool().reclaim_prefix_blocks_for([], -1, 9) == PrefixReclaim(target=9, free=3)


def test_scaling_is_alpha_over_r_or_over_its_root():
    assert PeftAdapterConfig(r=16, lora_alpha=32).scaling == 2.0
    assert PeftAdapterConfig(r=16, lora_alpha=32, use_rslora=True).scaling == 8.0
