"""Large corpora to one token file, with many processes and through interruptions, for `scripts/prepare_data.py`.

The corpus is cut into parts. Worker processes write each to a file of its own in `X.parts/`, renamed when it
is whole, so that a second call goes on where the first was stopped. At the end the parts become X.bin (with X.idx for
Megatron), described by X.json; X.bin appears last, whole. For a while this takes twice the disk space of X.bin.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainer.data import cache, tokenizer
from trainer.data.encoders import Encoder, load
from trainer.data.megatron import index_dtype, write_index
from trainer.data.prepare import Advance, make_encoder, open_source, progress_bar
from trainer.data.sources import Part, Source
from trainer.data.token_files import Description
from trainer.data.writer import TokenWriter, dtype_of, encode_part

if TYPE_CHECKING:
    from trainer.config import DataConfig

PART_BYTES = 8 << 20
"""Text per part: what an interruption costs each worker at most."""
_COPY_BYTES = 1 << 24


def tokenize_corpus(
    data: DataConfig,
    output: Path,
    *,
    processes: int,
    megatron: bool,
    overwrite: bool,
    progress: bool,
    part_bytes: int = PART_BYTES,
) -> Description:
    """Write the corpus that `data` names to `output`.bin.

    Args:
        data: options of a corpus of text (python_stdlib, text or hf) and its tokenizer.
        output: path of the files without their endings.
        processes: worker processes.
        megatron: also write `output`.idx, and ids of more than 16 bits as int32, which is Megatron's type for them.
        overwrite: replace `output`.bin if there is one.
        progress: draw a progress bar on stderr.
        part_bytes: text per part.

    Returns:
        The description that was written to `output`.json.

    Raises:
        ValueError: an option does not fit, `output`.bin is there already, or another process is writing it.
    """
    if processes < 1:
        raise ValueError(f"--processes={processes} must be at least 1")
    if part_bytes < 1:
        raise ValueError("--part-mib must be above 0")
    _check_output(output, overwrite)
    source = open_source(data)
    identity = {**source.identity(), **tokenizer.resolve(data.tokenizer, data.bpe_vocab_size)}
    parts = source.parts(part_bytes)
    if not parts:
        raise ValueError(f"data.source={data.source}: the corpus holds no text")
    key = cache.digest({**identity, "parts": [asdict(part) for part in parts]})
    output.parent.mkdir(parents=True, exist_ok=True)
    with _work_folder(output.with_name(output.name + ".parts"), key) as folder:
        encoder = _encoder(data, source, parts, folder)
        trained = folder / "tokenizer.json"
        name = str(trained) if trained.is_file() else data.tokenizer
        with progress_bar(progress, "Tokenising") as advance:
            _encode_parts(_PartWriter(source, encoder, folder), name, parts, processes, advance)
        if {**identity, **source.identity()} != identity:
            raise ValueError("data: the corpus changed while it was read; run again when it is still")
        with progress_bar(progress, "Joining") as advance:
            return _join(data, encoder, len(parts), folder, output, megatron, advance)


def _outputs(output: Path) -> dict[str, Path]:
    """What may be written, by ending and in the order of writing."""
    endings = (".json", ".tokenizer.json", ".idx", ".bin")
    return {ending: output.with_name(output.name + ending) for ending in endings}


def _check_output(output: Path, overwrite: bool) -> None:
    """Nothing is replaced unasked, and no other's file even when asked."""
    there = [str(path) for path in _outputs(output).values() if path.exists()]
    if there and not overwrite:
        raise ValueError(f"--output: {', '.join(there)} is there already; --overwrite replaces it")
    try:
        own = not there or Description.read(str(_outputs(output)[".bin"])) is not None
    except ValueError:
        own = False
    if not own:
        raise ValueError(f"--output: {', '.join(there)} was not written by this tool, so --overwrite leaves it alone")


@contextlib.contextmanager
def _work_folder(folder: Path, key: str) -> Iterator[Path]:
    """The folder of parts, held alone, emptied if it is of another corpus, and removed after success."""
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--output: another process is writing to {folder}") from None
        mark = folder / "corpus"
        if not mark.is_file() or mark.read_text() != key:
            for file in folder.iterdir():
                if file.name != "lock":
                    file.unlink()
            cache.write_synced(mark, key)
        yield folder
        shutil.rmtree(folder)


