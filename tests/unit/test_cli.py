"""Command lines: what composes, what is refused in one line, sweeps, exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from trainer.cli import entry_point
from trainer.config import resolve

PROGRAM = """
from trainer.cli import entry_point

@entry_point("config")
def main(cfg):
    print("seed", cfg.seed, "folder", cfg.run_dir)
    return cfg.seed

main()
"""


@entry_point("config")
def program(cfg: DictConfig) -> int:
    """Resolve and leave."""
    config = resolve(cfg)
    print(f"ran seed={config.seed} tp={config.parallel.tp} folder={config.run_dir}")
    return config.seed


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as stop:
        program(argv)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["parallel.grups=2"], "unknown option parallel.grups: did you mean parallel.groups?"),
        (["++parallel.grups=2"], "unknown option parallel.grups: did you mean parallel.groups?"),
        (["tp=2"], "unknown option tp: did you mean parallel.tp?"),
        (["parallel.groups=two"], "parallel.groups=two: needs a whole number"),
        (["train.deterministic=maybe"], "train.deterministic=maybe: needs true or false"),
        (["optim.betas=0.9"], "optim.betas=0.9: needs a list, as [a,b]"),
        (["seed=null"], "seed=null: must not be null"),
        (["seed"], "cannot read 'seed': write option=value (quote a value with special characters)"),
        (["seed=1,2"], "seed=1,2: several values need -m (one run each); a list is written seed=[a,b]"),
        (["experiment=dmeo"], "experiment=dmeo: no such choice (did you mean demo?)"),
        (["fault_tolerance=sparee"], "fault_tolerance is one of: ckpt, rep, spare"),
        (["failures=trace", "failures.events=[{step: 1, gruop: 1}]"], "unknown option gruop: did you mean group?"),
        (["parallel.tp=3"], "parallel.tp=3: must divide"),
        (["-m", "seed=1,2", "parallel.groups=two"], "parallel.groups=two: needs a whole number"),
        (["-m", "seed=interval(1,2)"], "seed=interval(1,2): a sweep needs values"),
        (["--config-dir", "/nowhere"], "--config-dir /nowhere: no such folder"),
        (["--cfgs"], "unrecognized arguments: --cfgs"),
        (["model.name=${nope}"], "Interpolation key 'nope' not found"),
        (["model.rope_scaling={factor: 8}"], "model.rope_scaling={factor: 8}: a mapping"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ") and line in err


def test_full_error_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match="grups"):
        program(["parallel.grups=2"])


def test_a_bug_keeps_its_traceback() -> None:
    @entry_point("config")
    def broken(cfg: DictConfig) -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        broken([])


def test_ctrl_c_is_status_130_without_a_traceback() -> None:
    @entry_point("config")
    def interrupted(cfg: DictConfig) -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        interrupted([])
    assert stop.value.code == 130


def test_status_of_main_is_the_exit_status() -> None:
    assert call("seed=0") == 0
    assert call("seed=5") == 5


def test_cfg_prints_yaml_and_runs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--cfg", "job", "parallel.tp=2", "seed=7") == 0
    out, _ = capfd.readouterr()
    assert "ran seed" not in out
    assert "tp: 2" in out and "hydra" not in out


def test_help_lists_the_groups(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    out, _ = capfd.readouterr()
    assert "Resolve and leave." in out
    assert "fault_tolerance=ckpt|rep|spare" in out


def test_sweep_runs_all_combinations_in_subfolders_and_reports_the_worst(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("-m", "seed=1,0", "parallel.tp=1,2", "run_dir=sweep") == 1
    out, _ = capfd.readouterr()
    assert out.splitlines() == [
        "ran seed=1 tp=1 folder=sweep/0",
        "ran seed=1 tp=2 folder=sweep/1",
        "ran seed=0 tp=1 folder=sweep/2",
        "ran seed=0 tp=2 folder=sweep/3",
    ]


def test_a_failed_job_of_a_sweep_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("-m", "parallel.tp=3,1", "run_dir=sweep") == 2
    out, err = capfd.readouterr()
    assert "ran seed=0 tp=1" in out
    assert "parallel.tp=3: must divide" in err


def test_config_dir_adds_choices(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nparallel:\n  tp: 2\n")
    assert call("--config-dir", str(tmp_path), "experiment=mine") == 0
    assert "tp=2" in capfd.readouterr().out


def test_other_configs_need_no_schema(capfd: pytest.CaptureFixture[str]) -> None:
    ConfigStore.instance().store(name="plain", node={"groups": 600})

    @entry_point("plain")
    def plan(cfg: DictConfig) -> int:
        print("groups", cfg.groups)
        return 0

    for argument, status in (("groups=7", 0), ("grups=7", 2)):
        with pytest.raises(SystemExit) as stop:
            plan([argument])
        assert stop.value.code == status
    out, err = capfd.readouterr()
    assert out == "groups 7\n"
    assert err == "error: unknown option grups: did you mean groups?\n"


def test_as_a_program_it_leaves_nothing_behind_and_loads_no_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + "\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(script), "-m", "seed=0,3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout.count("seed") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
    assert "| torch" not in done.stderr and "|     torch" not in done.stderr
