"""A genuine client: one picture after another, and what became of each, a line of JSON each.

    python -m benchmarks.hostile.genuine URL     (its key, if any, in IMBREX_API_KEY)

Times are of the clock that every process of a machine shares.
"""

from __future__ import annotations

import json
import os
import sys
import time

import httpx

from models.digits.examples import examples

# Between requests: a camera's pace.
PAUSE_S = 0.1


def main() -> None:
    """Until it is ended."""
    picture = examples()[0].path.read_bytes()
    headers = {"Content-Type": "image/png"}
    if key := os.environ.get("IMBREX_API_KEY"):
        headers["X-API-Key"] = key
    with httpx.Client(base_url=sys.argv[1], timeout=30) as client:
        while True:
            began, error = time.monotonic(), ""
            try:
                answer = client.post("/v1/models/digits/infer", content=picture, headers=headers)
                if answer.status_code != 200:
                    error = f"{answer.status_code} {answer.text[:200]}"
            except httpx.RemoteProtocolError:
                # An idle connection was closed as this was sent: any client asks again.
                continue
            except httpx.HTTPError as failed:
                error = type(failed).__name__
            line = {"began_s": began, "seconds": time.monotonic() - began, "error": error}
            print(json.dumps(line), flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
