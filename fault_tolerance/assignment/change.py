"""What one change of membership did to an assignment."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """Outcome of RECTLR.

    Attributes:
        phase: which phase decided. 0: the survivors' order stands. 1: the load (S) was raised, or the lost work was
            handed out, and no survivor's own work moved. 2: survivors' work was reordered.
        moves: types or units that a group computes in the next steps and would not have computed before.
        lost_types: types without a live host (wipe-out); the assignment is then incomplete until groups join.
    """

    phase: int
    moves: int
    lost_types: tuple[int, ...] = ()
