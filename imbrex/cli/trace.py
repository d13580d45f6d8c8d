"""`imbrex trace`: a request's timeline as a file for a trace viewer."""

from __future__ import annotations

import json
from pathlib import Path

from imbrex import terminal
from imbrex.calls import plain
from imbrex.client import Client
from imbrex.described import write


def trace(request_id: str, url: str, output: Path, *, as_json: bool) -> int:
    """Writes the file and says what is in it.

    Raises:
        NotFound: the coordinator does not know this request, or no longer does.
        BadConfiguration: the file cannot be written.
    """
    with Client(url) as client:
        found = plain(client.trace(request_id))
    write(output, json.dumps(found), "--output")
    events = [each for each in found["traceEvents"] if each["ph"] == "X"]
    rows = {(each["pid"], each["tid"]) for each in events}
    if as_json:
        told = {"request": request_id, "file": str(output)}
        terminal.print_json({**told, "events": len(events), "rows": len(rows)})
    else:
        terminal.out().print(
            f"{output}: {len(events)} events in {len(rows)} rows; open it at "
            "https://ui.perfetto.dev or chrome://tracing"
        )
    return 0
