"""Memory stays bounded when a whole street uploads its photographs at once."""

import asyncio
import io
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from coordinator.serving.common.body import BODIES_HELD
from coordinator.serving.common.pictures import AT_A_TIME
from coordinator.settings import CoordinatorSettings
from tests.serving.processes import serving

UPLOADS = 200
SIZE = (4000, 3000)
# Bodies that may be held, once as they come and once as a whole; pictures as they are decoded,
# turned and resized. All uploads together would be 880 MB, decoded 7 GB.
HELD_BYTES = 2 * BODIES_HELD * CoordinatorSettings().max_body_bytes
DECODED_BYTES = AT_A_TIME * 3 * SIZE[0] * SIZE[1] * 3
MOST_BYTES = HELD_BYTES + DECODED_BYTES


def photograph() -> bytes:
    """12 megapixels in a few megabytes, as a camera writes them."""
    coarse = np.random.default_rng(1).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
    return file.getvalue()


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.slow
def test_memory_stays_bounded_under_two_hundred_uploads(tmp_path) -> None:
    body = photograph()

    async def all_at_once(url: str) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=UPLOADS)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
            headers = {"content-type": "image/jpeg"}
            return await asyncio.gather(
                *(
                    client.post("/v1/models/digits/infer", content=body, headers=headers)
                    for _ in range(UPLOADS)
                )
            )

    with serving(tmp_path, ["--model", "digits"]) as running:
        pid = running.coordinator.process.pid
        for _ in range(3):
            httpx.post(
                f"{running.url}/v1/models/digits/infer",
                content=body,
                headers={"content-type": "image/jpeg"},
                timeout=60,
            ).raise_for_status()
        before = psutil.Process(pid).memory_info().rss
        answers = asyncio.run(all_at_once(running.url))
        grown = peak_bytes(pid) - before
    codes = {answer.status_code for answer in answers}
    assert codes <= {200, 503}
    assert any(answer.status_code == 200 for answer in answers)
    assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 503)
    assert grown < MOST_BYTES
