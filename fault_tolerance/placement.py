"""Where the copies of the shard types lie: which group hosts which types, and in which initial order.

Two placements. `cyclic` shifts a ruler with distinct differences (a cyclic Golomb ruler) round the groups, so that
any two types share at most one host and no small set of deaths takes many types at once. `partition` is traditional
replication: teams of r groups that host the same r types.
"""

from __future__ import annotations

from dataclasses import dataclass

from fault_tolerance.rulers import find_ruler, repeated_differences

PLACEMENTS = ("cyclic", "partition")


@dataclass(frozen=True)
class Placement:
    """Which group hosts which shard types; a type's number is also the number of the group that starts with it.

    Attributes:
        name: cyclic or partition.
        groups: N, the number of groups and of shard types.
        redundancy: r, the depth of a stack and the number of hosts of each type.
        stacks: (N, r): `stacks[group]` are the types that the group hosts in initial order; the first one is `group`.
        hosts: (N, r): `hosts[type]`; `hosts[type][i]` has the type at position i of its stack.
        marks: the ruler behind a cyclic placement, empty for a partition.
        repeats: how many differences of the ruler, mod N, stand more than once beyond the first (0: any two types
            share at most one host; a partition counts none, its teams coincide by intention).
    """

    name: str
    groups: int
    redundancy: int
    stacks: tuple[tuple[int, ...], ...]
    hosts: tuple[tuple[int, ...], ...]
    marks: tuple[int, ...] = ()
    repeats: int = 0


def cyclic(groups: int, redundancy: int) -> Placement:
    """Group j hosts types (j + a_i) mod N for the marks a_0 = 0 < a_1 < ... of a cyclic Golomb ruler.

    Where r (r - 1) > N - 1 no ruler has distinct differences; then the marks are those with the fewest repeated
    differences that were found, and `Placement.repeats` says how many.

    Raises:
        ValueError: redundancy below 1 or above groups.
    """
    check_sizes(groups, redundancy)
    marks = find_ruler(groups, redundancy)
    return Placement(
        name="cyclic",
        groups=groups,
        redundancy=redundancy,
        stacks=tuple(tuple([(group + mark) % groups for mark in marks]) for group in range(groups)),
        hosts=tuple(tuple([(kind - mark) % groups for mark in marks]) for kind in range(groups)),
        marks=marks,
        repeats=repeated_differences(marks, groups),
    )


def partition(groups: int, redundancy: int) -> Placement:
    """Teams of r neighbouring groups; each group hosts the team's r types, its own first, then in rotated order.

    Raises:
        ValueError: redundancy below 1 or above groups, or groups that do not divide into teams.
    """
    check_sizes(groups, redundancy)
    if groups % redundancy:
        fitting = [size for size in range(1, groups + 1) if groups % size == 0]
        raise ValueError(
            f"fault_tolerance.placement=partition needs teams of equal size: fault_tolerance.redundancy={redundancy} "
            f"does not divide parallel.groups={groups}; choose one of {fitting}"
        )
    stacks, hosts = [], []
    for group in range(groups):
        first = group - group % redundancy
        place = group - first
        stacks.append(tuple(first + (place + i) % redundancy for i in range(redundancy)))
        hosts.append(tuple(first + (place - i) % redundancy for i in range(redundancy)))
    return Placement("partition", groups, redundancy, tuple(stacks), tuple(hosts))


def make_placement(name: str, groups: int, redundancy: int) -> Placement:
    """The placement called `name` (cyclic or partition).

    Raises:
        ValueError: unknown name, or sizes that do not fit.
    """
    if name == "cyclic":
        return cyclic(groups, redundancy)
    if name == "partition":
        return partition(groups, redundancy)
    raise ValueError(f"fault_tolerance.placement={name} is unknown: choose {' or '.join(PLACEMENTS)}")


def check_sizes(groups: int, redundancy: int) -> None:
    """Raise ValueError unless 1 <= redundancy <= groups."""
    if groups < 1:
        raise ValueError(f"parallel.groups={groups} is too small: at least 1")
    if redundancy < 1:
        raise ValueError(f"fault_tolerance.redundancy={redundancy} is too small: choose 1 to {groups}")
    if redundancy > groups:
        raise ValueError(
            f"fault_tolerance.redundancy={redundancy} exceeds parallel.groups={groups}: choose 1 to {groups}"
        )
