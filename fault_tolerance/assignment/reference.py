"""The readable solver: RECTLR's phases 1 and 2 stated as textbook problems and solved by networkx.

It solves each change anew, which is slow (`scripts/bench_planning.py` says how slow); it is there to be read and to
check the incremental solver, and a run may use it with `fault_tolerance.solver=networkx`.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from fault_tolerance.assignment.flow import Flow

SOURCE, SINK = "source", "sink"


def place(flow: Flow, missing: Mapping[int, int], floor: int) -> None:
    """Like `Flow.place`: give the missing units hosts with the least largest load, then the least moves."""
    capacity = floor
    while not feasible(flow, capacity):
        capacity += 1
    if flow.widen is not None:
        flow.widen(capacity)
    flow.capacity = capacity
    flow.journal = []
    wanted = cheapest(flow, capacity)
    for kind in range(flow.placement.groups):
        for host in flow.live_hosts[kind]:
            change = wanted.get((kind, host), 0) - flow.at[host].get(kind, 0)
            if change:
                flow.shift(host, kind, change)
                flow.journal.append((host, kind, change))


def feasible(flow: Flow, capacity: int) -> bool:
    """Phase 1: can every unit have a live host of its type with at most `capacity` units per group?"""
    kinds = range(flow.placement.groups)
    if flow.supply == 1:
        graph = nx.Graph()
        types = [("type", kind) for kind in kinds]
        graph.add_nodes_from(types)
        for kind in kinds:
            for host in flow.live_hosts[kind]:
                graph.add_edges_from((("type", kind), ("slot", host, slot)) for slot in range(capacity))
        matching = nx.bipartite.hopcroft_karp_matching(graph, top_nodes=types)
        return len(matching) == 2 * len(types)
    graph = nx.DiGraph()
    for kind in kinds:
        graph.add_edge(SOURCE, ("type", kind), capacity=flow.supply)
        for host in flow.live_hosts[kind]:
            graph.add_edge(("type", kind), ("group", host))
            graph.add_edge(("group", host), SINK, capacity=capacity)
    return nx.maximum_flow_value(graph, SOURCE, SINK) == flow.supply * len(kinds)


def cheapest(flow: Flow, capacity: int) -> dict[tuple[int, int], int]:
    """Phase 2: {(type, group): units} with the fewest units where today's assignment does not have them."""
    graph = nx.DiGraph()
    for kind in range(flow.placement.groups):
        graph.add_edge(SOURCE, ("type", kind), capacity=flow.supply, weight=0)
        for host in flow.live_hosts[kind]:
            free = today(flow, kind, host)
            if free:
                graph.add_edge(("type", kind), ("today", kind, host), capacity=free, weight=0)
                graph.add_edge(("today", kind, host), ("group", host), capacity=free, weight=0)
            graph.add_edge(("type", kind), ("group", host), capacity=flow.supply, weight=1)
            graph.add_edge(("group", host), SINK, capacity=capacity, weight=0)
    solution = nx.max_flow_min_cost(graph, SOURCE, SINK)
    wanted: dict[tuple[int, int], int] = {}
    for kind in range(flow.placement.groups):
        for node, units in solution[("type", kind)].items():
            if units:
                wanted[kind, node[-1]] = wanted.get((kind, node[-1]), 0) + units
    return wanted


def today(flow: Flow, kind: int, host: int) -> int:
    """Units of a type that cost nothing at a group: what it has (or may have) by today's assignment."""
    spare = flow.room.get(kind, {}).get(host, 0)
    return flow.at[host].get(kind, 0) + spare - flow.over.get(host, {}).get(kind, 0)
