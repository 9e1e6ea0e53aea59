"""Sensors that publish readings, for the pipeline in `sensors.yaml`; one of them is broken."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import ister

START = datetime(2026, 11, 16, 23, 0, tzinfo=UTC)


async def main() -> None:
    """Publish two hours of readings, one a minute for each sensor."""
    async with ister.connect() as client:
        await client.create_topic("sensors.readings", kind="stream")
        async with client.producer("sensors.readings") as producer:
            for minute in range(120):
                at = (START + timedelta(minutes=minute)).isoformat()
                for sensor in ("cellar", "roof"):
                    reading = {"sensor": sensor, "celsius": 10 + minute / 10, "at": at}
                    producer.send_nowait(json.dumps(reading).encode(), key=sensor)
            producer.send_nowait(b"short circuit", key="broken")


if __name__ == "__main__":
    asyncio.run(main())
