"""Runs one handler of the product to its end, outside any loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


def awaited(answer: Awaitable[Any]) -> Any:
    """The result of ``answer``, in an event loop of its own. ``asyncio.run`` takes coroutines
    alone, and the product declares its handlers as awaitables."""

    async def wait() -> Any:
        return await answer

    return asyncio.run(wait())
