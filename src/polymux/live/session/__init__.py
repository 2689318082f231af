"""One live session on asyncio: reading, writing, accepting, flow control, timeouts and shutdown."""
