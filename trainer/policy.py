"""The run's fault-tolerance policy, by its configuration."""

from __future__ import annotations

from fault_tolerance.policies import make_policy
from fault_tolerance.policies.base import Policy
from trainer.config import Config


def policy_of(config: Config) -> Policy:
    """A new policy in its initial state; no torch."""
    settings = config.fault_tolerance
    return make_policy(
        settings.backend,
        groups=config.parallel.groups,
        redundancy=settings.redundancy,
        micro_batches=config.parallel.micro_batches,
        granularity=settings.granularity,
        placement=settings.placement,
        solver=settings.solver,
        duplicates=False,
    )
