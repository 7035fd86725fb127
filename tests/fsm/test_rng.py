"""Noise is a function of its address: published vectors, independence of order and batch, and no collisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import BrokenInvariant, LimitExceeded
from decodelog.fsm.evidence.rng import draw_address, philox4, splitmix64, splitmix64_mix, unit_draw, unit_draws

ALGORITHMS = ["philox4x32-10", "splitmix64"]
WORD32 = st.integers(0, 2**32 - 1)
WORD64 = st.integers(0, 2**64 - 1)
SEED = st.integers(0, 2**53 - 1)

# Counter, key and output of philox4x32-10, as published with Random123.
PHILOX_VECTORS = """
00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""

# The first outputs of splitmix64 from state 1234567, as published with its reference implementation.
SPLITMIX_VECTOR = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("row", PHILOX_VECTORS.strip().splitlines())
def test_philox_gives_the_published_words(row: str) -> None:
    words = [int(word, 16) for word in row.split()]
    assert philox4((words[0], words[1], words[2], words[3]), (words[4], words[5])) == tuple(words[6:])


@pytest.mark.contract("POL-5")
@given(counter=st.tuples(WORD64, WORD64, WORD64, WORD64), key=st.tuples(WORD64, WORD64))
def test_philox_at_64_bits_equals_numpys_generator(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    # numpy adds one to its 256-bit counter before the first block, so it starts one below ours.
    whole = (sum(word << (64 * index) for index, word in enumerate(counter)) - 1) % 2**256
    start = [(whole >> (64 * index)) % 2**64 for index in range(4)]
    generator = np.random.Philox(counter=np.array(start, np.uint64), key=np.array(key, np.uint64))
    assert philox4(counter, key, width_bits=64) == tuple(int(word) for word in generator.random_raw(4))


@pytest.mark.contract("POL-5")
def test_splitmix_gives_the_published_words() -> None:
    state, words = 1234567, []
    for _ in SPLITMIX_VECTOR:
        state, word = splitmix64(state)
        words.append(word)
    assert words == SPLITMIX_VECTOR


@pytest.mark.contract("POL-5")
def test_the_first_choices_first_branch_is_plain_splitmix() -> None:
    draws = [unit_draw("splitmix64", 1234567, 0, 0, step) for step in range(5)]
    assert draws == [(word >> 11) * 2.0**-53 for word in SPLITMIX_VECTOR]


@pytest.mark.contract("POL-5")
@given(seed=SEED, choice=WORD32, branch=WORD32, step=st.integers(0, 40))
def test_a_splitmix_draw_is_where_a_walk_of_explicit_states_arrives(
    seed: int, choice: int, branch: int, step: int
) -> None:
    state = (seed + splitmix64_mix(choice * 2**32 + branch)) % 2**64
    for _ in range(step + 1):
        state, word = splitmix64(state)
    assert draw_address("splitmix64", seed, choice, branch, step).counter == (state,)
    assert unit_draw("splitmix64", seed, choice, branch, step) == (word >> 11) / 2**53


@pytest.mark.contract("POL-5")
@given(seed=SEED, choice=WORD32, branch=WORD32, step=WORD32)
def test_a_philox_draw_is_the_first_two_words_at_its_address(seed: int, choice: int, branch: int, step: int) -> None:
    high, low, _, _ = philox4((step, branch, choice, 0), (seed % 2**32, seed // 2**32))
    assert draw_address("philox4x32-10", seed, choice, branch, step).counter == (step, branch, choice, 0)
    assert unit_draw("philox4x32-10", seed, choice, branch, step) == ((high * 2**32 + low) >> 11) / 2**53


# algorithm, seed, choice, branch, step -> the draw, exactly; rows are added, never edited.
GOLDEN = """
philox4x32-10  0                 0  0  0           0x1.989fa35785a70p-2
philox4x32-10  42                0  0  0           0x1.39d5e0a6efea9p-1
philox4x32-10  42                0  0  1           0x1.f9b6424ea774dp-1
philox4x32-10  42                1  0  0           0x1.499bb49028f40p-7
philox4x32-10  42                0  1  0           0x1.0b82e2cdf6fd6p-2
philox4x32-10  9007199254740991  7  3  4294967295  0x1.ab0ec5b95593dp-1
splitmix64     0                 0  0  0           0x1.c4415072f63b9p-1
splitmix64     42                0  0  0           0x1.7bae644c5fd6dp-1
splitmix64     42                0  0  1           0x1.477f199d93378p-3
splitmix64     42                1  0  0           0x1.b763578541f48p-2
splitmix64     42                0  1  0           0x1.48ce43f9450f6p-1
splitmix64     9007199254740991  7  3  4294967295  0x1.42ad5dc157a41p-1
"""


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("row", GOLDEN.strip().splitlines())
def test_the_rule_counter_v1_never_changes(row: str) -> None:
    algorithm, *address, draw = row.split()
    seed, choice, branch, step = map(int, address)
    assert unit_draw(algorithm, seed, choice, branch, step).hex() == draw


# The same of domain 1.
GOLDEN_APART = """
philox4x32-10  42                0  0  0  0x1.021cd824c03f0p-3
splitmix64     42                0  0  0  0x1.de8ae0de94d65p-1
"""


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("row", GOLDEN_APART.strip().splitlines())
def test_the_rule_of_another_domain_never_changes_either(row: str) -> None:
    algorithm, *address, draw = row.split()
    seed, choice, branch, step = map(int, address)
    assert unit_draw(algorithm, seed, choice, branch, step, 1).hex() == draw


@pytest.mark.contract("POL-5", "POL-7")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_draw_of_one_domain_is_one_of_another(algorithm: str) -> None:
    seeds, choices, branches, steps = np.meshgrid([0, 1, 2**53 - 1], range(4), [0], range(64), indexing="ij")
    each = [unit_draws(algorithm, seeds, choices, branches, steps, domain) for domain in range(4)]
    draws = np.concatenate(each)
    assert len(np.unique(draws)) == draws.size
    assert unit_draw(algorithm, 1, 3, 0, 9, 2) == each[2][1, 3, 0, 9]


@pytest.mark.contract("POL-5", "POL-7")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(rows=st.lists(st.tuples(SEED, WORD32, WORD32, WORD32), min_size=1, max_size=8))
def test_a_batch_of_draws_equals_each_drawn_alone(algorithm: str, rows: list[tuple[int, int, int, int]]) -> None:
    alone = [unit_draw(algorithm, *row) for row in rows]
    together = unit_draws(algorithm, *zip(*rows, strict=True))
    assert together.dtype == np.float64
    assert together.tolist() == alone
    assert [unit_draw(algorithm, *row) for row in reversed(rows)] == alone[::-1]


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scalars_and_shapes_broadcast(algorithm: str) -> None:
    draws = unit_draws(algorithm, 42, 0, np.zeros((2, 1), np.int32), np.arange(3))
    assert draws.shape == (2, 3)
    assert draws[1, 2] == unit_draw(algorithm, 42, 0, 0, 2)
    assert unit_draws(algorithm, 42, 0, 0, 2).item() == draws[1, 2]
    assert unit_draws(algorithm, 42, 0, 0, np.array([], np.int64)).shape == (0,)


@pytest.mark.contract("POL-5", "POL-7")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seeds_choices_branches_and_steps_have_draws_of_their_own(algorithm: str) -> None:
    grid = np.meshgrid([0, 1, 2**32, 2**53 - 1], range(8), range(8), range(64), indexing="ij")
    draws = unit_draws(algorithm, *grid)
    assert len(np.unique(draws)) == draws.size


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_draws_are_spread_evenly_over_the_unit_interval(algorithm: str) -> None:
    draws = unit_draws(algorithm, 7, 0, 0, np.arange(100_000))
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=50, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < 100  # chi-square with 49 degrees of freedom; p is about 2e-5
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02
    assert (draws * 2.0**53 == np.floor(draws * 2.0**53)).all()


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("address", "limit"),
    [
        ((-1, 0, 0, 0), "rng.seed"),
        ((2**53, 0, 0, 0), "rng.seed"),
        ((0, -1, 0, 0), "rng.choice"),
        ((0, 2**32, 0, 0), "rng.choice"),
        ((0, 0, -1, 0), "rng.branch"),
        ((0, 0, 2**32, 0), "rng.branch"),
        ((0, 0, 0, -1), "rng.step"),
        ((0, 0, 0, 2**32), "rng.step"),
    ],
)
def test_an_address_outside_its_words_is_refused_and_never_wraps(
    algorithm: str, address: tuple[int, int, int, int], limit: str
) -> None:
    with pytest.raises(LimitExceeded) as caught:
        unit_draw(algorithm, *address)
    assert caught.value.limit == limit
    with pytest.raises(LimitExceeded) as caught:
        unit_draws(algorithm, *address)
    assert caught.value.limit == limit


@pytest.mark.contract("POL-5")
def test_an_unknown_generator_or_a_number_that_is_no_integer_is_a_defect() -> None:
    with pytest.raises(BrokenInvariant, match="mt19937"):
        unit_draw("mt19937", 0, 0, 0, 0)
    with pytest.raises(BrokenInvariant, match="mt19937"):
        unit_draws("mt19937", 0, 0, 0, 0)
    with pytest.raises(BrokenInvariant, match="float64"):
        unit_draws("splitmix64", 0.5, 0, 0, 0)
