"""scripts/export_hf.py and import_hf.py: checkpoints become folders of transformers with the same logits, and back."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.loader import load
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import Config, ModelConfig, OptimConfig, ParallelConfig, to_dict
from trainer.optim import build_optimizer
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh

LENGTH = 12
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    layers=2,
    heads=4,
    kv_heads=2,
    qk_norm=True,
    tied_embeddings=True,
    init_std=0.2,
)


def _load_script(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return _load_script("export_hf")


def _save(folder: Path, step: int, seed: int, parts: int) -> GroupModel:
    """A checkpoint in `parts` parts of a fresh model with its optimizer."""
    config = Config(run_dir=str(folder), model=MODEL)
    config.train.sequence_length = LENGTH
    parallel = ParallelConfig()
    mesh = GroupMesh(parallel, torch.device("cpu"))
    model = GroupModel(MODEL, parallel, mesh=mesh, sequence_length=LENGTH, compute_dtype=torch.float32, seed=seed)
    state = training_state(model.named_parameters(), build_optimizer(model.named_parameters(), OptimConfig()))
    for part in range(parts):
        writer = CheckpointWriter(Catalog(folder / "checkpoints"), group=part, asynchronous=False)
        writer.save(step, 0, part, parts, state, {"config": to_dict(config)})
    return model


def test_newest_checkpoint_of_a_run_gives_the_same_logits(script: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    _save(tmp_path, 1, seed=1, parts=1)
    newest = _save(tmp_path, 2, seed=2, parts=2)
    assert script.main([str(tmp_path), str(tmp_path / "hf")]) == 0
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(2 * LENGTH).view(2, LENGTH)
    with torch.no_grad():
        assert torch.allclose(newest.parts[0](ids), reference(ids).logits, atol=1e-5)


def test_one_checkpoint_in_bfloat16(script: ModuleType, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = _save(tmp_path, 1, seed=1, parts=1)
    _save(tmp_path, 2, seed=2, parts=1)
    one = tmp_path / "checkpoints" / "step-00000001"
    assert script.main([str(one), str(tmp_path / "hf"), "--dtype", "bfloat16"]) == 0
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    name, parameter = model.named_parameters()[1]
    assert torch.equal(weights[f"model.{name}"], parameter.detach().bfloat16())


def test_what_cannot_be_exported_is_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, 1, seed=1, parts=1)
    assert script.main([str(tmp_path / "nowhere"), str(tmp_path / "hf")]) == 2
    assert "nowhere" in capsys.readouterr().err
    data = next((tmp_path / "checkpoints" / "step-00000001" / "part-0").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    assert script.main([str(data.parents[1]), str(tmp_path / "hf")]) == 2
    assert "bytes" in capsys.readouterr().err
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "note").touch()
    assert script.main([str(tmp_path), str(tmp_path / "hf")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_exported_weights_become_a_checkpoint_again(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _save(tmp_path, 1, seed=1, parts=1)
    assert script.main([str(tmp_path), str(tmp_path / "hf")]) == 0
    back = _load_script("import_hf")
    assert back.main([str(tmp_path / "hf"), str(tmp_path / "imported")]) == 0
    found = Catalog(tmp_path / "imported").newest_verified()
    assert found is not None and found[1]["step"] == 0
    names = [name for name, _ in model.named_parameters()]
    state = {f"model/{name}": torch.zeros(parameter.shape) for name, parameter in model.named_parameters()}
    state["optimizer/norm.weight/exp_avg"] = torch.ones(MODEL.hidden_size)
    load(found[0], found[1]["parts"], state)
    assert all(torch.equal(state[f"model/{name}"], dict(model.named_parameters())[name]) for name in names)
    assert not state["optimizer/norm.weight/exp_avg"].any()
    assert back.main([str(tmp_path / "hf"), str(tmp_path / "imported")]) == 2
    assert "step 0" in capsys.readouterr().err
