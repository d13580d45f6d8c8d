"""Writes the tables of cluster-files.md from the parser: `python docs/cluster_keys.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cluster-files.md"
sys.path.insert(0, str(ROOT))

from coordinator.planning import cluster_schema as schema  # noqa: E402

_SECTIONS = {
    "`[network]`": schema.NetworkTable,
    "`[host]`": schema.Host,
    "`[[device]]`": schema.DeviceEntry,
    "`gflops` and others, of `[host]` and `[[device]]`": schema.ComputerTable,
    "`[device.limits]` and `[host.limits]`": schema.Limited,
    "`endpoint_` keys, of `[host]`, `[host.worker]` and `[[device]]`": schema.End,
}
_TABLES = re.compile(r"(?<=<!-- keys: begin -->\n).*(?=<!-- keys: end -->)", re.DOTALL)


def page() -> str:
    """The page with the keys that the parser knows."""
    return _TABLES.sub(lambda _: tables(), PAGE.read_text(encoding="utf-8"))


def tables() -> str:
    """A table for each section."""
    return "".join(
        f"\n### {title}\n\n| key | default | |\n|---|---|---|\n{''.join(_rows(section))}"
        for title, section in _SECTIONS.items()
    )


def _rows(section: type[BaseModel]) -> Iterator[str]:
    """The section's own keys; those that it shares have a table of their own."""
    for name in section.__annotations__:
        field = section.model_fields[name]
        default = "" if field.default is None else f"`{json.dumps(field.default, default=str)}`"
        default = "required" if field.is_required() else default
        yield f"| `{name}` | {default} | {field.description} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
