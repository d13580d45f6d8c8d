"""Heads read a model's outputs as the key `head` of its sidecar says. One file for each.

A new head is a file with its pydantic dataclass, and an entry in `Head`. Scores of a detection head
are those of the classes in `labels`, in order.
"""

from typing import get_args, get_type_hints

from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.class_map import ClassMap
from models.vision.class_scores import ClassScores
from models.vision.end_to_end import EndToEnd
from models.vision.head import OutputReader, VisionTask
from models.vision.repainted import Repainted
from models.vision.rtdetr import RtDetr
from models.vision.ssd import Ssd
from models.vision.yolo_boxes import YoloBoxes
from models.vision.yolo_parts import YoloPose, YoloRotated, YoloSegments
from models.vision.yolox import YoloX

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
