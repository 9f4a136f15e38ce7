"""RECTLR, the reordering controller: who computes what after failures, with the fewest stacks and the fewest moves.

`SpreadAssignment` gives each unit to exactly one live group (live runs, micro-batch granularity); `StackAssignment`
is the published form, in which each live group computes the first S types of its stack.
"""

from fault_tolerance.assignment.change import Change
from fault_tolerance.assignment.patch import even_patch, least_patch
from fault_tolerance.assignment.spread import SpreadAssignment, SpreadPlan
from fault_tolerance.assignment.stacked import StackAssignment, StackPlan

__all__ = ["Change", "SpreadAssignment", "SpreadPlan", "StackAssignment", "StackPlan", "even_patch", "least_patch"]
