"""Rates of queues, in memory that does not grow with the names that ever were."""

from __future__ import annotations

from capellini.node.rates import MOST_QUEUES, Rates


def test_rates_are_of_the_last_minute() -> None:
    rates = Rates()
    rates.add("jobs", "puts", 60, 100.0)
    rates.add("jobs", "puts", 60, 130.0)
    assert rates.per_s("jobs", "puts", 160.0) == 1.0
    assert rates.per_s("jobs", "puts", 1_000.0) == rates.per_s("other", "puts", 1_000.0) == 0.0


def test_names_that_come_and_go_take_no_memory_for_ever() -> None:
    rates = Rates()
    for number in range(MOST_QUEUES + 100):
        rates.add(f"reply-{number}", "puts", 1, 100.0)
    assert len(rates._queues) == MOST_QUEUES
    assert rates.per_s(f"reply-{MOST_QUEUES}", "puts", 101.0) == 1.0
