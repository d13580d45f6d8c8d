"""YOLOX (Ge et al., 2021), for its published times: CSPDarknet, a pyramid up and down, a decoupled
head, and no normalisation, which exporters fold into the convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import depthwise, sigmoid, silu, upsample

SEED = 9
CLASSES = 80


@dataclass(frozen=True, slots=True)
class Form:
    """One of the published sizes: factors of repetitions and of channels, the side of its input in
    pixels, and whether 3x3 convolutions are depthwise ones followed by 1x1.
    """

    depth: float
    width: float
    side: int = 640
    depthwise: bool = False


FORMS = {
    "yolox-nano": Form(0.33, 0.25, side=416, depthwise=True),
    "yolox-tiny": Form(0.33, 0.375, side=416),
    "yolox-s": Form(0.33, 0.5),
    "yolox-m": Form(0.67, 0.75),
    "yolox-l": Form(1.0, 1.0),
}


def yolox(name: str) -> StoredModel:
    """(1, 3, side, side) -> three maps (1, 85, ...) at strides 8, 16 and 32."""
    net, form = NetworkBuilder(name, SEED), FORMS[name]
    return net.stored(*_Layers(form).maps(net.input("image", (1, 3, form.side, form.side))))


@dataclass(frozen=True, slots=True)
class _Layers:
    form: Form

    def maps(self, image: NetworkTensor) -> list[NetworkTensor]:
        net, base = image.network, int(64 * self.form.width)
        few = max(round(3 * self.form.depth), 1)
        x = _conv(image.space_to_depth("focus", 2), "stem", base, 3)
        features = []
        for stage, count in enumerate((few, 3 * few, 3 * few, few), start=2):
            channels = base << stage - 1
            x = self._wide(x, f"dark{stage}", channels, 2)
            if stage == 5:
                x = _pyramid_pool(x, "spp")
            x = self._partial(x, f"csp{stage}", channels, count, residual=stage < 5)
            features.append(x)
        _, eighth, sixteenth, deep = features
        lateral = _conv(deep, "lateral", 8 * base, 1)
        x = net.concat("join4", [upsample(lateral, "up4", 2), sixteenth])
        reduced = _conv(self._partial(x, "top4", 8 * base, few), "reduce", 4 * base, 1)
        x = net.concat("join3", [upsample(reduced, "up3", 2), eighth])
        fine = self._partial(x, "top3", 4 * base, few)
        x = net.concat("join_n3", [self._wide(fine, "down3", 4 * base, 2), reduced])
        middle = self._partial(x, "n3", 8 * base, few)
        x = net.concat("join_n4", [self._wide(middle, "down4", 8 * base, 2), lateral])
        coarse = self._partial(x, "n4", 16 * base, few)
        return [
            self._head(x, f"head{n}", 4 * base) for n, x in enumerate((fine, middle, coarse), 3)
        ]

    def _wide(self, x: NetworkTensor, name: str, channels: int, stride: int = 1) -> NetworkTensor:
        if self.form.depthwise:
            x = silu(depthwise(x, f"{name}_dw", square(3, stride), bias=True))
            return _conv(x, name, channels, 1)
        return _conv(x, name, channels, 3, stride)

    def _partial(
        self, x: NetworkTensor, name: str, channels: int, count: int, *, residual: bool = False
    ) -> NetworkTensor:
        """Half of the channels pass; the other half goes through `count` bottlenecks."""
        half = channels // 2
        y = _conv(x, f"{name}_a", half, 1)
        for index in range(count):
            part = f"{name}_{index}"
            deep = self._wide(_conv(y, f"{part}_in", half, 1), f"{part}_out", half)
            y = deep.add(part, y) if residual else deep
        joined = x.network.concat(f"{name}_join", [y, _conv(x, f"{name}_b", half, 1)])
        return _conv(joined, name, channels, 1)

    def _head(self, x: NetworkTensor, name: str, channels: int) -> NetworkTensor:
        x = _conv(x, f"{name}_stem", channels, 1)
        classes, boxes = (
            self._wide(self._wide(x, f"{name}_{of}1", channels), f"{name}_{of}2", channels)
            for of in ("class", "box")
        )
        parts = [
            boxes.conv(f"{name}_box", 4, square(1)),
            sigmoid(boxes.conv(f"{name}_object", 1, square(1))),
            sigmoid(classes.conv(f"{name}_class", CLASSES, square(1))),
        ]
        return x.network.concat(name, parts)


def _conv(
    x: NetworkTensor, name: str, channels: int, kernel: int, stride: int = 1
) -> NetworkTensor:
    return silu(x.conv(name, channels, square(kernel, stride)))


def _pyramid_pool(x: NetworkTensor, name: str) -> NetworkTensor:
    channels = x.shape[1]
    y = _conv(x, f"{name}_in", channels // 2, 1)
    pools = [y.max_pool(f"{name}_pool{kernel}", square(kernel)) for kernel in (5, 9, 13)]
    return _conv(x.network.concat(f"{name}_join", [y, *pools]), name, channels, 1)
