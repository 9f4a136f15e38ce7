"""The resolved config: plain dataclasses, run folders, saving, and every file of conf/."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, ListConfig, OmegaConf

import conf
from trainer import config as module
from trainer.config import Config, FailureEvent, load, register, resolve, save, to_dict
from trainer.validation import validate

CONF = Path(conf.__file__).parent


def composed(*overrides: str) -> DictConfig:
    register()
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", overrides=list(overrides))


def no_hydra_inside(value: Any) -> bool:
    if isinstance(value, DictConfig | ListConfig):
        return False
    if dataclasses.is_dataclass(value):
        return all(no_hydra_inside(getattr(value, entry.name)) for entry in dataclasses.fields(value))
    if isinstance(value, list | tuple):
        return all(map(no_hydra_inside, value))
    return all(map(no_hydra_inside, value.values())) if isinstance(value, dict) else True


def test_resolve_gives_dataclasses_all_the_way() -> None:
    config = resolve(composed("experiment=demo", "run_dir=x"))
    assert type(config) is Config
    assert no_hydra_inside(config)
    assert all(type(event) is FailureEvent for event in config.failures.events)


def test_the_demo_kills_a_group_after_a_checkpoint_and_before_the_end() -> None:
    config = resolve(composed("experiment=demo", "run_dir=x"))
    (event,) = config.failures.events
    assert config.parallel.groups == 2 and config.fault_tolerance.backend == "ckpt"
    assert config.checkpoint.every_steps < event.step < config.train.steps
    assert event.step % config.checkpoint.every_steps  # some steps are lost and done again


@pytest.mark.parametrize(
    ("group", "choice"),
    [
        (path.parent.name, path.stem)
        for group in ("model", "parallel", "optim", "fault_tolerance", "failures", "emulate", "logging")
        for path in sorted((CONF / group).glob("*.yaml"))
        if path.stem != "trace"  # needs events
    ],
)
def test_every_choice_of_every_group_is_valid(group: str, choice: str) -> None:
    values = OmegaConf.load(CONF / group / f"{choice}.yaml")
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config(run_dir="x")), {group: values}))
    assert isinstance(config, Config)
    validate(config)


def test_world_sizes() -> None:
    parallel = resolve(composed("run_dir=x", "parallel.tp=2", "parallel.pp=2", "parallel.dp_shard=2")).parallel
    assert (parallel.ranks_per_group, parallel.world) == (8, 16)


def test_default_run_folder_names_model_and_backend_and_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = resolve(composed("model=tiny", "fault_tolerance=spare")).run_dir
    assert name.startswith("runs/") and name.endswith("_tiny_spare")
    assert not Path("runs").exists()


def test_an_existing_run_folder_is_not_taken_again(tmp_path: Path) -> None:
    module._new_folder.cache_clear()
    taken = tmp_path / "run"
    taken.mkdir()
    (tmp_path / "run-2").mkdir()
    assert module._new_folder(str(taken)) == str(tmp_path / "run-3")


def test_save_and_load_give_the_same_config(tmp_path: Path) -> None:
    config = resolve(composed("experiment=demo", "run_dir=x", "logging.wandb_tags=[a,b]", "model=llama3_1b"))
    save(config, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == config
    assert to_dict(config)["failures"]["events"][0]["signal"] == "SIGKILL"


def test_every_field_is_documented() -> None:
    from trainer.config_reference import field_docs

    classes = [kind for kind in vars(module).values() if dataclasses.is_dataclass(kind) and isinstance(kind, type)]
    assert len(classes) > 10
    for kind in classes:
        plain = {entry.name for entry in dataclasses.fields(kind) if not str(entry.type).endswith("Config")}
        assert plain - set(field_docs(kind)) == set(), kind


def test_the_configuration_reference_is_current() -> None:
    from trainer.config_reference import render

    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert page == render(), "run `make docs`"
