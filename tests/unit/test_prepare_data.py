"""scripts/prepare_data.py: the same tokens with any number of processes and through kills, for trainer and Megatron."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from trainer.config import DataConfig
from trainer.data import tokenize_corpus as engine
from trainer.data.prepare import prepare

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_data.py"
SPEC = importlib.util.spec_from_file_location("prepare_data", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
prepare_data = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prepare_data)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files around the size of a part, cut small for the test."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(6):
        lines = (f"line {line} of file {number} says {line * 7919 % 997}\n" for line in range(400 * (number + 1)))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments), "--quiet"]
    return subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)


def config(corpus: Path, tokenizer: str = "bytes") -> DataConfig:
    return DataConfig(
        source="text",
        paths=[str(corpus / "*.txt")],
        tokenizer=tokenizer,
        bpe_vocab_size=400,
        cache_dir=str(corpus.parent / "cache"),
    )


def tokenize(corpus: Path, name: str, *, megatron: bool = False, parts: int = 1, overwrite: bool = False) -> Path:
    """Run the engine in this process, with about so many parts; returns the .bin."""
    size = sum(file.stat().st_size for file in corpus.iterdir())
    output = corpus.parent / name
    engine.tokenize_corpus(
        config(corpus),
        output,
        processes=1,
        megatron=megatron,
        overwrite=overwrite,
        progress=False,
        part_bytes=size // parts,
    )
    return output.with_name(name + ".bin")


@pytest.mark.processes
def test_the_script_writes_what_the_trainer_would_prepare(corpus: Path) -> None:
    output = corpus.parent / "out" / "tokens"
    parts = ["--processes", "2", "--part-mib", "0.05"]
    done = run("--paths", corpus / "*.txt", "--bpe-vocab-size", "400", *parts, "--output", output)
    assert done.returncode == 0, done.stderr
    files = ["tokens.bin", "tokens.json", "tokens.tokenizer.json"]
    assert sorted(file.name for file in output.parent.iterdir()) == files
    assert f"python -m trainer data=tokens data.paths='[{output}.bin]' data.token_dtype=uint16" in done.stdout
    expected = prepare(config(corpus, "bpe"), progress=False)
    assert Path(f"{output}.bin").read_bytes() == Path(expected.files[0].path).read_bytes()
    read = DataConfig(source="tokens", paths=[f"{output}.bin"], cache_dir=str(corpus.parent / "cache"))
    prepared = prepare(read, progress=False)
    assert (prepared.total_tokens, prepared.vocab_size) == (expected.total_tokens, expected.vocab_size)
    assert prepared.tokenizer == f"{output}.tokenizer.json" and prepared.end_of_text == expected.end_of_text


def test_parts_do_not_change_the_tokens(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokenize(corpus, "whole").read_bytes()
    monkeypatch.setattr("trainer.data.sources.PIECE_BYTES", 7_000)
    assert tokenize(corpus, "cut", parts=9).read_bytes() == whole
    assert not list(corpus.parent.glob("*.parts"))


def test_megatron_output_has_a_sequence_per_document(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.sources.PIECE_BYTES", 7_000)
    monkeypatch.setattr("trainer.data.writer._BATCH_CHARACTERS", 20_000)
    path = tokenize(corpus, "indexed", megatron=True, parts=3)
    sizes = [file.stat().st_size + 1 for file in sorted(corpus.iterdir())]
    index = path.with_suffix(".idx").read_bytes()
    assert np.frombuffer(index, "<i4", count=6, offset=34).tolist() == sizes
    read = DataConfig(source="tokens", paths=[str(path)], cache_dir=str(corpus.parent / "cache"))
    prepared = prepare(read, progress=False)
    assert (prepared.total_tokens, prepared.vocab_size, prepared.end_of_text) == (sum(sizes), 257, 256)


def test_finished_parts_are_kept(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokenize(corpus, "expected").read_bytes()
    join = engine._join
    monkeypatch.setattr(engine, "_join", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tokenize(corpus, "out", parts=5)
    parts = sorted((corpus.parent / "out.parts").glob("*.bin"))
    assert len(parts) > 2 and not (corpus.parent / "out.bin").exists()
    times = {part.name: part.stat().st_mtime_ns for part in parts}
    parts[1].unlink()

    def check(*args: object) -> object:
        again = {part.name: part.stat().st_mtime_ns for part in (corpus.parent / "out.parts").glob("*.bin")}
        assert {name for name in times if again[name] != times[name]} == {parts[1].name}
        return join(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_join", check)
    assert tokenize(corpus, "out", parts=5).read_bytes() == expected


def test_parts_of_another_corpus_are_not_used(corpus: Path) -> None:
    folder = corpus.parent / "out.parts"
    folder.mkdir()
    (folder / "corpus").write_text("of another")
    (folder / "000000.bin").write_bytes(b"old")
    assert tokenize(corpus, "out").read_bytes() == tokenize(corpus, "expected").read_bytes()


@pytest.mark.processes
def test_a_killed_run_leaves_no_process_and_is_gone_on_with(corpus: Path) -> None:
    """Killed while workers write: its death ends them, and their finished parts count."""
    for copy in range(1):
        (corpus / f"copy{copy}.txt").write_text((corpus / "5.txt").read_text() * 4)
    arguments = ["--paths", str(corpus / "*.txt"), "--bpe-vocab-size", "400", "--processes", "2", "--part-mib", "0.05"]
    output = corpus.parent / "out"
    process = subprocess.Popen([sys.executable, str(SCRIPT), *arguments, "--output", str(output), "--quiet"])
    deadline = time.monotonic() + 30
    while not list(corpus.parent.glob("out.parts/0*.bin")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert len(workers) >= 2 and not psutil.wait_procs(workers, timeout=10)[1]
    assert not os.path.exists(f"{output}.bin")
    done = run(*arguments, "--output", output)
    assert done.returncode == 0, done.stderr
    expected = prepare(config(corpus, "bpe"), progress=False)
    assert Path(f"{output}.bin").read_bytes() == Path(expected.files[0].path).read_bytes()


def test_nothing_is_replaced_unasked(corpus: Path) -> None:
    path = tokenize(corpus, "out", megatron=True)
    before = path.read_bytes()
    (corpus / "0.txt").write_text("other\n")
    with pytest.raises(ValueError, match="--overwrite replaces it"):
        tokenize(corpus, "out")
    assert path.read_bytes() == before
    tokenize(corpus, "out", overwrite=True)
    assert path.read_bytes() != before and not path.with_suffix(".idx").exists()


def test_a_file_of_someone_else_is_never_replaced(corpus: Path) -> None:
    (corpus.parent / "rows.json").write_text('[{"text": "mine"}]')
    with pytest.raises(ValueError, match="was not written by this tool"):
        tokenize(corpus, "rows", overwrite=True)
    assert (corpus.parent / "rows.json").read_text() == '[{"text": "mine"}]'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--paths", "/no/such/*.txt"], "prepare_data: --paths: no file matches the glob /no/such/*.txt\n"),
        (["--source", "hf"], "prepare_data: --name is empty"),
        (
            ["--source", "python_stdlib", "--bpe-vocab-size", "9"],
            "prepare_data: --bpe-vocab-size=9 must be at least 257",
        ),
    ],
)
def test_errors_name_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert prepare_data.main([*arguments, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message) and error.count("\n") == 1


def test_help_says_what_each_option_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        prepare_data.main(["--help"])
    assert "trained on a sample of the corpus" in capsys.readouterr().out


@pytest.mark.processes
def test_text_that_a_worker_cannot_read_is_named(corpus: Path) -> None:
    (corpus / "3.txt").write_bytes(b"\xff")
    arguments = ["--tokenizer", "bytes", "--processes", "2", "--part-mib", "0.01"]
    done = run("--paths", corpus / "*.txt", *arguments, "--output", corpus.parent / "out")
    assert done.returncode == 2 and "3.txt is not UTF-8 text (byte 0xff at 0)" in done.stderr
