"""Several processes with the same environment: rewards side by side, and the turns of many conversations."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from environments.process import Closed
from environments.score import MAX_CONCURRENT
from environments.turn import Spoken, Turn
from environments.worker import EnvironmentWorker


class EnvironmentPool(Closed):
    """`processes` workers of one environment. `score` may be called from any thread, `turn` from one event loop.

    A process takes one turn at a time; where the environment is async, as many as can wait together.
    """

    def __init__(
        self, name: str, kwargs: Mapping[str, Any], *, limit_s: float, processes: int = 1, eos_token: str = ""
    ) -> None:
        if processes < 1:
            raise ValueError(f"environment {name!r}: processes must be at least 1, got {processes}")
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix=f"environment {name}")
        self._workers = [
            EnvironmentWorker(name, kwargs, limit_s=limit_s, eos_token=eos_token) for _ in range(processes)
        ]
        self._free = list(self._workers)
        self._waiting: list[tuple[Spoken, asyncio.Future[Turn]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def score(self, table: pa.Table) -> pa.Table:
        """The same rows in the same order, with the reward columns."""
        num_parts = max(1, min(len(self._workers), table.num_rows))
        size = -(-table.num_rows // num_parts)
        parts = [table.slice(number * size, size) for number in range(num_parts)]
        return pa.concat_tables(self._threads.map(EnvironmentWorker.score, self._workers, parts))

    async def turn(self, spoken: Spoken) -> Turn:
        """What the environment answers to one turn of the policy."""
        answer: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.append((spoken, answer))
        self._start()
        return await answer

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown()

    def _start(self) -> None:
        """Gives what waits to processes that are free."""
        while self._free and self._waiting:
            worker = self._free.pop()
            width = MAX_CONCURRENT if worker.is_async else 1
            taken, self._waiting = self._waiting[:width], self._waiting[width:]
            task = asyncio.get_running_loop().create_task(self._answer(worker, taken))
            self._tasks.add(task)  # a loop keeps no tasks alive by itself
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, worker: EnvironmentWorker, taken: Sequence[tuple[Spoken, asyncio.Future[Turn]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            turns = await loop.run_in_executor(self._threads, worker.turns, [spoken for spoken, _ in taken])
        except Exception as error:  # noqa: BLE001 - it is raised where each turn is awaited
            for _, answer in taken:
                if not answer.done():  # who asked may have been cancelled
                    answer.set_exception(error)
        else:
            for (_, answer), turn in zip(taken, turns, strict=True):
                if not answer.done():
                    answer.set_result(turn)
        finally:
            self._free.append(worker)
            self._start()
