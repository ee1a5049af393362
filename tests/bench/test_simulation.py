"""The simulation of many machines: the same figures each time, and what must hold in each of its scenarios."""

import sys
from pathlib import Path

import pytest

from requirements import requirement

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the bench is no part of the package

from bench.simulation import Setup, Simulation, scenarios, table

SMALL = scenarios(5_000, 500.0)


def test_simulation_is_deterministic() -> None:
    assert table(SMALL[2:4]) == table(SMALL[2:4])


@requirement("R161")
@pytest.mark.parametrize("setup", SMALL, ids=lambda setup: setup.name)
def test_each_run_ends_once_and_queue_drains(setup: Setup) -> None:
    simulation = Simulation(setup)
    out = simulation.run()
    assert out.ended_twice == 0
    assert out.ended == sum(simulation.over)
    assert out.left_in_queue == 0
    # What has begun has ended, or is driven.
    assert len(simulation.over) == out.ended + simulation.used
    assert not simulation.silent_since
    if setup.lost:
        assert out.takeovers > 0
    if setup.slow == 1:
        assert out.worst_takeover_s <= 2 * setup.lease_s


def test_runs_without_spare_machines_wait_and_are_not_lost() -> None:
    out = Simulation(Setup(runs=2_000, machines=20, spare=0.0, lost=0.5, appends_per_s=500.0)).run()
    assert out.longest_queue > 500
    assert out.ended_twice == 0
