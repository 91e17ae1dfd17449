"""Requests that arrive together go through the network together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from repulse.prediction import Prediction

Found = TypeVar("Found")

Predict = Callable[[list[Any]], Prediction]
"""Predicts for the values of some samples."""


class FullError(Exception):
    """More samples wait than may."""


@dataclass
class _Waiting:
    values: Sequence[Any]
    done: asyncio.Future[Prediction]


class Batcher:
    """Collects what arrives while the network is busy, or within a few milliseconds, into one batch.

    The network runs in one thread, so that requests are still taken while it does. A batch that fails is tried again
    request by request: what is wrong with one request is told to that one alone.

    Attributes:
        size: samples in a batch, at most; a request with more is a batch of its own.
        limit: samples that may wait; with more, `FullError` is raised.
        wait: seconds to wait for others when nothing was waiting.
        waiting: samples that wait now.
        batches: how many batches went through the network.
    """

    def __init__(self, predict: Predict, size: int = 64, limit: int = 1024, wait: float = 0.004) -> None:
        self.predict, self.size, self.limit, self.wait = predict, size, limit, wait
        self.waiting = self.batches = 0
        self._queue: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "repulse predicts")

    async def __call__(self, values: Sequence[Any]) -> Prediction:
        """Predict for the samples of one request."""
        if self.waiting + len(values) > self.limit:
            raise FullError
        one = _Waiting(values, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self.waiting += len(values)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await one.done

    async def alone(self, call: Callable[[], Found], count: int) -> Found:
        """Call something with a request of so many samples, in the thread of the network, but in no batch."""
        if self.waiting + count > self.limit:
            raise FullError
        self.waiting += count
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            self.waiting -= count

    def close(self) -> None:
        """End the thread, when what it does is done."""
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        await asyncio.sleep(self.wait)
        while self._queue:
            together = [self._queue.popleft()]
            count = len(together[0].values)
            while self._queue and count + len(self._queue[0].values) <= self.size:
                together.append(self._queue.popleft())
                count += len(together[-1].values)
            await self._answer(together)
            self.waiting -= count

    async def _answer(self, together: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        values = [value for one in together for value in one.values]
        self.batches += 1
        try:
            prediction = await loop.run_in_executor(self._thread, self.predict, values)
        except Exception as reason:
            if len(together) > 1:
                for one in together:
                    await self._answer([one])
            elif not together[0].done.done():
                together[0].done.set_exception(reason)
            return
        start = 0
        for one in together:
            if not one.done.done():  # somebody may have hung up
                one.done.set_result(prediction[start : start + len(one.values)])
            start += len(one.values)
