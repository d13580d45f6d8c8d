"""Runs machines of rules as long as planted faults take to be noticed."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_in_any_order(machine: type[RuleBasedStateMachine]) -> None:
    """Runs a machine's rules in many orders, without shrinking: whether one fails is enough."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=300,
            stateful_step_count=60,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
