"""AOFL's measured results, read off its Figures 9 to 13, Table 2 and section 5.

One core of a Raspberry Pi 3B+ per device, Darknet with NNPACK, convolutions only, WiFi at
93.7 Mbps unless a row says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VGG, YOLO, RESNET = "vgg16-256-conv", "yolov2", "resnet50"

# (model, GHz, strategy, devices) -> seconds [Figure 9; "single" from its bars of one device].
SECONDS: Mapping[tuple[str, float, str, int], float] = {
    (VGG, 1.0, "single", 1): 21.7,
    (VGG, 1.0, "ofl", 8): 6.7,
    (VGG, 1.0, "efl", 8): 10.3,
    (VGG, 1.0, "lw", 8): 23.0,
    (VGG, 0.5, "single", 1): 43.0,
    (VGG, 0.5, "ofl", 8): 11.6,
    (VGG, 0.5, "efl", 8): 20.0,
    (VGG, 0.5, "lw", 8): 31.0,
    (YOLO, 1.0, "single", 1): 18.8,
    (YOLO, 1.0, "ofl", 8): 11.7,
    (YOLO, 1.0, "efl", 8): 14.0,
    (YOLO, 1.0, "lw", 8): 27.0,
    (YOLO, 0.5, "single", 1): 38.5,
    (YOLO, 0.5, "ofl", 8): 20.5,
    (YOLO, 0.5, "efl", 8): 26.0,
    (YOLO, 0.5, "lw", 8): 33.0,
}

# (model, GHz) -> speed-up over one device by the number of devices [Figures 10 and 13b].
SPEEDUPS: Mapping[tuple[str, float], Mapping[int, float]] = {
    (VGG, 1.0): {2: 1.6, 4: 2.6, 8: 3.2},
    (VGG, 0.5): {2: 1.7, 4: 2.8, 8: 3.7},
    (YOLO, 1.0): {2: 1.26, 4: 1.48, 8: 1.6},
    (YOLO, 0.5): {2: 1.35, 4: 1.72, 8: 1.88},
    (RESNET, 0.5): {2: 1.5, 4: 2.1, 8: 2.3},
}

# Section 5.3: (least, most) on 2 to 8 devices.
OFL_OVER_EFL = (1.2, 1.7)
EFL_SAVES_PERCENT_OF_LW_AT_750_MHZ = (27.7, 47.5)
OFL_SAVES_PERCENT_OF_EFL_AT_750_MHZ = (14.1, 41.5)
LW_BEST_AT_ON_VGG = 4

# Section 5.5: percent that a strategy takes longer at 25.1 than at 93.7 Mbps, "on average". The
# text gives LW two values and does not name their networks: the larger is taken for VGG-16, whose
# maps are larger. The others' values are for both networks together.
LONGER_AT_25_MBPS = {
    ("lw", VGG): 86.4,
    ("lw", YOLO): 59.8,
    ("efl", VGG): 4.8,
    ("efl", YOLO): 4.8,
    ("ofl", VGG): 14.3,
    ("ofl", YOLO): 14.3,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A heterogeneous cluster [Table 2]: clocks in GHz, the fastest first; `cores` by position
    where there are more than one; how many of the fastest devices AOFL used, and percent saved
    of equal tiles on all eight.
    """

    name: str
    ghz: tuple[float, ...]
    devices: int
    saved_percent: float | None
    cores: Mapping[int, int] = field(default_factory=dict)


# Case 1-2 leaves its single-core devices open ("..."): they run at the slowest clock of Cluster-2.
CASES = (
    Case("1-1", (1.0, 1.0) + 6 * (0.4,), 2, 15.8),
    Case("1-2", (1.0,) + 7 * (0.4,), 1, None, {0: 4}),
    Case("2-1", (1.0, 1.0, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4), 6, 18.7),
    Case("2-2", (1.0, 1.0, 0.8, 0.8, 0.8, 0.8, 0.6, 0.6), 8, 12.3),
)
