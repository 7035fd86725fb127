"""Noise without state: a uniform draw is a function of algorithm, seed, choice, branch, step and domain, and of nothing
else.

philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the key is the
seed, the counter is where in the run the draw is made, so any draw can be made alone, in any order, on any worker.
splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): one 64-bit state that
grows by a constant a step; the state of a step is reached by one multiplication.

The rule is named `counter_v1` in the envelope:

    philox4x32-10   key = (seed mod 2^32, seed div 2^32), counter = (step, branch, choice, domain);
                    bits = first output word, then the second one
    splitmix64      origin = seed + mix(choice * 2^32 + branch), state = origin + (step + 1) * GAMMA, all mod 2^64;
                    bits = mix(state); choice 0 of branch 0 is plain splitmix64 seeded with the seed; in a domain
                    above 0 the origin is mix(origin + mix(domain))
    both            draw = the 53 high bits of the 64, times 2^-53; domain 0 is the choice of the token, and a
                    transform that draws has one of its own
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BrokenInvariant, LimitExceeded
from ..limits import COUNTER_WORD_MAX, SEED_MAX

PHILOX: Final = "philox4x32-10"
SPLITMIX: Final = "splitmix64"

_ROUNDS: Final = 10
_UNIT: Final = 2.0**-53
_MASK32: Final = 2**32 - 1
_MASK64: Final = 2**64 - 1
# Multipliers of counter words 0 and 2, and what the two key words grow by a round, for each word width in bits.
_PHILOX_CONSTANTS: Final = {
    32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
    64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
}
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB

_SEED_BITS: Final = SEED_MAX.bit_length()
_MAXIMA: Final = {
    "seed": SEED_MAX,
    "choice": COUNTER_WORD_MAX,
    "branch": COUNTER_WORD_MAX,
    "step": COUNTER_WORD_MAX,
    "domain": COUNTER_WORD_MAX,
}

Words4 = tuple[int, int, int, int]
Words = NDArray[np.uint64]


class Address(NamedTuple):
    """Where a draw comes from, as its receipt records it: the generator's key and counter (or origin and state)."""

    key: tuple[int, ...]
    counter: tuple[int, ...]


def philox4(counter: Words4, key: tuple[int, int], width_bits: int = 32) -> Words4:
    """One block of philox 4 x width with 10 rounds: four words in, four words out, each of `width_bits` (32 or 64)."""
    multiplier_0, multiplier_2, weyl_0, weyl_1 = _PHILOX_CONSTANTS[width_bits]
    mask = (1 << width_bits) - 1
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(_ROUNDS):
        product_0 = multiplier_0 * word_0
        product_2 = multiplier_2 * word_2
        word_0 = (product_2 >> width_bits) ^ word_1 ^ key_0
        word_2 = (product_0 >> width_bits) ^ word_3 ^ key_1
        word_1 = product_2 & mask
        word_3 = product_0 & mask
        key_0 = (key_0 + weyl_0) & mask
        key_1 = (key_1 + weyl_1) & mask
    return word_0, word_1, word_2, word_3


def splitmix64_mix(state: int) -> int:
    """The output of splitmix64 in `state` (a 64-bit word); a bijection that takes 0 to 0."""
    mixed = ((state ^ (state >> 30)) * _MIX_1) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * _MIX_2) & _MASK64
    return mixed ^ (mixed >> 31)


def splitmix64(state: int) -> tuple[int, int]:
    """(the next state, its output): one step of the generator as published."""
    state = (state + _GAMMA) & _MASK64
    return state, splitmix64_mix(state)


def draw_address(algorithm: str, seed: int, choice: int, branch: int, step: int, domain: int = 0) -> Address:
    """Key and counter of one draw under `counter_v1`.

    seed in [0, SEED_MAX]; choice, branch, step and domain in [0, 2^32), else LimitExceeded.
    """
    _check_words(seed, choice, branch, step, domain)
    if algorithm == PHILOX:
        return Address((seed & _MASK32, seed >> 32), (step, branch, choice, domain))
    if algorithm == SPLITMIX:
        origin = (seed + splitmix64_mix((choice << 32) | branch)) & _MASK64
        if domain:
            origin = splitmix64_mix((origin + splitmix64_mix(domain)) & _MASK64)
        return Address((origin,), ((origin + (step + 1) * _GAMMA) & _MASK64,))
    raise _unknown(algorithm)


