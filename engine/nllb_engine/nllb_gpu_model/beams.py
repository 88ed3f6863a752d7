"""ModelBeam of NllbGpuModel: beam searches that share each forward. The arithmetic is in beam_search.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nllb_engine.beam_search import BeamRules, BeamScores, BeamStep, beam_step
from nllb_engine.config import PROMPT_ROWS
from nllb_engine.errors import CacheFull, InvalidRequest
from nllb_engine.interface import BeamHandle, BeamReq, Hypothesis
from nllb_engine.kv_cache import CrossKv
from nllb_engine.nllb_gpu_model import requests
from nllb_engine.nllb_gpu_model.base import NllbBase


@dataclass(eq=False, kw_only=True)
class _Search(BeamHandle):
    """One live search. Beam i sits in slots[i]; `length` counts its tokens, the target language included."""

    target: int
    max_length: int
    adapter: int
    scores: BeamScores
    slots: list[int] = field(default_factory=list)
    cross: CrossKv | None = None
    length: int = 1
    beams: list[list[int]] = field(default_factory=list)
    finished: list[list[int]] = field(default_factory=list)

    @property
    def rules(self) -> BeamRules:
        """Parameters of the step that adds token `length` + 1."""
        return BeamRules(self.req.length_penalty, self.req.early_stopping, self.length + 1, self.max_length)


class NllbBeams(NllbBase):
    """Cross keys are kept once per search; a fork keeps the slot for one child and copies for the others."""

    def beam_begin(self, reqs: Sequence[BeamReq]) -> list[BeamHandle]:
        """Encode, decode the prompt once per request, and choose every beam's first token."""
        limits, config, lang = self.core.limits, self.core.config, self.core.lang
        requests.row_count(len(reqs), self.core.max_batch)
        for req in reqs:
            requests.beam_request(req, limits)
        sources = [
            requests.encoder_input(req.prompt_tokens, req.src_lang_id, config, lang, limits) for req in reqs
        ]
        targets = [requests.target_language(req.tgt_lang_id, config, lang) for req in reqs]
        needed = sum(req.num_beams for req in reqs)
        if needed > self.core.slots.free:
            raise CacheFull(f"{needed} beams need a slot each, but {self.core.slots.free} are free; "
                            "retry when others have ended")
        searches = [self._open(req, target) for req, target in zip(reqs, targets, strict=True)]
        try:
            self._prefill_searches(searches, sources, targets)
        except BaseException:
            for search in searches:
                self.beam_end(search)
            raise
        return list(searches)

    def beam_step(self, handles: Sequence[BeamHandle]) -> None:
        """One forward for all beams of all handles, then one choice per width of beam."""
        searches = [search for search in map(self._live, handles) if not search.done]
        if not searches:
            return
        requests.row_count(sum(search.rows for search in searches), self.core.max_batch)
        last = [beam[-1] for search in searches for beam in search.beams]
        with self.core.forward_on(0):
            logits = self.core.decode(
                torch.tensor(last, device=self.core.gpu.device),
                [slot for search in searches for slot in search.slots],
                [search.length for search in searches for _ in search.slots],
                [search.cross for search in searches for _ in search.slots if search.cross is not None],
                [search.adapter for search in searches for _ in search.slots],
            )
            self._choose(searches, list(logits.split([search.rows for search in searches])))

    def beam_end(self, handle: BeamHandle) -> None:
        """Give back slots, source and adapter reference, each once."""
        if not isinstance(handle, _Search):
            raise InvalidRequest("the handle does not come from this model's beam_begin")
        for slot in handle.slots:
            self.core.slots.give_back(slot, handle)
        handle.slots = []
        self.core.drop_source(handle.cross)
        handle.cross = None
        if handle.adapter >= 0:
            self.release_adapter_slot(handle.adapter)
            handle.adapter = -1

    def supports_beam(self) -> bool:
        """True."""
        return True

    def generate_beam_batch(self, reqs: Sequence[BeamReq]) -> list[list[int]]:
        """A loop over begin and step, as many requests at a time as there are slots."""
        results: list[list[int]] = []
        eos = self.core.config.eos_token_id
        while len(results) < len(reqs):
            handles = self.beam_begin(self._fitting(reqs[len(results) :]))
            try:
                while not all(handle.done for handle in handles):
                    self.beam_step(handles)
                results += [
                    [search.target, *search.hypotheses[0].token_ids, eos]
                    for search in map(self._live, handles)
                ]
            finally:
                for handle in handles:
                    self.beam_end(handle)
        return results

    def _fitting(self, reqs: Sequence[BeamReq]) -> list[BeamReq]:
        """The longest run of requests whose beams fit the free slots; at least one."""
        fitting: list[BeamReq] = []
        rows = 0
        for req in reqs:
            rows += req.num_beams
            if fitting and rows > self.core.slots.free:
                break
            fitting.append(req)
        return fitting

    def _open(self, req: BeamReq, target: int) -> _Search:
        max_new = min(req.max_new, self.core.limits.max_rows - 1)
        search = _Search(
            req,
            target=target,
            max_length=max_new + 1,
            adapter=self._acquire_adapter(req.adapter_slot),
            scores=BeamScores.start(req.num_beams, self.core.gpu.device),
            beams=[[] for _ in range(req.num_beams)],
            finished=[[] for _ in range(req.num_beams)],
        )
        search.slots = [self.core.slots.take(search) for _ in range(req.num_beams)]
        return search

    def _live(self, handle: BeamHandle) -> _Search:
        if not isinstance(handle, _Search) or not handle.slots:
            raise InvalidRequest("the beam search has ended, or does not come from this model")
        return handle

    def _prefill_searches(
        self, searches: Sequence[_Search], sources: Sequence[Sequence[int]], targets: Sequence[int]
    ) -> None:
        first_row = self.core.max_batch
        with self.core.forward_on(0):
            crosses = self.core.prefill(
                sources,
                targets,
                [search.slots[0] for search in searches],
                [search.adapter for search in searches],
                first_row,
            )
            for search, cross in zip(searches, crosses, strict=True):
                search.cross = cross
            pairs = [(search.slots[0], slot) for search in searches for slot in search.slots[1:]]
            self.core.self_kv.copy(pairs, PROMPT_ROWS)
            rows = self.core.logits[first_row : first_row + len(searches)]
            self._choose(searches, [
                row.expand(search.rows, -1) for row, search in zip(rows, searches, strict=True)
            ])

    def _choose(self, searches: Sequence[_Search], logits: Sequence[Tensor]) -> None:
        """Choose the next tokens, searches of one width together, and fork the caches by one copy."""
        pairs: list[tuple[int, int]] = []
        for width in sorted({search.rows for search in searches}):
            members = [index for index, search in enumerate(searches) if search.rows == width]
            group = [searches[index] for index in members]
            step = beam_step(
                torch.stack([logits[index] for index in members]),
                BeamScores.cat([search.scores for search in group]),
                [search.rules for search in group],
                self.core.config.eos_token_id,
            )
            for index, (search, scores) in enumerate(zip(group, step.scores.split(), strict=True)):
                search.scores = scores
                pairs += self._advance(search, step, index)
        self.core.self_kv.copy(pairs, max(search.length for search in searches))

    def _advance(self, search: _Search, step: BeamStep, index: int) -> list[tuple[int, int]]:
        """Carry one search's decision out; returns the slot copies that its forks need."""
        candidates = [[*search.beams[parent], token] for parent, token in step.candidates[index]]
        search.finished = [(search.finished + candidates)[kept] for kept in step.kept[index]]
        search.length += 1
        if step.done[index]:
            search.done = True
            search.hypotheses = self._hypotheses(search)
            return []
        search.beams = [candidates[chosen] for chosen in step.running[index]]
        parents = [step.candidates[index][chosen][0] for chosen in step.running[index]]
        search.slots, pairs = fork_slots(search.slots, parents)
        return pairs

    def _hypotheses(self, search: _Search) -> list[Hypothesis]:
        eos = self.core.config.eos_token_id
        scores = search.scores.finished[0].tolist()
        real = search.scores.is_finished[0].tolist()
        return [
            Hypothesis(tuple(tokens[:-1] if tokens[-1] == eos else tokens), score, tokens[-1] == eos)
            for tokens, score, is_real in zip(search.finished, scores, real, strict=True)
            if is_real
        ]


def fork_slots(slots: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Slots for the children of beams `parents`, and the (source, target) copies that make it true.

    A parent's first child stays in its slot; further children move into slots of beams that died. So no slot
    is both source and target, and a beam with one child is never copied.
    """
    dead = [slot for beam, slot in enumerate(slots) if beam not in set(parents)]
    seen: set[int] = set()
    chosen: list[int] = []
    pairs: list[tuple[int, int]] = []
    for parent in parents:
        if parent in seen:
            target = dead.pop()
            pairs.append((slots[parent], target))
            chosen.append(target)
        else:
            seen.add(parent)
            chosen.append(slots[parent])
    return chosen, pairs
