"""Parameter and operation counts of a model; pure arithmetic, no torch."""

from __future__ import annotations

from trainer.config import ModelConfig


def _head_dim(config: ModelConfig) -> int:
    return config.head_dim if config.head_dim is not None else config.hidden_size // config.heads


def layer_matrix_parameters(config: ModelConfig) -> int:
    """Parameters of one decoder layer's matrices."""
    head_dim = _head_dim(config)
    attention = config.hidden_size * head_dim * (2 * config.heads + 2 * config.kv_heads)
    return attention + 3 * config.hidden_size * config.intermediate_size


def parameter_count(config: ModelConfig) -> int:
    """Parameters of the whole model; tied weights once."""
    norms = 2 * config.hidden_size + (2 * _head_dim(config) if config.qk_norm else 0)
    embeddings = (1 if config.tied_embeddings else 2) * config.vocab_size * config.hidden_size
    return embeddings + config.layers * (layer_matrix_parameters(config) + norms) + config.hidden_size


def flops_per_token(config: ModelConfig, sequence_length: int) -> float:
    """Floating-point operations of forward and backward per token.

    6 per parameter of a matrix product (Kaplan et al. 2020: 2 forward, 4 backward; the output projection counts, the
    embedding's look-up and the norms do not), and for attention 12 x heads x head_dim x T per layer (the scores and
    their product with the values; Chowdhery et al. 2022, appendix B), halved because a causal token attends to half of
    the sequence on average. Recomputation (activation checkpointing) is not counted.
    """
    matrices = config.layers * layer_matrix_parameters(config) + config.vocab_size * config.hidden_size
    attention = config.layers * 12 * config.heads * _head_dim(config) * sequence_length / 2
    return 6.0 * matrices + attention
