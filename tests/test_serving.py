"""Continuous batching: what the scheduler of strategies/serving.py decides."""

import itertools

from hypothesis import given, settings

from strategies import Domain, RopeCase
from strategies.serving import Arrival, Scheduler, serving_cases


def test_chunks_then_decoding_beside_a_prefill() -> None:
    scheduler = Scheduler([Arrival(0, 3, 1), Arrival(40, 2, 2)])
    scheduler.step(1)
    scheduler.step(0)
    scheduler.arrive(0)
    scheduler.step(0)
    scheduler.step(0)
    assert scheduler.steps == [((0, 0, 1),), ((0, 1, 2),), ((0, 3, 1), (1, 40, 2)), ((1, 42, 1),)]


def test_a_preempted_request_prefills_anew_and_one_swapped_out_goes_on() -> None:
    for rule, expected in (("preempt", (0, 5, 3)), ("swap_out", (0, 8, 1))):
        scheduler = Scheduler([Arrival(5, 3, 2)])
        scheduler.step(0)
        getattr(scheduler, rule)(0)
        scheduler.resume(0)
        scheduler.step(0)
        assert scheduler.steps == [((0, 5, 3),), (expected,)]


def test_who_is_done_leaves() -> None:
    scheduler = Scheduler([Arrival(0, 1, 1)])
    scheduler.step(0)
    scheduler.step(0)
    assert scheduler.rules() == []
    assert scheduler.steps == [((0, 0, 1),), ((0, 1, 1),)]


def test_cases_reach_what_a_server_does() -> None:
    """Several steps, several requests in a step, decoding beside a prompt, a restart, two equal batches."""
    seen = dict.fromkeys(("steps", "mixed", "restarted", "same size", "another order"), 0)

    @settings(max_examples=400, derandomize=True, database=None)
    @given(case=serving_cases(Domain(ranks=(3,), positions=("given",), tables=("indexed",))))
    def look(case: RopeCase) -> None:
        assert RopeCase.from_json(case.to_json()) == case
        sizes = [sum(n for _, _, n in step) for step in case.steps]
        orders = [[r for r, _, _ in step] for step in case.steps]
        reached: dict[int, int] = {}
        seen["steps"] += len(sizes) > 2
        seen["mixed"] += any(len({n for _, _, n in step}) > 1 for step in case.steps)
        seen["same size"] += any(a == b for a, b in itertools.pairwise(sizes))
        seen["another order"] += any(order != sorted(order) for order in orders)
        for request, first, length in (chunk for step in case.steps for chunk in step):
            seen["restarted"] += first < reached.get(request, first)
            reached[request] = first + length

    look()
    assert min(seen.values()) >= 5, seen
