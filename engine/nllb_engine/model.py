"""The network: encoder and decoder of M2M100, as transformers computes it, over batches of any adapters.

Knows weights and tensors. Must not know sequences, requests or decoding strategies. Layer order is pre-norm;
module names are Hugging Face's.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from nllb_engine.checkpoint import WeightReader
from nllb_engine.config import ModelConfig, StackConfig
from nllb_engine.errors import CheckpointError
from nllb_engine.kv_cache import CrossBatch, SelfKvStep
from nllb_engine.layers import LayerNorm, Linear, RowAdapters, sinusoidal_positions

TIED_NAMES = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


class Attention:
    """Multi-head attention: projections q, k, v, out of `[.., d_model]`, scale head_dim^-0.5."""

    def __init__(self, name: str, heads: int, reader: WeightReader, d_model: int) -> None:
        """Read the four projections `name`.{q,k,v,out}_proj."""
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            _linear(reader, f"{name}.{kind}_proj", d_model, d_model) for kind in ("q", "k", "v", "out")
        )

    def split(self, x: Tensor) -> Tensor:
        """`[n, t, d_model]` → `[n, t, heads, head_dim]`."""
        return x.view(*x.shape[:-1], self.heads, -1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Query `[n, t, heads, dim]`, keys `[n, s, heads, dim]`, additive mask → `[n, t, d_model]`."""
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
        )
        return out.transpose(1, 2).flatten(-2)

    def project(self, x: Tensor, rows: RowAdapters | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of `[n, t, d_model]`, each `[n, t, heads, head_dim]`."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (self.split(one.forward(x, rows)) for one in projections)
        return query, key, value

    def linears(self) -> Iterator[Linear]:
        """All projections."""
        yield from (self.q_proj, self.k_proj, self.v_proj, self.out_proj)


class FeedForward:
    """norm → fc1 → ReLU → fc2, added to its input."""

    def __init__(self, name: str, ffn_dim: int, reader: WeightReader, d_model: int) -> None:
        """Read `name`.{final_layer_norm,fc1,fc2}."""
        self.norm = _norm(reader, f"{name}.final_layer_norm", d_model)
        self.fc1 = _linear(reader, f"{name}.fc1", d_model, ffn_dim)
        self.fc2 = _linear(reader, f"{name}.fc2", ffn_dim, d_model)

    def forward(self, x: Tensor, rows: RowAdapters | None) -> Tensor:
        """`[n, t, d_model]` → the same."""
        return x + self.fc2.forward(functional.relu(self.fc1.forward(self.norm.forward(x), rows)), rows)


class EncoderLayer:
    """Self-attention over the source, then the feed-forward."""

    def __init__(self, name: str, stack: StackConfig, reader: WeightReader, d_model: int) -> None:
        """Read layer `name`."""
        self.self_attn = Attention(f"{name}.self_attn", stack.heads, reader, d_model)
        self.norm = _norm(reader, f"{name}.self_attn_layer_norm", d_model)
        self.ffn = FeedForward(name, stack.ffn_dim, reader, d_model)

    def forward(self, x: Tensor, mask: Tensor | None, rows: RowAdapters | None) -> Tensor:
        """`[n, s, d_model]` → the same."""
        attn = self.self_attn
        query, key, value = attn.project(self.norm.forward(x), rows)
        x = x + attn.out_proj.forward(attn.attend(query, key, value, mask), rows)
        return self.ffn.forward(x, rows)


class DecoderLayer:
    """Self-attention over the cache, cross-attention over the source, then the feed-forward."""

    def __init__(self, name: str, stack: StackConfig, reader: WeightReader, d_model: int) -> None:
        """Read layer `name`."""
        self.self_attn = Attention(f"{name}.self_attn", stack.heads, reader, d_model)
        self.self_norm = _norm(reader, f"{name}.self_attn_layer_norm", d_model)
        self.cross_attn = Attention(f"{name}.encoder_attn", stack.heads, reader, d_model)
        self.cross_norm = _norm(reader, f"{name}.encoder_attn_layer_norm", d_model)
        self.ffn = FeedForward(name, stack.ffn_dim, reader, d_model)

    def forward(
        self, x: Tensor, layer: int, own: SelfKvStep, cross: CrossBatch, rows: RowAdapters | None
    ) -> Tensor:
        """`[n, t, d_model]` → the same; writes this layer's keys and values into the cache."""
        attn = self.self_attn
        query, key, value = attn.project(self.self_norm.forward(x), rows)
        keys, values = own.extend(layer, key, value)
        x = x + attn.out_proj.forward(attn.attend(query, keys, values, own.mask), rows)
        x = x + self._cross(self.cross_norm.forward(x), cross.kv[layer], cross, rows)
        return self.ffn.forward(x, rows)

    def _cross(self, h: Tensor, kv: Tensor, cross: CrossBatch, rows: RowAdapters | None) -> Tensor:
        """Each source's keys are read once for all its rows, which become further queries of one entry."""
        attn = self.cross_attn
        query = attn.split(attn.q_proj.forward(h, rows))
        if cross.rows_of is None or cross.place_of is None:
            out = attn.attend(query, kv[0], kv[1], cross.mask)
        else:
            t = query.shape[1]
            grouped = query[cross.rows_of].flatten(1, 2)  # [sources, widest * t, heads, head_dim]
            out = attn.attend(grouped, kv[0], kv[1], cross.mask)
            out = out.view(-1, t, out.shape[-1])[cross.place_of]
        return attn.out_proj.forward(out, rows)


class NllbModel:
    """Encoder, decoder and head. Holds weights only; a call depends on its arguments and caches."""

    def __init__(self, config: ModelConfig, reader: WeightReader) -> None:
        """Read all weights, one tensor at a time; CheckpointError names what is missing or does not fit."""
        d_model = config.d_model
        self.config = config
        self._scale = d_model**0.5 if config.scale_embedding else 1.0
        self._encoder_embedding, self._decoder_embedding, self.head = _embeddings(config, reader)
        self._positions = sinusoidal_positions(
            config.max_position_embeddings + config.pad_token_id + 1, d_model, config.pad_token_id
        ).to(self.head)
        self.encoder_layers = [
            EncoderLayer(f"model.encoder.layers.{i}", config.encoder, reader, d_model)
            for i in range(config.encoder.layers)
        ]
        self._encoder_norm = _norm(reader, "model.encoder.layer_norm", d_model)
        self.decoder_layers = [
            DecoderLayer(f"model.decoder.layers.{i}", config.decoder, reader, d_model)
            for i in range(config.decoder.layers)
        ]
        self._decoder_norm = _norm(reader, "model.decoder.layer_norm", d_model)

    def linears(self) -> Iterator[Linear]:
        """Every Linear an adapter may change: attention projections, fc1 and fc2 of both stacks."""
        for encoder in self.encoder_layers:
            yield from encoder.self_attn.linears()
            yield from (encoder.ffn.fc1, encoder.ffn.fc2)
        for decoder in self.decoder_layers:
            yield from decoder.self_attn.linears()
            yield from decoder.cross_attn.linears()
            yield from (decoder.ffn.fc1, decoder.ffn.fc2)

    def encode(self, ids: Tensor, mask: Tensor | None, rows: RowAdapters | None) -> Tensor:
        """Source ids `[n, s]`, padded on the right and masked (`padding_mask`) → hidden `[n, s, d_model]`."""
        first = self.config.pad_token_id + 1
        x = functional.embedding(ids, self._encoder_embedding) * self._scale
        x = x + self._positions[first : first + ids.shape[1]]
        for layer in self.encoder_layers:
            x = layer.forward(x, mask, rows)
        return self._encoder_norm.forward(x)

    def cross_kv(self, hidden: Tensor, rows: RowAdapters | None) -> Tensor:
        """Keys and values of the source, `[layers, 2, n, s, heads, head_dim]`."""
        return torch.stack([
            torch.stack([attn.split(proj.forward(hidden, rows)) for proj in (attn.k_proj, attn.v_proj)])
            for attn in (layer.cross_attn for layer in self.decoder_layers)
        ])

    def decode(self, ids: Tensor, own: SelfKvStep, cross: CrossBatch, rows: RowAdapters | None) -> Tensor:
        """Target ids `[n, t]` at `own.positions` → the last one's hidden after the norm, `[n, d_model]`."""
        x = functional.embedding(ids, self._decoder_embedding) * self._scale
        # transformers gives a padding token the padding row wherever it stands, a decoded one too.
        pad = self.config.pad_token_id
        x = x + self._positions[torch.where(ids == pad, pad, own.positions + (pad + 1))]
        for index, layer in enumerate(self.decoder_layers):
            x = layer.forward(x, index, own, cross, rows)
        return self._decoder_norm.forward(x[:, -1])

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Hidden `[n, d_model]` times the head, into `out` `[n, vocab]`."""
        return torch.mm(hidden, self.head.t(), out=out)


def _embeddings(config: ModelConfig, reader: WeightReader) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder embedding, decoder embedding, head: one tensor when tied, under whichever name it was saved."""
    saved = next((name for name in TIED_NAMES if reader.has(name)), None)
    if saved is None:
        raise CheckpointError(f"the checkpoint has no embedding; one of {', '.join(TIED_NAMES)} is needed")
    shape = (config.vocab_size, config.d_model)
    shared = reader.read(saved, shape)
    if config.tie_word_embeddings:
        return shared, shared, shared
    encoder, decoder, head = (
        reader.read(name, shape) if reader.has(name) else shared for name in TIED_NAMES[1:]
    )
    return encoder, decoder, head


def _linear(reader: WeightReader, name: str, inputs: int, outputs: int) -> Linear:
    weight = reader.read(f"{name}.weight", (outputs, inputs))
    return Linear(name, weight, reader.read(f"{name}.bias", (outputs,)))


def _norm(reader: WeightReader, name: str, width: int) -> LayerNorm:
    return LayerNorm(reader.read(f"{name}.weight", (width,)), reader.read(f"{name}.bias", (width,)))
