"""Data sets of the `datasets` library from local folders and files, and tokenizers of transformers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.config import DataConfig
from trainer.data.prepare import prepare
from trainer.data.prepared import PreparedData

ROWS = [f"row {number}: " + "some text " * number for number in range(30)]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """JSON lines with a text, an empty row, and other columns."""
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    (tmp_path / "set").mkdir()
    with open(tmp_path / "set" / "rows.jsonl", "w", encoding="utf-8") as stream:
        for number, text in enumerate([*ROWS, ""]):
            stream.write(json.dumps({"text": text, "title": text.upper(), "number": number}) + "\n")
    return DataConfig(
        source="hf",
        name=str(tmp_path / "set"),
        tokenizer="bytes",
        bpe_vocab_size=300,
        cache_dir=str(tmp_path / "cache"),
    )


def documents(prepared: PreparedData) -> list[str]:
    """Documents of a corpus of bytes."""
    ids = np.fromfile(prepared.files[0].path, dtype=prepared.files[0].dtype)
    ends = np.flatnonzero(ids == prepared.end_of_text)
    assert len(ends) and ends[-1] == len(ids) - 1
    return [part[part != 256].astype("u1").tobytes().decode() for part in np.split(ids, ends + 1)[:-1]]


@pytest.mark.parametrize("kind", ["folder", "file", "parquet", "saved", "saved_splits"])
def test_each_row_is_a_document(data: DataConfig, tmp_path: Path, kind: str) -> None:
    import datasets

    source = str(tmp_path / "set" / "rows.jsonl")
    if kind == "file":
        data.name = source
    elif kind != "folder":
        rows = datasets.load_dataset("json", data_files=source, split="train")
        data.name = str(tmp_path / kind) + (".parquet" if kind == "parquet" else "")
        if kind == "parquet":
            rows.to_parquet(data.name)
        elif kind == "saved":
            rows.save_to_disk(data.name)
        else:
            datasets.DatasetDict({"train": rows, "test": rows.select([3])}).save_to_disk(data.name)
    assert documents(prepare(data, progress=False)) == ROWS
    if kind == "saved_splits":
        data.split = "test"
        assert documents(prepare(data, progress=False)) == [ROWS[3]]


def test_split_and_column_select(data: DataConfig) -> None:
    data.column = "title"
    data.split = "train[:10]"
    assert documents(prepare(data, progress=False)) == [row.upper() for row in ROWS[:10]]


def test_a_changed_folder_is_another_entry(data: DataConfig, tmp_path: Path) -> None:
    first = prepare(data, progress=False)
    (tmp_path / "set" / "rows.jsonl").write_text(json.dumps({"text": "other"}) + "\n")
    second = prepare(data, progress=False)
    assert documents(second) == ["other"] and first.fingerprint != second.fingerprint


@pytest.mark.processes
def test_a_warm_cache_does_not_import_datasets(data: DataConfig) -> None:
    prepared = prepare(data, progress=False)
    code = (
        "import sys\nfrom trainer.config import DataConfig\nfrom trainer.data.prepare import prepare\n"
        f"print(prepare(DataConfig(**{vars(data)!r}), progress=False).fingerprint)\n"
        "print(sorted({'datasets', 'transformers', 'numpy', 'torch'} & set(sys.modules)))"
    )
    warm = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=True)
    assert warm.stdout.split("\n")[:2] == [prepared.fingerprint, "[]"]


def no_network(*args: Any, **kwargs: Any) -> None:
    raise OSError("no network in this test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, r"data\.name is empty"),
        ({"name": "/no/such/folder"}, r"data\.name=/no/such/folder does not exist"),
        ({"name": "no/such.jsonl"}, r"data\.name=no/such\.jsonl does not exist"),
        ({"column": "txet"}, r"data\.column=txet is not in .*; it has text, title, number"),
        ({"column": "number"}, r"data\.column=number of .* holds int64, not text"),
        ({"split": "trian"}, r"data\.split=trian: Unknown split .*train"),
        ({"subset": "en"}, r"data\.name=.* 'en' not found"),
        ({"name": "nobody/no-such-set"}, r"data\.name=nobody/no-such-set data\.split=train: .*nobody/no-such-set"),
    ],
)
def test_what_is_not_there_names_its_option(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(ValueError, match=message) as caught:
        prepare(DataConfig(**{**vars(data), **changes}), progress=False)
    assert "\n" not in str(caught.value)


def save_transformers(folder: Path, trained: str, end_of_text: str | None) -> None:
    """A BPE as the folder of a transformers tokenizer."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_file=trained, eos_token=end_of_text).save_pretrained(folder)


def test_tokenizer_files_and_transformers_folders_encode_alike(data: DataConfig, tmp_path: Path) -> None:
    data.tokenizer = "bpe"
    trained = prepare(data, progress=False)
    assert trained.tokenizer is not None
    save_transformers(tmp_path / "tokenizer", trained.tokenizer, "<|endoftext|>")
    for name in (trained.tokenizer, str(tmp_path / "tokenizer")):
        data.tokenizer = name
        prepared = prepare(data, progress=False)
        assert (prepared.tokenizer, prepared.vocab_size, prepared.end_of_text) == (name, trained.vocab_size, 0)
        ids, expected = (np.fromfile(item.files[0].path, dtype="u2") for item in (prepared, trained))
        np.testing.assert_array_equal(ids, expected)


def test_a_tokenizer_must_end_documents(data: DataConfig, tmp_path: Path) -> None:
    trained = prepare(DataConfig(**{**vars(data), "tokenizer": "bpe"}), progress=False)
    assert trained.tokenizer is not None
    save_transformers(tmp_path / "endless", trained.tokenizer, None)
    data.tokenizer = str(tmp_path / "endless")
    with pytest.raises(ValueError, match=r"data\.tokenizer=.*endless has no end-of-text token"):
        prepare(data, progress=False)
    data.tokenizer = str(tmp_path / "nameless.json")
    Path(data.tokenizer).write_text(Path(trained.tokenizer).read_text().replace("<|endoftext|>", "<|end|>"))
    with pytest.raises(ValueError, match=r"nameless\.json has no token <\|endoftext\|>"):
        prepare(data, progress=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken/tokenizer.json", "{", r"data\.tokenizer=.*broken: .*; bytes, bpe, or a folder"),
        ("empty/readme", "", r"data\.tokenizer=.*empty: the folder holds no tokenizer files"),
        ("broken.json", "{", r"data\.tokenizer=.*broken\.json: not a tokenizer\.json"),
        (None, "", r"data\.tokenizer=nobody/nothing: not a folder, not in the local hub cache"),
    ],
)
def test_unknown_tokenizers(
    data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, content: str, message: str
) -> None:
    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    data.tokenizer = "nobody/nothing"
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        data.tokenizer = str(tmp_path / name.split("/")[0])
    with pytest.raises(ValueError, match=message) as caught:
        prepare(data, progress=False)
    assert "\n" not in str(caught.value)
