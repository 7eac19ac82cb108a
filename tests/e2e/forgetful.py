"""An engine with a fault that can be switched on; a module of its own, so that a replica can import it."""

import asyncio
from typing import Any

from app.engine import PAUSE_MODES, PolicyEngine


class Forgetful(PolicyEngine):
    """An engine whose prefix cache can be made to outlive its weights, and that remembers how busy it was."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, model: str, engine_args: dict[str, Any], *arguments: Any
    ) -> None:
        self.delay_s = 0.0
        await super().__init__(model, engine_args, *arguments)
        self.busy: list[tuple[int, int]] = []
        self.engine.logger_manager.stat_loggers.append(self)

    async def keep_cache(self, keep: bool) -> None:
        self.clears_cache = not keep

    async def catch_up_slowly(self, delay_s: float) -> None:
        self.delay_s = delay_s

    async def catch_up(self) -> None:
        await asyncio.sleep(self.delay_s)
        await super().catch_up()

    async def set_weight_update(self, mode: str) -> None:
        self.pause_mode = PAUSE_MODES[mode]

    async def take_busy(self) -> list[tuple[int, int]]:
        """(running, waiting) requests after each engine step since the last call."""
        taken, self.busy = self.busy, []
        return taken

    def record(self, scheduler_stats: Any, *others: Any, **named: Any) -> None:
        """vLLM calls it after each engine step."""
        if scheduler_stats is not None:
            self.busy.append((scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs))
