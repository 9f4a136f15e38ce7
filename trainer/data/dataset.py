"""Token blocks by index: which tokens unit (step, type, micro-batch) trains on.

A pure function of the prepared corpus, the seed and the index, independent of who asks and of how the batch is cut
(invariant I3): step s has the global sample rows [s x global_batch, (s + 1) x global_batch), and a unit is a run of
them. The same rows are seen with any number of types and micro-batches.

- Block k of a file holds tokens [k x T, k x T + T]: T + 1 tokens, stride T, so each token is a target exactly once.
- Every (1 / validation_fraction)-th block, evenly spread over the corpus, is held out: never a target of training.
- Row i trains on block i mod n of epoch i div n, in a new order each epoch (`permutation`), or in file order without
  data.shuffle. Rows run on over the end of an epoch.
"""

from __future__ import annotations

import bisect
import itertools
import os

import numpy as np

from trainer.data.permutation import permute
from trainer.data.prepared import PreparedData, TokenFile


class BlockDataset:
    """Units of a corpus as int64 arrays [B, T + 1], where B = global_batch / (types x micro_batches)."""

    def __init__(
        self,
        prepared: PreparedData,
        *,
        sequence_length: int,
        global_batch: int,
        types: int,
        micro_batches: int,
        seed: int,
        validation_fraction: float,
        shuffle: bool,
    ) -> None:
        """Open the token files.

        Args:
            prepared: the corpus.
            sequence_length: T, in tokens.
            global_batch: sequences per step.
            types: shard types (N).
            micro_batches: micro-batches per type (m).
            seed: names the order of the blocks.
            validation_fraction: share of the blocks that is held out; if not 0, at least one block.
            shuffle: random order; file order otherwise.

        Raises:
            ValueError: the batch does not divide, the corpus is too small, or a token file is not what was prepared.
        """
        if sequence_length < 1:
            raise ValueError(f"train.sequence_length={sequence_length} must be at least 1")
        if global_batch < 1 or global_batch % (types * micro_batches):
            raise ValueError(
                f"train.global_batch={global_batch} must be a multiple of parallel.groups x parallel.micro_batches "
                f"= {types} x {micro_batches}"
            )
        if not 0 <= validation_fraction < 1:
            raise ValueError(f"data.validation_fraction={validation_fraction} must be at least 0 and below 1")
        self.sequence_length = sequence_length
        self.global_batch = global_batch
        self.types = types
        self.micro_batches = micro_batches
        self.micro_batch_size = global_batch // (types * micro_batches)
        self._seed = seed
        self._shuffle = shuffle
        self._files = [_open(file) for file in prepared.files]
        blocks = [max(0, len(tokens) - 1) // sequence_length for tokens in self._files]
        self._file_ends = list(itertools.accumulate(blocks))
        self.blocks = sum(blocks)
        self.validation_blocks = max(1, round(validation_fraction * self.blocks)) if validation_fraction else 0
        self.train_blocks = self.blocks - self.validation_blocks
        if self.train_blocks < 1:
            raise ValueError(
                f"train.sequence_length={sequence_length}: the corpus of {prepared.total_tokens} tokens has "
                f"{self.blocks} blocks of that length, data.validation_fraction={validation_fraction} holds out "
                f"{self.validation_blocks}, and at least one must be left; shorten the sequence or add text to data"
            )

    def unit(self, step: int, type: int, micro_batch: int) -> np.ndarray:
        """Tokens of training unit (type, micro_batch) of `step`, int64 [B, T + 1]."""
        blocks = []
        for row in self._rows(step, type, micro_batch):
            epoch, index = divmod(row, self.train_blocks)
            if self._shuffle:
                index = permute(index, self.train_blocks, self._seed, epoch)
            blocks.append(self.train_block(index))
        return self._read(blocks)

    def validation_unit(self, batch: int, type: int, micro_batch: int) -> np.ndarray:
        """Tokens of unit (type, micro_batch) of validation batch `batch`, int64 [B, T + 1].

        The held-out blocks in file order, from the start again when they run out: every evaluation sees the same.

        Raises:
            ValueError: nothing is held out.
        """
        if not self.validation_blocks:
            raise ValueError("data.validation_fraction=0 holds nothing out for a validation loss; 0.01 would")
        rows = self._rows(batch, type, micro_batch)
        return self._read([self.validation_block(row % self.validation_blocks) for row in rows])

    def train_block(self, index: int) -> int:
        """Block number of training block `index`: the blocks in order, less the held-out ones.

        With n blocks, v held out and t = n - v, held-out block g is the last of [g x n div v, (g + 1) x n div v), so
        g x t div v training blocks come before that run. Index i lies in the greatest run g with g x t div v <= i,
        which is g = ((i + 1) x v - 1) div t.
        """
        return (
            index + ((index + 1) * self.validation_blocks - 1) // self.train_blocks if self.validation_blocks else index
        )

    def validation_block(self, index: int) -> int:
        """Block number of held-out block `index`; they are evenly spread over the corpus."""
        return (index + 1) * self.blocks // self.validation_blocks - 1

    def _rows(self, batch: int, type: int, micro_batch: int) -> range:
        """Global sample rows of a unit, B of them."""
        assert batch >= 0 and 0 <= type < self.types and 0 <= micro_batch < self.micro_batches
        unit = type * self.micro_batches + micro_batch
        first = batch * self.global_batch + unit * self.micro_batch_size
        return range(first, first + self.micro_batch_size)

    def _read(self, blocks: list[int]) -> np.ndarray:
        """Tokens of B blocks, int64 [B, T + 1]."""
        out = np.empty((len(blocks), self.sequence_length + 1), dtype=np.int64)
        for row, block in enumerate(blocks):
            file = bisect.bisect_right(self._file_ends, block)
            start = (block - (self._file_ends[file - 1] if file else 0)) * self.sequence_length
            out[row] = self._files[file][start : start + self.sequence_length + 1]
        return out


def _open(file: TokenFile) -> np.ndarray:
    """Map a token file read-only, [tokens]."""
    dtype = np.dtype(file.dtype).newbyteorder("<")
    if not os.path.exists(file.path):
        raise ValueError(f"data: the token file {file.path} is gone; start again to prepare it anew")
    size = os.path.getsize(file.path)
    if size != file.tokens * dtype.itemsize:
        raise ValueError(
            f"data: {file.path} has {size} bytes where {file.tokens} tokens of {file.dtype} were prepared; "
            "start again to prepare it anew"
        )
    if not file.tokens:
        return np.empty(0, dtype=dtype)
    return np.memmap(file.path, dtype=dtype, mode="r").view(np.ndarray)
