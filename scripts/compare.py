"""Compare fault-tolerance methods: live runs under one failure trace, and the simulator on the same trace.

    python scripts/compare.py experiment=ab_small                 16 emulated groups, eight methods
    python scripts/compare.py experiment=ab_quick                 the same idea in a few minutes
    python scripts/compare.py experiment=ab_small output=json     one object on stdout
    python scripts/compare.py ... comparison.rows=[ckpt,rep_partition:2,spare_micro_batch:3]

Everything lies in run_dir: trace.jsonl, one run folder per row under rows/, table.json, report.html with its pictures.
A comparison that is started again in the same run_dir keeps the rows that were finished.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from trainer.cli import entry_point
from trainer.comparison.rows import Row
from trainer.comparison.run import Comparison
from trainer.comparison.table import print_table, summarise
from trainer.config import Config
from trainer.metrics.files import write_json
from trainer.validation import check_choice


@dataclass
class ComparisonOptions:
    """What is compared."""

    rows: list[str] = field(default_factory=lambda: ["ckpt", "rep_partition:2", "spare:2", "spare_micro_batch:2"])
    """Methods and redundancies: ckpt, rep:R, rep_partition:R, spare:R (whole shards) or spare_micro_batch:R."""
    row_seconds: float = 600.0
    """Longest time of one live row; one that takes longer is ended and left out."""


@dataclass
class CompareConfig(Config):
    """The trainer's options, for every row, and what is compared."""

    comparison: ComparisonOptions = field(default_factory=ComparisonOptions)
    output: str = "text"
    """text, or json: one object on stdout."""


ConfigStore.instance().store(name="compare_schema", node=CompareConfig)


@entry_point("compare")
def main(cfg: DictConfig) -> int:
    """Compare fault-tolerance methods, live and simulated, under one failure trace."""
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, CompareConfig)
    check_choice("output", config.output, ("text", "json"))
    rows = [Row.parse(text) for text in config.comparison.rows]
    folder = Path(config.run_dir)
    comparison = Comparison(config, rows, folder, config.comparison.row_seconds, _tell)
    outcomes = comparison.run()
    summary = summarise(outcomes, config)
    write_json(folder / "table.json", summary)
    from trainer.comparison.report import write_report  # matplotlib, which the runs can do without

    page = write_report(folder.absolute(), outcomes, summary)
    if config.output == "json":
        print(json.dumps(summary, allow_nan=False))
    else:
        print_table(summary)
        _tell(f"pictures and page: {page}")
    return 0 if len(outcomes) == len(rows) else 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
