"""`python -m trainer [options]`: pretrain a language model. `--help` lists the groups of options."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from trainer.cli import entry_point
from trainer.config import Config, resolve


@entry_point("config")
def main(cfg: DictConfig) -> int:
    """Pretrain a language model with tensor, pipeline and data parallelism and a fault-tolerance backend."""
    config = resolve(cfg)
    if config.launch.mode == "worker":
        return _worker(config)
    from trainer.launch import Launcher

    return Launcher(config).run()


def _worker(config: Config) -> int:
    from fault_tolerance.runtime.wire import parse_address
    from trainer.launch import prepare_data
    from trainer.worker import run_under_torchrun

    address = parse_address(config.launch.controller or "", "launch.controller")
    return run_under_torchrun(config, prepare_data(config), address)


if __name__ == "__main__":
    sys.exit(main())
