"""Where a run starts, and where a global restart goes on: the newest whole checkpoint of this run and of no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer import config as configuration
from trainer.checkpoint.catalog import Catalog
from trainer.checkpoint.files import describe_files
from trainer.config import Config
from trainer.resume import StartingPoint

FINGERPRINT = "corpus"


def written(folder: Path, step: int, config: Config, fingerprint: str = FINGERPRINT) -> Path:
    """A whole checkpoint of `step` with one small file."""
    catalog = Catalog(folder)
    part = catalog.begin(step, 1, 0)
    (part / "data").write_bytes(b"weights of " + str(step).encode())
    extra = {"step": step, "config": configuration.to_dict(config), "data_fingerprint": fingerprint}
    files = describe_files(part, ["data"])
    catalog.record_part(step, 1, 0, 1, files, json.loads(json.dumps(extra)))
    path = catalog.finalise(step, 1, 1)
    assert path is not None
    return path


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(run_dir=str(tmp_path / "run"))


def start(config: Config, folder: Path, told: list[str] | None = None) -> StartingPoint:
    return StartingPoint(config, Catalog(folder), (told if told is not None else []).append, FINGERPRINT)


def test_auto_takes_the_newest_that_is_whole(config: Config, tmp_path: Path) -> None:
    written(tmp_path, 5, config)
    newer = written(tmp_path, 10, config)
    (newer / "part-0" / "data").write_bytes(b"weights of 11")
    told: list[str] = []
    first = start(config, tmp_path, told).first()
    assert (first["step"], first["parts"]) == (5, 1)
    assert len(told) == 1 and "step 10" in told[0]


def test_a_restart_before_the_first_save_goes_back_to_the_checkpoint_that_was_asked_for(
    config: Config, tmp_path: Path
) -> None:
    path = written(tmp_path / "other", 7, config)
    config.checkpoint.resume = str(path)
    point = start(config, tmp_path / "own")
    assert point.first()["checkpoint"] == str(path)
    assert point.again() == point.first()
    own = written(tmp_path / "own", 9, config)
    assert point.again()["checkpoint"] == str(own)


@pytest.mark.parametrize("how", ["never", "path"])
def test_a_folder_with_later_checkpoints_of_another_run_is_refused(config: Config, tmp_path: Path, how: str) -> None:
    written(tmp_path / "used", 1000, config)
    config.checkpoint.resume = "never" if how == "never" else str(written(tmp_path / "other", 7, config))
    with pytest.raises(ValueError, match=r"checkpoint\.resume=.*already holds step-00001000"):
        start(config, tmp_path / "used").first()


@pytest.mark.parametrize(
    ("option", "value"),
    [("seed", 1), ("train.global_batch", 32), ("train.sequence_length", 64), ("data.validation_fraction", 0.1)],
)
def test_options_that_name_the_data_must_agree(config: Config, tmp_path: Path, option: str, value: Any) -> None:
    written(tmp_path, 5, config)
    group, _, name = option.rpartition(".")
    setattr(getattr(config, group) if group else config, name, value)
    with pytest.raises(ValueError, match=rf"{option}={value}.*was made with {option}="):
        start(config, tmp_path).first()


def test_another_corpus_is_refused_and_another_layout_is_not(config: Config, tmp_path: Path) -> None:
    written(tmp_path, 5, config)
    config.parallel.groups, config.parallel.tp, config.train.steps = 4, 2, 999
    assert start(config, tmp_path).first()["step"] == 5
    written(tmp_path, 6, config, fingerprint="another corpus")
    with pytest.raises(ValueError, match="another corpus or tokenizer"):
        start(config, tmp_path).first()
