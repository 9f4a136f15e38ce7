"""A seeded random order of n items that is computed item by item.

A shuffled list of a trillion-token corpus' blocks would not fit beside the model in each worker. A Feistel network is a
bijection on [0, 2^2k) whatever its round function is; walking along its cycle until the value is below n ("cycle
walking", Black and Rogaway 2002) makes it a bijection on [0, n). With 2^2k < 4n (n > 1) that takes under four
round trips on average. No state, no memory: any worker can ask for any position of any epoch.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 6


def mix64(values: np.ndarray) -> np.ndarray:
    """Hash uint64 values to uint64 values (the finaliser of SplitMix64, Steele et al. 2014); sums wrap."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(positions: np.ndarray, size: int, seed: int, epoch: np.ndarray) -> np.ndarray:
    """Item at each position of the order that (seed, epoch) names.

    Args:
        positions: int64 [B], each in [0, size).
        size: number of items, at least 1 and below 2^62.
        seed: any integer.
        epoch: int64 [B], the epoch that each position belongs to; each has its own order.

    Returns:
        int64 [B]; for one seed and epoch the map from position to item is a bijection on [0, size).
    """
    assert 1 <= size < 2**62
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    start = mix64(np.array([seed % 2**64], dtype=np.uint64))
    keys = [mix64(mix64(start ^ epoch.astype(np.uint64)) + np.uint64(number)) for number in range(_ROUNDS)]
    values = positions.astype(np.uint64)
    walking = np.ones(len(values), dtype=bool)
    while walking.any():
        left, right = values >> shift, values & mask
        for key in keys:
            left, right = right, left ^ (mix64(right ^ key) & mask)
        values = np.where(walking, (left << shift) | right, values)
        walking = values >= np.uint64(size)
    return values.astype(np.int64)
