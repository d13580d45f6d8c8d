"""Links fitted to transfers: planted lines, outliers, and what few transfers can't tell."""

import random

import pytest

from coordinator.costs.cluster import EndpointOverhead, Link
from coordinator.costs.links import (
    DEFAULT_MBPS,
    MOST_OBSERVATIONS,
    LinkEstimate,
    Transfer,
    divided,
    fit_line,
    prior_link,
)

TRUE = Link(bytes_per_s=5e6, message_s=0.004, latency_s=0.002)


def observe(sizes: list[int], *, noise: float = 0.0, odd: float = 0.0) -> LinkEstimate:
    """Transfers over `TRUE`; a share `odd` of them waited behind others."""
    rng, estimate = random.Random(4), LinkEstimate(prior_link(93.7))
    for size in sizes:
        seconds = TRUE.fixed_s + size * TRUE.byte_s
        seconds *= rng.uniform(1 - noise, 1 + noise)
        if rng.random() < odd:
            seconds += rng.uniform(0.5, 5.0)
        estimate = estimate.observed(size, seconds)
    return estimate


SIZES = [1000, 30_000, 100_000, 400_000, 900_000] * 8


def test_the_prior_until_something_is_known() -> None:
    prior = prior_link(93.7)
    assert prior.bytes_per_s == pytest.approx(93.7e6 / 8)
    assert LinkEstimate(prior).link == prior
    assert observe(SIZES[:3]).link == prior
    assert prior_link(0).bytes_per_s == pytest.approx(DEFAULT_MBPS * 1e6 / 8)


def test_a_planted_link_is_found() -> None:
    link = observe(SIZES).link
    assert link.bytes_per_s == pytest.approx(5e6, rel=1e-6)
    assert link.fixed_s == pytest.approx(TRUE.fixed_s, rel=1e-6)
    assert link.message_s > 0
    assert link.latency_s > 0


def test_noise_and_outliers_change_little() -> None:
    link = observe(SIZES * 2, noise=0.1, odd=0.15).link
    assert link.transfer_s(500_000) == pytest.approx(TRUE.transfer_s(500_000), rel=0.1)


def test_transfers_of_one_size_correct_that_size() -> None:
    large = observe([500_000] * 10).link
    assert large.transfer_s(500_000) == pytest.approx(TRUE.transfer_s(500_000))
    tiny = observe([100] * 10).link
    assert tiny.transfer_s(100) == pytest.approx(TRUE.transfer_s(100), rel=1e-3)
    assert tiny.bytes_per_s == prior_link(93.7).bytes_per_s


def test_the_latest_transfers_count() -> None:
    estimate = observe(SIZES)
    for size in SIZES * 4:
        estimate = estimate.observed(size, 2 * TRUE.transfer_s(size))
    assert len(estimate.transfers) == MOST_OBSERVATIONS
    assert estimate.link.bytes_per_s == pytest.approx(2.5e6, rel=1e-6)


def test_impossible_transfers_are_ignored() -> None:
    estimate = observe(SIZES)
    assert estimate.observed(10, 0.0) is estimate
    assert estimate.observed(-1, 1.0) is estimate


def test_a_faster_large_transfer_makes_no_negative_cost() -> None:
    transfers = [Transfer(size, 1.0 - size * 1e-7) for size in SIZES]
    fitted = fit_line(transfers)
    assert fitted is not None
    assert min(fitted) >= 0


def test_endpoint_time_is_not_counted_twice() -> None:
    prior = Link(1e7, 0.001, near=EndpointOverhead(byte_s=1e-7))
    estimate = LinkEstimate(prior)
    for size in SIZES:
        estimate = estimate.observed(size, 0.001 + size * (2e-7 + 1e-7))
    assert estimate.link.bytes_per_s == pytest.approx(5e6, rel=1e-6)
    assert estimate.link.transfer_s(10**6) == pytest.approx(0.301, rel=1e-6)


def test_a_device_takes_at_most_half_of_what_bytes_cost() -> None:
    """The device's part was measured while something else used the link: it is more than all."""
    prior = Link(1e7, 0.001, near=EndpointOverhead(byte_s=1e-8), far=EndpointOverhead(byte_s=1e-6))
    estimate = LinkEstimate(prior)
    for size in SIZES:
        estimate = estimate.observed(size, 0.001 + size * 1.1e-7)
    assert estimate.link.far.byte_s == pytest.approx(5e-8, rel=1e-6)
    assert estimate.link.bytes_per_s == pytest.approx(2e7, rel=1e-6)


def test_messages_within_a_buffer_say_nothing_of_the_rate() -> None:
    """A shaper lets 66 KB through at once: small messages look infinitely fast."""
    probe = [
        Transfer(size, 0.002 + max(0, size - 66_000) / TRUE.bytes_per_s)
        for size in (0, 0, 0, 0, 16 << 10, 16 << 10, 64 << 10, 64 << 10, 1 << 18, 1 << 20)
    ]
    link = LinkEstimate(prior_link(93.7)).probed(probe).link
    assert link.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.1)


def test_the_last_probe_counts_beside_messages_of_one_size() -> None:
    probe = [Transfer(size, TRUE.transfer_s(size)) for size in (1, 1000, 1 << 16, 1 << 18, 1 << 20)]
    estimate = LinkEstimate(prior_link(93.7)).probed([Transfer(10**6, 99.0)] * 9).probed(probe)
    for _ in range(2 * MOST_OBSERVATIONS):
        estimate = estimate.observed(30_000, TRUE.transfer_s(30_000))
    assert estimate.link.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.01)


def test_ends_that_need_all_of_it_leave_no_less_than_nothing():
    end = EndpointOverhead(message_s=0.000344)
    link = divided(Link(1e6, 0.001, 0.002, far=end), 2.39e-05, 1e-8)  # by rounding, -3e-21 s
    assert (link.message_s, link.latency_s) == (0, 0)
    assert link.far.message_s == pytest.approx(2.39e-05)
