"""Closed forms, finite sums and estimates: what a redundancy costs and what it buys, without simulating anything.

`survival`: failures endured before a wipe-out. `stacks`: work per step. `checkpointing`: period and availability of the
published model. `renewal`: time to train with lifetimes that age. `planner`: all of it as a table over r.
The sources of the formulas stand in the docstrings; "the paper" is Lee et al., arXiv 2603.00357.
"""

from fault_tolerance.theory.checkpointing import (
    availability,
    checkpoint_period,
    normalised_time_to_train,
)
from fault_tolerance.theory.planner import METHODS, Row, best_row, plan_rows
from fault_tolerance.theory.renewal import Estimate, estimate
from fault_tolerance.theory.stacks import (
    least_load,
    least_stacks,
    mean_stacks,
    mean_stacks_exact,
    patch_share,
)
from fault_tolerance.theory.survival import (
    mean_failures,
    mean_failures_exact,
    mean_failures_partition,
    optimal_redundancy,
    survival_after,
)

__all__ = [
    "METHODS",
    "Estimate",
    "Row",
    "availability",
    "best_row",
    "checkpoint_period",
    "estimate",
    "least_load",
    "least_stacks",
    "mean_failures",
    "mean_failures_exact",
    "mean_failures_partition",
    "mean_stacks",
    "mean_stacks_exact",
    "normalised_time_to_train",
    "optimal_redundancy",
    "patch_share",
    "plan_rows",
    "survival_after",
]
