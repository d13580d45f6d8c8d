"""What carries a cluster's messages: a star of links, a switch, or the air [DESIGN, Media]."""

from __future__ import annotations

from typing import Literal

Medium = Literal["star", "air", "switch"]
