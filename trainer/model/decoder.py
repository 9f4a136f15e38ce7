"""The decoder: RMSNorm, rotary embedding, grouped-query attention and SwiGLU, as in Llama and Qwen3.

A `Decoder` holds all layers or, under pipeline parallelism, a contiguous range of them; parameter names are those of
the whole model either way (and those of transformers without the leading "model."). Weights are kept in float32 or as
FSDP hands them out; every layer computes in the dtype of the activations it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.config import ModelConfig
from trainer.model.linear import Linear
from trainer.model.loss import linear_cross_entropy
from trainer.model.norm import RMSNorm
from trainer.model.rotary import inverse_frequencies, rotary_tables, rotate


def head_dimension(config: ModelConfig) -> int:
    """Width of an attention head."""
    return config.head_dim if config.head_dim is not None else config.hidden_size // config.heads


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = head_dimension(config)
        width, kv_width = config.heads * self.head_dim, config.kv_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, width)
        self.k_proj = Linear(config.hidden_size, kv_width)
        self.v_proj = Linear(config.hidden_size, kv_width)
        self.o_proj = Linear(width, config.hidden_size)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T = x_BTC.shape[:2]
        q_BTHD = self.q_proj(x_BTC).view(B, T, -1, self.head_dim)
        k_BTKD = self.k_proj(x_BTC).view(B, T, -1, self.head_dim)
        v_BTKD = self.v_proj(x_BTC).view(B, T, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHD, k_BTKD = self.q_norm(q_BTHD), self.k_norm(k_BTKD)
        q_BHTD = rotate(q_BTHD, cos, sin).transpose(1, 2)
        k_BKTD = rotate(k_BTKD, cos, sin).transpose(1, 2)
        grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
        out_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BTKD.transpose(1, 2), is_causal=True, enable_gqa=grouped
        )
        return self.o_proj(out_BHTD.transpose(1, 2).reshape(B, T, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, each with a residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)
        self.recompute = False
        """Activation checkpointing: keep only the input and compute the layer again in the backward pass."""

    def forward(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            out: Tensor = checkpoint(self._block, x_BTC, cos, sin, use_reentrant=False, preserve_rng_state=False)
            return out
        return self._block(x_BTC, cos, sin)

    def _block(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), cos, sin)
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))


@dataclass(frozen=True)
class LayerRange:
    """The part of the model that a chunk holds: layers [first, last) of `total`."""

    first: int
    last: int
    total: int

    @property
    def has_embedding(self) -> bool:
        """Whether the chunk begins the model."""
        return self.first == 0

    @property
    def has_output(self) -> bool:
        """Whether the chunk ends the model."""
        return self.last == self.total


class Decoder(nn.Module):
    """The whole model, or the chunk of it that `layers` names.

    forward(x, targets=None): `x` is token ids [B, T] where the chunk begins the model, else hidden states [B, T, C].
    Where it ends the model the result is the sum of the token losses (a scalar) if targets [B, T] are given, else the
    logits [B, T, V]; elsewhere hidden states [B, T, C].
    """

    def __init__(
        self, config: ModelConfig, positions: int, dtype: torch.dtype = torch.float32, layers: LayerRange | None = None
    ) -> None:
        super().__init__()
        self.range = layers or LayerRange(0, config.layers, config.layers)
        self.config, self.positions, self.dtype = config, positions, dtype
        tied_output = config.tied_embeddings and self.range.has_output
        if self.range.has_embedding or tied_output:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleDict(
            {str(index): DecoderLayer(config) for index in range(self.range.first, self.range.last)}
        )
        if self.range.has_output:
            self.norm = RMSNorm(config.hidden_size, config.norm_eps)
            if not config.tied_embeddings:
                self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.vocabulary: Any = None
        """Under tensor parallelism: this rank's slice of the vocabulary (trainer.parallel.tensor.VocabularySlice)."""
        empty = torch.empty(0)
        self.register_buffer("rotary_cos", empty, persistent=False)
        self.register_buffer("rotary_sin", empty.clone(), persistent=False)

    def build_tables(self, device: torch.device) -> None:
        """Fill the rotary tables; once, after the module has left the meta device."""
        frequencies = inverse_frequencies(head_dimension(self.config), self.config.rope_theta, self.config.rope_scaling)
        cos, sin = rotary_tables(self.positions, frequencies)
        self.rotary_cos, self.rotary_sin = cos.to(device, self.dtype), sin.to(device, self.dtype)

    @property
    def output_weight(self) -> Tensor:
        """Weight of the output projection [V, C]; the embedding's where tied."""
        return self.embed_tokens.weight if self.config.tied_embeddings else self.lm_head.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.range.has_embedding:
            x = self._embedded(x).to(self.dtype)
        cos, sin = self.rotary_cos[: x.shape[1]], self.rotary_sin[: x.shape[1]]
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        if not self.range.has_output:
            return x
        x = self.norm(x)
        if targets is None:
            return self._logits(x)
        return self._loss(x, targets)

    def _embedded(self, ids_BT: Tensor) -> Tensor:
        if self.vocabulary is not None:
            embedded: Tensor = self.vocabulary.embed(ids_BT, self.embed_tokens.weight)
            return embedded
        return self.embed_tokens(ids_BT)

    def _logits(self, x_BTC: Tensor) -> Tensor:
        weight = self.output_weight.to(x_BTC.dtype)
        if self.vocabulary is not None:
            return self.vocabulary.logits(x_BTC, weight)
        return F.linear(x_BTC, weight)

    def _loss(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        hidden, targets = x_BTC.flatten(0, 1), targets_BT.flatten()
        if self.vocabulary is not None:
            return self.vocabulary.loss(hidden, self.output_weight, targets)
        return linear_cross_entropy(hidden, self.output_weight, targets)