def unit_draw(algorithm: str, seed: int, choice: int, branch: int, step: int, domain: int = 0) -> float:
    """One uniform draw in [0, 1), a multiple of 2^-53. Ranges and errors as in `draw_address`."""
    key, counter = draw_address(algorithm, seed, choice, branch, step, domain)
    if algorithm == SPLITMIX:
        return (splitmix64_mix(counter[0]) >> 11) * _UNIT
    word_0, word_1, _, _ = philox4(counter, key)  # type: ignore[arg-type]
    return ((word_0 << 21) | (word_1 >> 11)) * _UNIT


def unit_draws(
    algorithm: str, seeds: ArrayLike, choices: ArrayLike, branches: ArrayLike, steps: ArrayLike, domain: ArrayLike = 0
) -> NDArray[np.float64]:
    """`unit_draw` of many rows at once, bit for bit.

    Arguments: integers that broadcast to one shape [B]. Returns a fresh float64 array [B].
    """
    words = []
    for (name, maximum), values in zip(_MAXIMA.items(), (seeds, choices, branches, steps, domain), strict=True):
        array = np.asarray(values)
        if array.dtype.kind not in "iu":
            raise BrokenInvariant(clause="POL-5", reason=f"rng.{name} holds {array.dtype}, not integers")
        if array.size and (array.min() < 0 or array.max() > maximum):
            raise LimitExceeded(limit=f"rng.{name}", value=int(array.max()), maximum=maximum)
        words.append(array.astype(np.uint64))
    seed, choice, branch, step, apart = np.broadcast_arrays(*words)
    with np.errstate(over="ignore"):  # all arithmetic is meant mod 2^64
        if algorithm == PHILOX:
            bits = _philox_bits(seed, choice, branch, step, apart)
        elif algorithm == SPLITMIX:
            origin = seed + _mix_words((choice << np.uint64(32)) | branch)
            if np.any(domain):
                origin = np.where(apart == 0, origin, _mix_words(origin + _mix_words(apart)))
            bits = _mix_words(origin + (step + np.uint64(1)) * np.uint64(_GAMMA))
        else:
            raise _unknown(algorithm)
    return (bits >> np.uint64(11)).astype(np.float64) * _UNIT


def _philox_bits(seed: Words, choice: Words, branch: Words, step: Words, domain: Words) -> Words:
    """The first two output words of each row's block, as one 64-bit word. Fresh arrays of uint64."""
    low, half = np.uint64(_MASK32), np.uint64(32)
    multiplier_0, multiplier_2, weyl_0, weyl_1 = (np.uint64(constant) for constant in _PHILOX_CONSTANTS[32])
    word_0, word_1, word_2, word_3 = step, branch, choice, domain
    key_0, key_1 = seed & low, seed >> half
    for _ in range(_ROUNDS):
        product_0, product_2 = multiplier_0 * word_0, multiplier_2 * word_2
        word_0 = (product_2 >> half) ^ word_1 ^ key_0
        word_2 = (product_0 >> half) ^ word_3 ^ key_1
        word_1, word_3 = product_2 & low, product_0 & low
        key_0, key_1 = (key_0 + weyl_0) & low, (key_1 + weyl_1) & low
    return (word_0 << half) | word_1


def _mix_words(state: Words) -> Words:
    """`splitmix64_mix` of every word. Fresh array."""
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed ^ (mixed >> np.uint64(31))


def _check_words(seed: int, choice: int, branch: int, step: int, domain: int) -> None:
    if (seed >> _SEED_BITS) | ((choice | branch | step | domain) >> 32):  # a negative word leaves its sign
        for (name, maximum), value in zip(_MAXIMA.items(), (seed, choice, branch, step, domain), strict=True):
            if not 0 <= value <= maximum:
                raise LimitExceeded(limit=f"rng.{name}", value=value, maximum=maximum)


def _unknown(algorithm: str) -> BrokenInvariant:
    return BrokenInvariant(clause="POL-5", reason=f"{algorithm!r} is no generator of this program")
