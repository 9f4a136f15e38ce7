"""`python -m trainer [options]`: pretrain a language model. `--help` lists the groups of options."""

from __future__ import annotations

import dataclasses
import sys

from omegaconf import DictConfig

from trainer.cli import entry_point
from trainer.config import Config, resolve
from trainer.validation import validate


@entry_point("config")
def main(cfg: DictConfig) -> int:
    """Pretrain a language model with tensor, pipeline and data parallelism and a fault-tolerance backend."""
    config = resolve(cfg)
    if config.model.hf is not None:
        _fill_in_model(config)
    if config.launch.mode == "worker":
        return _worker(config)
    from trainer.launch import Launcher

    return Launcher(config).run()


def _fill_in_model(config: Config) -> None:
    """Puts the sizes of the transformers config `model.hf` in place, so that workers need not read it."""
    from trainer.model.huggingface import model_config_from_hf

    assert config.model.hf is not None
    config.model = dataclasses.replace(model_config_from_hf(config.model.hf, config.model), hf=None)
    validate(config)


def _worker(config: Config) -> int:
    from fault_tolerance.runtime.wire import parse_address
    from trainer.launch import prepare_data
    from trainer.worker import run_under_torchrun

    address = parse_address(config.launch.controller or "", "launch.controller")
    return run_under_torchrun(config, prepare_data(config), address)


if __name__ == "__main__":
    sys.exit(main())
