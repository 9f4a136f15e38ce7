"""Fault-tolerance policies: deterministic state machines that the live backends and the simulator drive alike."""

from fault_tolerance.policies.base import Plan, Policy, Replan, Restart, Unit
from fault_tolerance.policies.checkpoint_only import CheckpointOnly
from fault_tolerance.policies.factory import make_policy
from fault_tolerance.policies.replication import Replication
from fault_tolerance.policies.spare import Spare

__all__ = [
    "CheckpointOnly",
    "Plan",
    "Policy",
    "Replan",
    "Replication",
    "Restart",
    "Spare",
    "Unit",
    "make_policy",
]