def _encoder(data: DataConfig, source: Source, parts: list[Part], folder: Path) -> Encoder:
    """The encoder; a BPE is trained once, also over interruptions."""
    trained = folder / "tokenizer.json"
    if trained.is_file():
        return load(str(trained))
    unfinished = folder / "tokenizer.tmp"
    encoder = make_encoder(data, source, parts, unfinished)
    if unfinished.is_file():
        os.rename(unfinished, trained)
    return encoder


def _encode_parts(writer: _PartWriter, name: str, parts: list[Part], processes: int, advance: Advance) -> None:
    """Have every part that has no file yet written, by worker processes if more than one is asked for."""
    total = sum(part.weight for part in parts)
    missing = [number for number in range(len(parts)) if not _part_file(writer.folder, number).is_file()]
    done = total - sum(parts[number].weight for number in missing)
    advance(done, total)
    for number in _finished(writer, name, parts, missing, min(processes, len(missing))):
        done += parts[number].weight
        advance(done, total)


def _finished(writer: _PartWriter, name: str, parts: list[Part], missing: list[int], processes: int) -> Iterator[int]:
    """Numbers of the missing parts as they are written."""
    if processes <= 1:
        for number in missing:
            writer.write(number, parts[number])
            yield number
        return
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(writer.source, name, writer.folder),
    )
    try:
        pending = {pool.submit(_write_part, number, parts[number]): number for number in missing}
        for future in as_completed(pending):
            future.result()
            yield pending[future]
    finally:
        pool.shutdown(cancel_futures=True)


class _PartWriter:
    """Writes parts to files."""

    def __init__(self, source: Source, encoder: Encoder, folder: Path) -> None:
        self.source = source
        self.encoder = encoder
        self.folder = folder

    def write(self, number: int, part: Part) -> None:
        """Write one part's ids, and the offsets of its documents' ends."""
        path = _part_file(self.folder, number)
        ends: list[np.ndarray] = []
        with TokenWriter(path.with_suffix(".tmp")) as file:
            for ids, document_ends in encode_part(self.source, part, self.encoder):
                ends.append(np.array(document_ends, dtype=np.int64) + file.tokens)
                file.append(ids)
        np.save(_ends_file(self.folder, number), np.concatenate(ends) if ends else np.empty(0, dtype=np.int64))
        os.rename(path.with_suffix(".tmp"), path)


_worker: _PartWriter | None = None
"""What a worker process was started with."""


def _start_worker(source: Source, name: str, folder: Path) -> None:
    """Set a worker process up; it ends with its parent, and an interrupt lets it finish its part."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = _PartWriter(source, load(name), folder)


def _exit_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _write_part(number: int, part: Part) -> None:
    assert _worker is not None
    _worker.write(number, part)


def _join(
    data: DataConfig, encoder: Encoder, parts: int, folder: Path, output: Path, megatron: bool, advance: Advance
) -> Description:
    """Make the parts one file and put it and what goes with it into place, the file itself last."""
    final = _outputs(output)
    dtype = dtype_of(encoder.vocab_size)
    ends: list[np.ndarray] = []
    with TokenWriter(folder / "joined.bin") as writer:
        for number in range(parts):
            ends.append(np.load(_ends_file(folder, number)) + writer.tokens)
            with open(_part_file(folder, number), "rb") as stream:
                while chunk := stream.read(_COPY_BYTES):
                    writer.append(np.frombuffer(chunk, dtype=dtype))
            advance(number + 1, parts)
    trained = folder / "tokenizer.json"
    description = Description(
        tokens=writer.tokens,
        dtype=index_dtype(encoder.vocab_size) if megatron else dtype,
        vocab_size=encoder.vocab_size,
        end_of_text=encoder.end_of_text,
        sha256=writer.sha256(),
        tokenizer=final[".tokenizer.json"].name if trained.is_file() else tokenizer.location(data.tokenizer),
    )
    if megatron:
        lengths = np.diff(np.concatenate(ends), prepend=0)
        write_index(folder / "joined.idx", description.dtype, lengths)
    cache.write_synced(folder / "joined.json", description.to_json())
    for path in reversed(final.values()):
        path.unlink(missing_ok=True)
    for name, ending in (("joined.json", ".json"), ("tokenizer.json", ".tokenizer.json"), ("joined.idx", ".idx")):
        if (folder / name).is_file():
            os.rename(folder / name, final[ending])
    os.rename(folder / "joined.bin", final[".bin"])
    cache.sync_folder(output.parent)
    return description


def _part_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.bin"


def _ends_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npy"
