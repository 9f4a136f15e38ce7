"""Checkpoint period, availability and normalised time to train of the published model (the paper, SPARE.md).

A run alternates between T_f of training (mean time to a wipe-out, exponential) and T_r of restart; a save of T_s ends
each period T_c; a wipe-out throws away half a period. `renewal` drops the assumption of the constant rate.
"""

from __future__ import annotations

import math


def checkpoint_period(save_s: float, restart_s: float, wipe_out_s: float) -> float:
    """T_c* = T_s + sqrt(T_s^2 + 2 T_s (T_f + T_r)) in seconds, the save included (the paper).

    It maximises `availability`. For T_s much below T_f it is Young's and Daly's sqrt(2 T_s T_f).

    Args:
        save_s: T_s, how long a save stops training.
        restart_s: T_r, from the wipe-out until training resumes.
        wipe_out_s: T_f = mu * MTBF, mean time to a wipe-out.

    Raises:
        ValueError: a negative duration, or no positive time to a wipe-out.
    """
    _check(save_s, restart_s, wipe_out_s)
    return save_s + math.sqrt(save_s**2 + 2 * save_s * (wipe_out_s + restart_s))


def availability(save_s: float, restart_s: float, wipe_out_s: float, period_s: float | None = None) -> float:
    """A(T_c) = T_f (1 - T_s/T_c) / (T_f + T_r + T_c/2): share of the wall-clock in which training advances for good.

    Derived here as the model whose best period is the paper's T_c*: setting the derivative to nought gives
    T_c^2 - 2 T_s T_c = 2 T_s (T_f + T_r).

    Args:
        period_s: T_c in seconds; the best one (A*) when None.

    Raises:
        ValueError: a negative duration, no positive time to a wipe-out, or a period not longer than the save.
    """
    _check(save_s, restart_s, wipe_out_s)
    if period_s is None:
        period_s = checkpoint_period(save_s, restart_s, wipe_out_s)
    if save_s == 0 and period_s == 0:
        return wipe_out_s / (wipe_out_s + restart_s)
    if period_s <= save_s:
        raise ValueError(f"checkpoint period {period_s:g} s: must be longer than a save ({save_s:g} s)")
    return wipe_out_s * (1 - save_s / period_s) / (wipe_out_s + restart_s + period_s / 2)


def normalised_time_to_train(mean_stacks: float, save_s: float, restart_s: float, wipe_out_s: float) -> float:
    """J = S_bar / A*(T_f): time to train over the failure-free time where computing is all of a step (the paper).

    Replication: `mean_stacks` = r. CKPT-only: 1, with T_f the MTBF.
    """
    return mean_stacks / availability(save_s, restart_s, wipe_out_s)


def _check(save_s: float, restart_s: float, wipe_out_s: float) -> None:
    if save_s < 0 or restart_s < 0:
        raise ValueError(f"save_s={save_s:g}, restart_s={restart_s:g}: must be at least 0 seconds")
    if wipe_out_s <= 0:
        raise ValueError(f"mean time to a wipe-out {wipe_out_s:g} s: must be above 0")
