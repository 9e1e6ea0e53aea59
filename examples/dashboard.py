"""A live dashboard: every browser sees the messages of all topics, by server-sent events.

    ister serve &
    python examples/dashboard.py
    curl -N http://127.0.0.1:8000/          # or EventSource("http://127.0.0.1:8000/") in a page
    ister produce shop.orders "hello"

Each browser has a subscription without a name. It covers all live topics and streams, also those
created later, and ends when the browser disconnects. No messages are kept for it afterwards.
"""

import asyncio
import json
import os

import ister

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\n"


async def show(client: ister.Client, writer: asyncio.StreamWriter) -> None:
    """Write each message to a browser as an event."""
    async with client.subscribe(">") as sub:
        writer.write(HEAD)
        async for msg in sub:
            event = {
                "topic": msg.topic,
                "key": msg.key,
                "text": msg.payload.decode(errors="replace"),
            }
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()  # A slow browser slows down only its own subscription.
            await msg.ack()


async def serve(port: int) -> None:
    """Answer browsers until Ctrl-C."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        showing = asyncio.create_task(show(client, writer))
        await reader.read()  # Returns when the browser leaves.
        showing.cancel()
        writer.close()

    async with ister.connect() as client:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        host, port = server.sockets[0].getsockname()
        print(f"dashboard at http://{host}:{port}/", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(os.environ.get("PORT", "8000"))))
