"""Preparation: what the token files hold, and that a cache entry is whole, of this corpus, and cheap to find."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data import sources
from trainer.data.prepare import prepare
from trainer.data.prepared import PreparedData

TEXTS = {"a.txt": "def first():\n    return 'äöü €'\n", "b.txt": "<|endoftext|> in the text\n" * 40, "c.txt": ""}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    (tmp_path / "corpus").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "corpus" / name).write_text(text, encoding="utf-8")
    return DataConfig(
        source="text",
        paths=[str(tmp_path / "corpus" / "*.txt")],
        tokenizer="bytes",
        bpe_vocab_size=300,
        cache_dir=str(tmp_path / "cache"),
    )


def tokens(prepared: PreparedData) -> np.ndarray:
    return np.concatenate([np.fromfile(file.path, dtype=file.dtype) for file in prepared.files])


def entries(data: DataConfig) -> list[str]:
    """Cache entries and leftovers, without locks."""
    assert data.cache_dir is not None
    return sorted(name for name in os.listdir(data.cache_dir) if not name.endswith(".lock"))


def command(data: DataConfig, before: str = "", after: str = "") -> list[str]:
    """A process that prepares the data and prints the result."""
    code = (
        "import sys\nfrom trainer.config import DataConfig\nfrom trainer.data.prepare import prepare\n"
        f"{before}\nprint(prepare(DataConfig(**{vars(data)!r}), progress=False).to_json())\n{after}"
    )
    return [sys.executable, "-c", code]


def test_bytes_are_the_files_each_ended(data: DataConfig) -> None:
    prepared = prepare(data, progress=False)
    expected: list[int] = []
    for name in ("a.txt", "b.txt"):
        expected += [*TEXTS[name].encode(), 256]
    assert tokens(prepared).tolist() == expected
    assert (prepared.vocab_size, prepared.end_of_text, prepared.tokenizer) == (257, 256, None)
    assert prepared.total_tokens == len(expected) == prepared.files[0].tokens


def test_bpe_decodes_to_the_text_and_ends_documents_only(data: DataConfig) -> None:
    from tokenizers import Tokenizer

    data.tokenizer = "bpe"
    prepared = prepare(data, progress=False)
    assert prepared.tokenizer is not None and prepared.end_of_text is not None
    ids = tokens(prepared)
    ends = np.flatnonzero(ids == prepared.end_of_text).tolist()
    assert len(ends) == 2 and ends[-1] == len(ids) - 1
    tokenizer = Tokenizer.from_file(prepared.tokenizer)
    assert tokenizer.decode(ids[: ends[0]].tolist()) == TEXTS["a.txt"]
    assert tokenizer.decode(ids[ends[0] + 1 : -1].tolist()) == TEXTS["b.txt"]
    assert ids.max() < prepared.vocab_size == tokenizer.get_vocab_size() <= 300
    assert len(ids) < len(TEXTS["b.txt"]) / 3


def test_equal_corpora_are_equal_on_every_machine(data: DataConfig, tmp_path: Path) -> None:
    data.tokenizer = "bpe"
    first = prepare(data, progress=False)
    data.cache_dir = str(tmp_path / "elsewhere")
    second = prepare(data, progress=False)
    assert first.fingerprint == second.fingerprint and first.files != second.files
    assert first.tokenizer is not None and second.tokenizer is not None
    assert Path(first.tokenizer).read_bytes() == Path(second.tokenizer).read_bytes()
    np.testing.assert_array_equal(tokens(first), tokens(second))


def test_json_round_trip(data: DataConfig) -> None:
    prepared = prepare(data, progress=False)
    assert PreparedData.from_json(prepared.to_json()) == prepared
    assert "\n" not in prepared.to_json()


def test_a_changed_corpus_or_tokenizer_is_another_entry(data: DataConfig, tmp_path: Path) -> None:
    first = prepare(data, progress=False)
    assert prepare(data, progress=False) == first and len(entries(data)) == 1
    (tmp_path / "corpus" / "a.txt").write_text(TEXTS["a.txt"].replace("first", "third"), encoding="utf-8")
    changed = prepare(data, progress=False)
    assert changed.files != first.files and changed.fingerprint != first.fingerprint
    assert b"third" in tokens(changed).astype("u1").tobytes() and b"first" in tokens(first).astype("u1").tobytes()
    data.tokenizer = "bpe"
    assert prepare(data, progress=False).fingerprint != changed.fingerprint
    assert len(entries(data)) == 3


def test_large_files_are_cut_at_lines_into_the_same_tokens(
    data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(data, progress=False)
    monkeypatch.setattr(sources, "PIECE_BYTES", 100)
    pieces = list(sources.cut_file(str(tmp_path / "corpus" / "b.txt")))
    assert len(pieces) > 5 and [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    data.cache_dir = str(tmp_path / "pieces")
    np.testing.assert_array_equal(tokens(prepare(data, progress=False)), tokens(whole))


def test_truncated_tokens_are_prepared_anew(data: DataConfig) -> None:
    prepared = prepare(data, progress=False)
    before = tokens(prepared)
    with open(prepared.files[0].path, "r+b") as stream:
        stream.truncate(10)
    assert prepare(data, progress=False) == prepared
    np.testing.assert_array_equal(tokens(prepared), before)
    assert len(entries(data)) == 1


@pytest.mark.parametrize("manifest", ["", '{"source": "te'])
def test_a_damaged_manifest_is_no_entry(data: DataConfig, manifest: str) -> None:
    prepared = prepare(data, progress=False)
    path = Path(prepared.files[0].path).with_name("manifest.json")
    path.write_text(manifest)
    assert prepare(data, progress=False) == prepared
    assert json.loads(path.read_text())["total_tokens"] == prepared.total_tokens


@pytest.mark.processes
def test_a_killed_preparation_leaves_nothing_that_counts(data: DataConfig) -> None:
    kill = (
        "import os, signal\nfrom trainer.data import writer\n"
        "write = writer.TokenWriter.append\n"
        "def append(self, ids):\n"
        "    write(self, ids); self._stream.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "writer.TokenWriter.append = append"
    )
    killed = subprocess.run(command(data, before=kill), timeout=60, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [name.startswith(".building-") for name in entries(data)] == [True]
    prepared = prepare(data, progress=False)
    assert prepared.total_tokens == sum(len(text.encode()) for text in TEXTS.values()) + 2
    assert entries(data) == [Path(prepared.files[0].path).parent.name]


@pytest.mark.processes
def test_launchers_at_once_build_one_entry(data: DataConfig, tmp_path: Path) -> None:
    """Both processes are held at the lock, so both have seen that there is no entry."""
    assert data.cache_dir is not None
    expected = prepare(data, progress=False)
    folder = Path(expected.files[0].path).parent
    folder.rename(tmp_path / "aside")
    report = (
        "import fcntl, os, pathlib\nfrom trainer.data import cache\n"
        "publish = cache._publish\nflock = fcntl.flock\n"
        "cache._publish = lambda *args: (publish(*args), print('built', file=sys.stderr))\n"
        f"mark = pathlib.Path({str(tmp_path)!r}, f'at_lock_{{os.getpid()}}')\n"
        "fcntl.flock = lambda *args: (mark.touch(), flock(*args))"
    )
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [
            subprocess.Popen(command(data, before=report), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("at_lock_*"))) < 2:
            assert time.monotonic() < deadline and all(process.poll() is None for process in both)
            time.sleep(0.02)
    results = [process.communicate(timeout=60) for process in both]
    assert [PreparedData.from_json(out) for out, _ in results] == [expected, expected]
    assert sorted(error for _, error in results) == ["", "built\n"]
    assert entries(data) == [folder.name]


@pytest.mark.processes
def test_a_warm_cache_imports_nothing_heavy(data: DataConfig) -> None:
    data.tokenizer = "bpe"
    prepared = prepare(data, progress=True)
    heavy = "{'datasets', 'transformers', 'tokenizers', 'torch', 'numpy', 'rich'} & set(sys.modules)"
    check = subprocess.run(
        command(data, after=f"print(sorted({heavy}))"), timeout=60, capture_output=True, text=True, check=True
    )
    first, second = check.stdout.splitlines()
    assert PreparedData.from_json(first) == prepared and second == "[]"


def test_the_interpreters_own_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STDLIB_LIMIT_BYTES", 200_000)
    data = DataConfig(tokenizer="bytes", cache_dir=str(tmp_path))
    prepared = prepare(data, progress=False)
    text = bytes(np.where(tokens(prepared) == 256, 0, tokens(prepared)).astype("u1")).decode()
    assert "import " in text and 'The "assert" statement' in text
    assert 300_000 < prepared.total_tokens < 1_500_000
    assert prepare(data, progress=False) == prepared


def test_the_library_source_is_bounded_and_of_real_files() -> None:
    source = sources.StdlibSource()
    parts = source.parts(1 << 20)
    assert 4 << 20 < sum(part.weight for part in parts) < 10 << 20
    names = [piece.name for part in parts for piece in part.pieces]
    assert any(name.endswith("/argparse.py") for name in names)
    assert not any("/test/" in name or "site-packages" in name for name in names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "texts"}, r"data\.source=texts is unknown; one of python_stdlib, text, hf, tokens"),
        ({"paths": []}, r"data\.paths is empty"),
        ({"paths": ["/no/such/file.txt"]}, r"data\.paths: /no/such/file\.txt does not exist"),
        ({"paths": ["/no/such/*.txt"]}, r"data\.paths: no file matches the glob /no/such/\*\.txt"),
        ({"paths": ["/"]}, r"data\.paths: / is a folder; a glob as in /\*\.txt"),
        ({"tokenizer": "/no/such/tokenizer"}, r"data\.tokenizer=/no/such/tokenizer: no such folder"),
        ({"tokenizer": "sub/no/tokenizer.json"}, r"data\.tokenizer=.*: no such folder or file; bytes, bpe"),
        ({"tokenizer": "bpe", "bpe_vocab_size": 256}, r"data\.bpe_vocab_size=256 must be at least 257"),
        ({"cache_dir": "/proc/nowhere"}, r"data\.cache_dir=/proc/nowhere cannot be made"),
    ],
)
def test_what_is_not_there_names_its_option(data: DataConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        prepare(DataConfig(**{**vars(data), **changes}), progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"the corpus holds no text"),
        (b"fine\n\xff\xfe", r"data\.paths: .*x\.txt is not UTF-8 text \(byte 0xff at 5\)"),
    ],
)
def test_text_that_cannot_be_used(data: DataConfig, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    data.paths = [str(tmp_path / "x.txt")]
    with pytest.raises(ValueError, match=message):
        prepare(data, progress=False)
    assert entries(data) == []
