"""An engine with a fault that can be switched on; a module of its own, so that a replica can import it."""

from app.engine import PolicyEngine


class Forgetful(PolicyEngine):
    """An engine whose prefix cache can be made to outlive its weights."""

    async def keep_cache(self, keep: bool) -> None:
        self.clears_cache = not keep
