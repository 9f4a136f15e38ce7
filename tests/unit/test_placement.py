"""Placements: every ruler is checked, every type has r hosts, errors say what would fit."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fault_tolerance.difference_sets import bose, prime_power, ruzsa, singer
from fault_tolerance.placement import cyclic, make_placement, partition
from fault_tolerance.rulers import OPTIMAL_RULERS, find_ruler, repeated_differences

# The lengths of the optimal Golomb rulers with 1 to 20 marks (OEIS A003022).
LENGTHS = [0, 1, 3, 6, 11, 17, 25, 34, 44, 55, 72, 85, 106, 127, 151, 177, 199, 216, 246, 283]


def distinct(marks: tuple[int, ...], modulus: int) -> bool:
    differences = [(a - b) % modulus for a in marks for b in marks if a != b]
    return len(differences) == len(set(differences))


def test_table_holds_optimal_rulers() -> None:
    assert [ruler[-1] for ruler in OPTIMAL_RULERS] == LENGTHS
    for count, ruler in enumerate(OPTIMAL_RULERS, start=1):
        assert len(ruler) == count and distinct(ruler, 2 * ruler[-1] + 1)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 25, 27, 31])
def test_difference_sets(order: int) -> None:
    assert len(singer(order)) == order + 1 and distinct(singer(order), order**2 + order + 1)
    assert len(bose(order)) == order and distinct(bose(order), order**2 - 1)
    if prime_power(order) == order and order > 2:
        assert len(ruzsa(order)) == order - 1 and distinct(ruzsa(order), order * (order - 1))


@pytest.mark.parametrize("groups", [*range(1, 40), 57, 91, 200, 600, 1000])
def test_rulers_for_many_sizes(groups: int) -> None:
    for redundancy in range(1, min(groups, 20) + 1):
        marks = find_ruler(groups, redundancy)
        assert len(set(marks)) == redundancy and marks[0] == 0 and list(marks) == sorted(marks)
        assert all(0 <= mark < groups for mark in marks)
        assert (repeated_differences(marks, groups) == 0) == distinct(marks, groups)
        if redundancy < 21 and 2 * LENGTHS[redundancy - 1] < groups:
            assert distinct(marks, groups)


@pytest.mark.parametrize(("groups", "redundancy"), [(183, 14), (4161, 65), (4095, 64), (4422, 66), (21, 5), (8, 3)])
def test_dense_rulers_from_algebra(groups: int, redundancy: int) -> None:
    assert distinct(find_ruler(groups, redundancy), groups)


def test_repeats_are_flagged_and_few() -> None:
    assert cyclic(600, 20).repeats == 0
    # 6 ordered differences, 5 residues: at least one repeat; and 12 of 7.
    assert cyclic(6, 3).repeats == 1
    assert cyclic(8, 4).repeats == 5
    assert cyclic(200, 13).repeats <= 4
    assert cyclic(200, 15).repeats <= 40


def test_large_placement_is_fast() -> None:
    find_ruler.cache_clear()
    start = time.thread_time()
    placement = cyclic(10_000, 64)
    assert time.thread_time() - start < 1.0
    assert placement.repeats == 0


@pytest.mark.parametrize(("name", "groups", "redundancy"), [("cyclic", 13, 4), ("cyclic", 6, 5), ("partition", 12, 4)])
def test_hosts_and_stacks_agree(name: str, groups: int, redundancy: int) -> None:
    placement = make_placement(name, groups, redundancy)
    for group, stack in enumerate(placement.stacks):
        assert stack[0] == group and len(set(stack)) == redundancy
    for kind, hosts in enumerate(placement.hosts):
        assert len(set(hosts)) == redundancy
        assert [placement.stacks[host][position] for position, host in enumerate(hosts)] == [kind] * redundancy


def test_any_two_types_share_at_most_one_host() -> None:
    placement = cyclic(31, 6)
    for kind in range(31):
        for other in range(kind):
            assert len(set(placement.hosts[kind]) & set(placement.hosts[other])) <= 1


def test_partition_is_made_of_closed_teams() -> None:
    placement = partition(12, 3)
    for group, stack in enumerate(placement.stacks):
        assert {kind // 3 for kind in stack} == {group // 3}


@pytest.mark.parametrize(
    ("name", "groups", "redundancy", "words"),
    [
        ("cyclic", 8, 12, ["fault_tolerance.redundancy=12", "parallel.groups=8", "1 to 8"]),
        ("cyclic", 8, 0, ["fault_tolerance.redundancy=0", "1 to 8"]),
        ("partition", 8, 3, ["fault_tolerance.redundancy=3", "parallel.groups=8", "[1, 2, 4, 8]"]),
        ("cyclic", 0, 1, ["parallel.groups=0"]),
        ("golomb", 8, 2, ["fault_tolerance.placement=golomb", "cyclic", "partition"]),
    ],
)
def test_errors_name_the_option_and_what_fits(name: str, groups: int, redundancy: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make_placement(name, groups, redundancy)
    assert all(word in str(error.value) for word in words)


def test_planning_core_is_light() -> None:
    """No torch, numpy, scipy or networkx behind the policies; the import takes a fraction of 0.3 s of CPU."""
    code = (
        "import sys, time; start = time.process_time(); import fault_tolerance.policies; "
        "assert time.process_time() - start < 0.3; "
        "heavy = {'torch', 'numpy', 'scipy', 'networkx', 'hydra'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
