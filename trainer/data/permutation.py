"""A seeded random order of n items that is computed item by item.

A shuffled list of a trillion-token corpus' blocks would not fit beside the model in each worker. A Feistel network is a
bijection on [0, 2^2k) whatever its round function is; walking along its cycle until the value is below n ("cycle
walking", Black and Rogaway 2002) makes it a bijection on [0, n). With 2^2k < 4n (n > 1) that takes under four trips on
average. No state, no memory: any worker can ask for any position of any epoch. Plain integers: for the few rows of a
micro-batch they are many times quicker than arrays.
"""

from __future__ import annotations

import functools

_ROUNDS = 6
_MASK_64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """Hash an integer to 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    start = mix64(mix64(seed) ^ epoch)
    return tuple(mix64(start + number) for number in range(_ROUNDS))


def permute(position: int, size: int, seed: int, epoch: int) -> int:
    """Item at `position` of the order that (seed, epoch) names.

    Args:
        position: in [0, size).
        size: number of items.
        seed: any integer.
        epoch: any integer; each has its own order.

    Returns:
        Item in [0, size); for one seed and epoch the map from position to item is a bijection.
    """
    assert 0 <= position < size
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    keys = _round_keys(seed, epoch)
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for key in keys:
            left, right = right, left ^ (mix64(right ^ key) & mask)
        value = (left << half_bits) | right
        if value < size:
            return value
