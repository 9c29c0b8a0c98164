"""Time on one GPU: kernels through CUDA graphs over fresh buffers, host time per eager call, the limit."""

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

_REPLAYS = 15
# Starting a graph takes some microseconds, which so many calls share at least.
_CALLS_OF_A_GRAPH = 24
# After other work the GPU was up to a tenth slower for some milliseconds, whatever ran.
_WARM_UP_SECONDS = 0.02
_SECONDS = 0.05
# Several times the L2 of current GPUs, so that no replay finds its data in cache.
_FRESH_BYTES = 512 << 20


def sets_for(bytes_per_call: int) -> int:
    """How many sets of buffers a graph rotates over, so that one replay runs past the cache."""
    return max(2, min(400, _FRESH_BYTES // max(bytes_per_call, 1)))


def graph_us(calls: Sequence[Callable[[], object]]) -> float:
    """Median microseconds per call, all captured in one graph, several times over, that is replayed."""
    calls = [*calls] * -(-_CALLS_OF_A_GRAPH // len(calls))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    warm = time.perf_counter() + _WARM_UP_SECONDS
    while time.perf_counter() < warm:
        graph.replay()
        torch.cuda.synchronize()
    times: list[float] = []
    enough = time.perf_counter() + _SECONDS
    while len(times) < 5 or (len(times) < _REPLAYS and time.perf_counter() < enough):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def event_us(calls: Sequence[Callable[[], object]]) -> float:
    """Median microseconds per eager call by the GPU's clock, for calls that keep the GPU busy."""
    times = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def host_us(call: Callable[[], object], calls: int = 200) -> float:
    """Median microseconds of host time per eager call; the GPU is drained between batches of calls."""
    for _ in range(20):
        call()
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) * 1e6 / calls)
    torch.cuda.synchronize()
    return statistics.median(times)


@functools.cache
def bytes_per_us(nbytes: int) -> float:
    """The rate to beat for a problem of this many bytes moved: the faster of a copy and an in-place pass."""
    n = max(nbytes // 4, 1)  # two bytes an element, each read once and written once
    sets = sets_for(nbytes)
    sources = [torch.randn(n, device="cuda").bfloat16() for _ in range(sets)]
    targets = [torch.empty_like(x) for x in sources]
    copy = graph_us([functools.partial(y.copy_, x) for x, y in zip(sources, targets, strict=True)])
    inplace = graph_us([x.neg_ for x in sources])
    return 4 * n / min(copy, inplace)
