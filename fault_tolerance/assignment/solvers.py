"""The solvers of RECTLR by name."""

from __future__ import annotations


def make_solver(name: str):
    """None for the incremental solver of `Flow`; raises ValueError for an unknown name."""
    if name == "incremental":
        return None
    if name == "networkx":
        from fault_tolerance.assignment.reference import place

        return place
    raise ValueError(f"fault_tolerance.solver={name} is unknown: choose incremental or networkx")
