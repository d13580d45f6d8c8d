"""Costs of computing and sending: profiles, regressions, links, corrections."""

from typing import Literal

# What carries a cluster's messages [DESIGN, Media].
Medium = Literal["star", "air", "switch"]
