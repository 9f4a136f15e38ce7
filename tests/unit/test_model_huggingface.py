"""Logits equal transformers' in float32, weights going either way; configs survive the round trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import ModelConfig
from trainer.model.decoder import Decoder
from trainer.model.huggingface import (
    from_hf_state,
    from_pretrained_config,
    model_config_from_hf,
    save_hf_folder,
    to_hf_config,
    to_hf_name,
)
from trainer.model.initialise import initial_rows

LENGTH = 24
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"kv_heads": 4},
    "llama-gqa-tied": {"kv_heads": 1, "tied_embeddings": True},
    "llama-scaled": {"kv_heads": 2, "rope_scaling": LLAMA3_SCALING, "rope_theta": 500000.0, "head_dim": 32},
    "qwen3": {"kv_heads": 2, "qk_norm": True, "head_dim": 24, "norm_eps": 1e-6},
    "qwen3-tied": {"kv_heads": 2, "qk_norm": True, "tied_embeddings": True, "rope_theta": 1000000.0},
}


def _config(case: str) -> ModelConfig:
    return ModelConfig(
        vocab_size=96, hidden_size=64, intermediate_size=80, layers=2, heads=4, init_std=0.2, **CASES[case]
    )


def _decoder(config: ModelConfig, seed: int = 3) -> Decoder:
    decoder = Decoder(config, LENGTH)
    decoder.build_tables(torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(initial_rows(config, seed, name, parameter.shape, 0, parameter.shape[0]))
            if parameter.ndim == 1:
                parameter.mul_(torch.linspace(0.5, 1.5, len(parameter)))
    return decoder


def _ids() -> torch.Tensor:
    return torch.randint(0, 96, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _difference(decoder: Decoder, reference: torch.nn.Module) -> float:
    found, expected = decoder(_ids()), reference(_ids()).logits
    assert expected.abs().max() > 1.0, "logits too small to compare"
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_exported_weights_give_the_same_logits(case: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = _config(case)
    decoder = _decoder(config)
    save_hf_folder(str(tmp_path), config, decoder.named_parameters(), LENGTH)
    reference, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(reference).__name__ == ("Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM")
    assert _difference(decoder, reference.eval()) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_weights_of_transformers_give_the_same_logits(case: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(_config(case), LENGTH)))
    torch.manual_seed(7)
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval()
    config = model_config_from_hf(str(tmp_path))
    decoder = Decoder(config, LENGTH)
    decoder.build_tables(torch.device("cpu"))
    decoder.load_state_dict(from_hf_state(reference.state_dict(), config))
    assert _difference(decoder, reference) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_config_survives_the_round_trip(case: str, tmp_path: Path) -> None:
    config = _config(case)
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(config, LENGTH)))
    back = model_config_from_hf(str(tmp_path))
    same = {
        name: getattr(config, name)
        for name in ModelConfig.__dataclass_fields__
        if name not in ("name", "hf", "head_dim")
    }
    assert {name: getattr(back, name) for name in same} == same
    assert back.head_dim == (config.head_dim or config.hidden_size // config.heads)


def test_weights_are_split_over_files_and_read_back(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = _config("llama")
    decoder = _decoder(config)
    save_hf_folder(str(tmp_path), config, decoder.named_parameters(), LENGTH, shard_bytes=40_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    assert _difference(decoder, AutoModelForCausalLM.from_pretrained(tmp_path).eval()) < 1e-5


def test_names_are_those_of_transformers_without_the_prefix() -> None:
    assert to_hf_name("layers.1.mlp.up_proj.weight") == "model.layers.1.mlp.up_proj.weight"
    assert to_hf_name("lm_head.weight") == "lm_head.weight"
    with pytest.raises(ValueError, match=r"score\.weight"):
        from_hf_state({"score.weight": torch.ones(1)}, ModelConfig())


def test_what_the_decoder_does_not_compute_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, LlamaConfig

    with pytest.raises(ValueError, match="gpt2"):
        from_pretrained_config(GPT2Config())
    with pytest.raises(ValueError, match="attention_bias"):
        from_pretrained_config(LlamaConfig(attention_bias=True))
    with pytest.raises(ValueError, match=r"model\.hf=.*nowhere"):
        model_config_from_hf(str(tmp_path / "nowhere"))
