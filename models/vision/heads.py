"""Heads read a model's outputs as the key `head` of its sidecar says.

A new head is a pydantic dataclass, and an entry in `Head`. Scores of a detection head
are those of the classes in `labels`, in order.
"""

from typing import get_args, get_type_hints

from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.box_lists import EndToEnd, RtDetr, YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassScores
from models.vision.head import OutputReader, VisionTask
from models.vision.repainted import Repainted
from models.vision.ssd import Ssd
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments

TASKS: tuple[VisionTask, ...] = get_args(VisionTask)

Head = (
    ClassScores
    | YoloV2
    | YoloV3
    | YoloBoxes
    | YoloSegments
    | YoloPose
    | YoloRotated
    | EndToEnd
    | RtDetr
    | YoloX
    | Ssd
    | ClassMap
    | Repainted
)

# By the key `type` of a sidecar's head.
HEADS: dict[str, type[OutputReader]] = {
    type_: head for head in get_args(Head) for type_ in get_args(get_type_hints(head)["type"])
}
