"""Exchange with transformers: configs and weights of LlamaForCausalLM and Qwen3ForCausalLM, in both directions.

Parameter names here are those of transformers without the leading "model.", so weights need no other translation.
transformers itself is imported only where a config is read or a folder written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainer.config import ModelConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type of transformers -> class, for the kinds that this decoder computes."""


def model_config_from_hf(path_or_name: str, base: ModelConfig | None = None) -> ModelConfig:
    """The ModelConfig of a transformers config, given a folder, a config file or a hub name.

    `base` gives what transformers does not say (init_std if absent). Raises ValueError for an architecture or an
    option that this decoder does not compute, or a config that cannot be read.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path_or_name)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.hf={path_or_name} cannot be read as a transformers config: {error}") from error
    return from_pretrained_config(config, path_or_name, base)


def from_pretrained_config(
    config: PretrainedConfig, source: str = "<config>", base: ModelConfig | None = None
) -> ModelConfig:
    """The ModelConfig that computes what `config` (of transformers) describes; raises ValueError if none does."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise ValueError(f"model.hf={source} is of type {kind}; this decoder computes {', '.join(ARCHITECTURES)}")
    if config.hidden_act != "silu":
        raise ValueError(f"model.hf={source} has hidden_act={config.hidden_act}; this decoder has silu")
    for option in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if getattr(config, option, False):
            raise ValueError(f"model.hf={source} has {option}=true; this decoder has none")
    theta, scaling = _rotary_options(config)
    return ModelConfig(
        name=os.path.basename(os.path.normpath(source)) or kind,
        hf=source if source != "<config>" else None,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=config.rms_norm_eps,
        qk_norm=kind == "qwen3",
        tied_embeddings=bool(config.tie_word_embeddings),
        init_std=float(getattr(config, "initializer_range", (base or ModelConfig()).init_std)),
    )


def _rotary_options(config: PretrainedConfig) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of the rotary embedding, from transformers 4's or 5's way to write them."""
    parameters = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    theta = parameters.pop("rope_theta", None)
    if theta is None:
        theta = getattr(config, "rope_theta", 10000.0)
    kind = parameters.setdefault("rope_type", parameters.pop("type", "default"))
    return float(theta), (None if kind == "default" else parameters)


def to_hf_config(config: ModelConfig, positions: int, dtype: str = "float32") -> dict[str, Any]:
    """The content of transformers' config.json for `config` with sequences of up to `positions` tokens.

    Raises ValueError where no class of transformers computes the model.
    """
    kind = "qwen3" if config.qk_norm else "llama"
    head_dim = config.head_dim if config.head_dim is not None else config.hidden_size // config.heads
    scaling = config.rope_scaling or {"rope_type": "default"}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
        "use_cache": True,
        "dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def to_hf_name(name: str) -> str:
    """transformers' name of a parameter."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def from_hf_state(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Weights of transformers under this decoder's names; a tied output projection is left out.

    Raises ValueError for a name that this decoder does not have.
    """
    result = {}
    for hf_name, tensor in state.items():
        if hf_name.endswith("rotary_emb.inv_freq") or (hf_name == "lm_head.weight" and config.tied_embeddings):
            continue
        if hf_name != "lm_head.weight" and not hf_name.startswith("model."):
            raise ValueError(f"weight {hf_name} is not part of a {'/'.join(ARCHITECTURES.values())}")
        result[hf_name.removeprefix("model.")] = tensor
    return result


def save_hf_folder(
    folder: str,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    positions: int,
    shard_bytes: int = 4 * 2**30,
) -> None:
    """Write config.json and the weights (full tensors under this decoder's names) as transformers reads them.

    Weights go to safetensors files of about `shard_bytes` each; one file at a time is held in memory.
    """
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    dtypes = set()
    parts: list[str] = []
    index: dict[str, str] = {}
    total = 0
    for number, part in enumerate(_parts(tensors, shard_bytes)):
        parts.append(os.path.join(folder, f"part-{number}.safetensors"))
        named = {to_hf_name(name): tensor.detach().cpu().contiguous() for name, tensor in part.items()}
        dtypes |= {str(tensor.dtype).removeprefix("torch.") for tensor in named.values()}
        total += sum(tensor.numel() * tensor.element_size() for tensor in named.values())
        save_file(named, parts[-1], metadata={"format": "pt"})
        index |= dict.fromkeys(named, parts[-1])
    if len(parts) == 1:
        os.replace(parts[0], os.path.join(folder, "model.safetensors"))
    else:
        _name_parts(folder, parts, index, total)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(to_hf_config(config, positions, dtypes.pop() if len(dtypes) == 1 else "float32"), file, indent=2)
        file.write("\n")


def _parts(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bytes_here = tensor.numel() * tensor.element_size()
        if part and size + bytes_here > shard_bytes:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += bytes_here
    yield part


def _name_parts(folder: str, parts: list[str], index: dict[str, str], total: int) -> None:
    """Give the weight files transformers' names and write their index."""
    names = {part: f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i, part in enumerate(parts)}
    for part, name in names.items():
        os.replace(part, os.path.join(folder, name))
    content = {"metadata": {"total_size": total}, "weight_map": {key: names[part] for key, part in index.items()}}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump(content, file, indent=2)
