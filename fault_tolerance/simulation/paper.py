"""The paper's table, and ours beside it.

Source: Lee et al., SPARe, ICML 2026 (arXiv 2603.00357): 600k H100, 10T parameters, 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fault_tolerance.simulation.sweep import Point, best_of


@dataclass(frozen=True)
class Published:
    """Best redundancy of a method in the paper's table."""

    ratio: float
    redundancy: int
    availability: float


PAPER: dict[tuple[str, int], Published] = {
    ("rep", 200): Published(6.07, 3, 0.6174),
    ("rep", 600): Published(4.27, 3, 0.7989),
    ("rep", 1000): Published(3.88, 3, 0.8441),
    ("spare", 200): Published(2.92, 9, 0.8700),
    ("spare", 600): Published(2.49, 8, 0.9390),
    ("spare", 1000): Published(2.34, 9, 0.9654),
}
"""(method, groups) -> the paper's row."""


@dataclass(frozen=True)
class Comparison:
    """Our best redundancy of a method beside the paper's."""

    method: str
    groups: int
    best: Point | None
    """None: no progress at any redundancy."""
    at_paper: Point | None
    """Our result at the paper's redundancy."""
    published: Published | None
    """None where the paper has no such row."""

    @property
    def ratio_deviation(self) -> float | None:
        """Relative deviation of the best time-to-train ratio."""
        if self.best is None or self.published is None:
            return None
        return self.best.ratio.value / self.published.ratio - 1

    @property
    def availability_deviation(self) -> float | None:
        """Difference of availability at the best redundancy, counted from the notice as published; 0.01 = a point."""
        if self.best is None or self.published is None:
            return None
        return self.best.from_notice.value - self.published.availability


def compare(points: Sequence[Point], with_paper: bool = True) -> list[Comparison]:
    """One line per size and method, in the order of the points; `with_paper` where they are of the paper's cluster."""
    lines = []
    for groups, method in dict.fromkeys((point.groups, point.method) for point in points):
        published = PAPER.get((method, groups)) if with_paper else None
        at_paper = None
        if published is not None:
            at_paper = next(
                (p for p in points if (p.method, p.groups, p.redundancy) == (method, groups, published.redundancy)),
                None,
            )
        lines.append(Comparison(method, groups, best_of(points, method, groups), at_paper, published))
    return lines
