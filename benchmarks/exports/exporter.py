"""Run in an environment with PyTorch (`benchmarks.exports` makes one): writes networks as ONNX.

    python exporter.py FOLDER NAME [NAME ...]

A name is a network's, and after dots how it is exported: `script` (TorchScript) or `dynamo`, and
`opset13` for example; Ultralytics' have `nms` (boxes are suppressed in the graph) or `half`
(weights of 16 bits), and may have a size: `yolov8n@2176x3840`. Weights are random, the same each
time: nothing is downloaded, and what is measured does not depend on them.

Trained files that packages ship (`ppocr_det@480x640`) get a fixed size.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

SEED = 0


def _without_kernels() -> None:
    """torchvision's own kernels may be built for another PyTorch than the one for CPUs alone. Then
    what it asks for when it is imported is declared here; only `nms` is ever called.
    """
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou) -> Tensor")
    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou) -> Tensor")

    @torch.library.impl("torchvision::nms", "CPU")
    def nms(dets: torch.Tensor, scores: torch.Tensor, iou: float) -> torch.Tensor:
        kept, left = [], scores.argsort(descending=True)
        while left.numel():
            best, left = left[0], left[1:]
            kept.append(best)
            low = torch.maximum(dets[best, :2], dets[left, :2])
            high = torch.minimum(dets[best, 2:], dets[left, 2:])
            shared = (high - low).clamp(min=0).prod(dim=-1)
            sizes = (dets[:, 2:] - dets[:, :2]).prod(dim=-1)
            left = left[shared <= iou * (sizes[best] + sizes[left] - shared)]
        return torch.stack(kept) if kept else torch.empty(0, dtype=torch.long)


try:
    import torchvision
except RuntimeError:  # torchvision::nms does not exist
    for half_imported in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[half_imported]
    _without_kernels()
    import torchvision
import timm  # noqa: E402
from ultralytics import RTDETR, YOLO  # noqa: E402

_TIMM = {
    "deit_tiny": "deit_tiny_patch16_224",
    "repvit_m0_9": "repvit_m0_9",
    "mobilenetv4_conv_small": "mobilenetv4_conv_small",
    "mobilenetv4_hybrid": "mobilenetv4_hybrid_medium",
    "fastvit_t8": "fastvit_t8",
    "efficientvit_b0": "efficientvit_b0",
    "edgenext": "edgenext_xx_small",
    "convnextv2_atto": "convnextv2_atto",
    "levit_128": "levit_128",
    "mobilevit": "mobilevit_xxs",
}
_SEGMENTATION = torchvision.models.segmentation
_DETECTION = torchvision.models.detection
_NO_WEIGHTS = {"weights": None, "weights_backbone": None}
_TORCHVISION: dict[str, tuple[Callable[[], Any], int]] = {
    "vit_b_16": (lambda: torchvision.models.vit_b_16(weights=None), 224),
    "vit_l_16": (lambda: torchvision.models.vit_l_16(weights=None), 224),
    "swin_t": (lambda: torchvision.models.swin_t(weights=None), 224),
    "shufflenet_v2": (lambda: torchvision.models.shufflenet_v2_x1_0(weights=None), 224),
    "lraspp": (lambda: _SEGMENTATION.lraspp_mobilenet_v3_large(**_NO_WEIGHTS), 320),
    "fasterrcnn": (lambda: _DETECTION.fasterrcnn_mobilenet_v3_large_320_fpn(**_NO_WEIGHTS), 320),
    "ssdlite320": (lambda: _DETECTION.ssdlite320_mobilenet_v3_large(**_NO_WEIGHTS), 320),
}
_ULTRALYTICS = (
    *("yolov8n", "yolov8n-seg", "yolov8s", "yolov9t", "yolov9s", "yolov9m", "yolov9c", "yolo11n"),
    *("yolo11s", "yolo12n", "yolo26n", "rtdetr-l", "rtdetr-resnet50"),
)
_OPSET = "opset"
# Package and file.
_SHIPPED = {
    "ppocr_det": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "ppocr_rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "ppocr_cls": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "nudenet": ("nudenet", "320n.onnx"),
}


def export(name: str, folder: Path) -> None:
    """One network as one file."""
    network, *how = name.split(".")
    target = folder.resolve() / f"{name}.onnx"
    torch.manual_seed(SEED)
    network, _, sides = network.partition("@")
    opset = next((int(word.removeprefix(_OPSET)) for word in how if word.startswith(_OPSET)), None)
    if network in _ULTRALYTICS:
        made = (RTDETR if network.startswith("rtdetr") else YOLO)(f"{network}.yaml")
        imgsz = [int(side) for side in sides.split("x")] if sides else 640
        asked = {"half": "half" in how, "nms": "nms" in how, "opset": opset}
        # It writes into the working directory, whatever was asked under the network's own name.
        with tempfile.TemporaryDirectory() as aside, contextlib.chdir(aside):
            shutil.move(made.export(format="onnx", imgsz=imgsz, simplify=False, **asked), target)
        return
    if network in _SHIPPED:
        package, file = _SHIPPED[network]
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.submodule_search_locations
        proto = onnx.load(Path(found.submodule_search_locations[0]) / file)
        (read,) = proto.graph.input
        sizes = (1, 3, *map(int, sides.split("x")))
        for dim, size in zip(read.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
        onnx.save(proto, target)
        return
    if network in _TIMM:
        model = timm.create_model(_TIMM[network], pretrained=False, exportable=True)
        size = model.default_cfg["input_size"][-1]
    else:
        make, size = _TORCHVISION[network]
        model = make()
    for weights in model.parameters():
        if not weights.any():  # as some heads begin: the answer would always be zero
            torch.nn.init.normal_(weights, std=0.02)
    picture = torch.rand(1, 3, size, size)
    torch.onnx.export(
        model.eval(),
        (picture,),
        str(target),
        dynamo="dynamo" in how,
        opset_version=opset,
        external_data=False,
        input_names=["images"],
    )


if __name__ == "__main__":
    for name in sys.argv[2:]:
        export(name, Path(sys.argv[1]))
