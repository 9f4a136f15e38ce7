"""The process that talks to Weights & Biases: reads JSON lines on stdin, logs them, ends with stdin.

It is a process of its own so that nothing of wandb (an unreachable server, a full disk, its exit handlers) can stop,
slow or outlive training. Each line that it prints is a warning for the user.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any, TextIO

NICENESS = 10
"""It gives way to training on the same cores."""


def main() -> int:
    """Log until "finish" or the end of stdin.

    Returns:
        Exit status: 0 if everything was handed to wandb.
    """
    os.nice(NICENESS)
    records, warnings = _private_streams()
    os.environ["WANDB_SILENT"] = "true"
    try:
        _log_all(records, warnings)
    except Exception as error:  # whatever wandb raises: the parent has to hear of it, and only that
        _tell(warnings, f"Weights & Biases stopped: {_first_line(error)}; metrics.jsonl has everything")
        return 1
    return 0


def _private_streams() -> tuple[TextIO, TextIO]:
    """Take stdin and stdout for the parent alone: wandb must neither read records nor print between warnings."""
    records = os.fdopen(os.dup(0), encoding="utf-8")
    warnings = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return records, warnings


def _log_all(records: TextIO, warnings: TextIO) -> None:
    import wandb

    run: Any = None
    folder = Path()
    for line in records:
        record = json.loads(line)
        match record["type"]:
            case "init":
                folder = Path(record["dir"])
                run = _init(wandb, record, warnings)
            case "log":
                run.log(record["data"])
            case "finish":
                if record["rows"]:
                    run.log({"failures": wandb.Table(columns=record["columns"], data=record["rows"])})
                run.summary.update(record["summary"])
                _log_pictures(wandb, run, folder, warnings)
                break
    if run is not None:
        run.finish()


def _log_pictures(wandb: Any, run: Any, folder: Path, warnings: TextIO) -> None:
    """The report's pictures as media; they are drawn here, where nobody waits for them but the end of the run."""
    from trainer.report.history import History
    from trainer.report.pictures import draw

    try:
        paths = draw(History.read(folder), folder / "report")
    except ValueError:
        return  # nothing was trained
    except OSError as error:
        _tell(warnings, f"the report's pictures cannot be written ({error.strerror})")
        return
    run.log({f"report/{path.stem}": wandb.Image(str(path), caption=title) for title, path in paths.items()})


def _init(wandb: Any, record: dict[str, Any], warnings: TextIO) -> Any:
    """Start the run; a server that cannot be reached in time leaves an offline one."""
    identity = _run_id(Path(record["dir"]) / "wandb" / "run_id")
    try:
        return _start(wandb, record, identity, record["mode"])
    except (wandb.errors.Error, TimeoutError) as error:
        if record["mode"] != "online":
            raise
        _tell(warnings, f"Weights & Biases is offline ({_first_line(error)}); upload later with `wandb sync`")
        wandb.teardown()
        return _start(wandb, record, identity, "offline")


def _start(wandb: Any, record: dict[str, Any], identity: str, mode: str) -> Any:
    run = wandb.init(
        project=record["project"],
        group=record["group"],
        tags=record["tags"],
        job_type=record["job_type"],
        name=record["name"],
        config=record["config"],
        dir=record["dir"],
        id=identity,
        resume="allow" if mode == "online" else None,
        mode=mode,
        settings=wandb.Settings(
            console="off",
            init_timeout=record["init_seconds"],
            finish_timeout=record["finish_seconds"],
            x_disable_stats=mode != "online",
            disable_git=True,
            save_code=False,
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")  # steps come again after a global restart
    return run


def _run_id(path: Path) -> str:
    """The same for every start of one run folder, so that a resumed run continues its W&B run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _tell(warnings: TextIO, text: str) -> None:
    try:
        print(text, file=warnings, flush=True)
    except BrokenPipeError:
        return  # the parent is gone; nobody to tell


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


if __name__ == "__main__":
    sys.exit(main())
