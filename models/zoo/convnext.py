"""ConvNeXt-T (Liu et al., 2022), in its channels-first form: depthwise 7x7, layer normalisation
over channels, two 1x1 convolutions with GELU between them, and a learnt scale per channel.
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import channel_norm, depthwise, gelu

SEED = 28
SIDE = 224
CLASSES = 1000
# Channels and blocks of each stage.
STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
EXPANSION = 4
EPSILON = 1e-6
# Trained scales begin at 1e-6; with that, untrained blocks would leave no trace in the answer.
BRANCH_SCALE = 0.3


def convnext_tiny() -> StoredModel:
    """(1, 3, 224, 224) -> logits (1, 1000)."""
    net = NetworkBuilder("convnext_tiny", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = channel_norm(x.conv("stem", STAGES[0][0], square(4, 4, pad=0)), "stem_norm", EPSILON)
    for stage, (channels, count) in enumerate(STAGES, start=1):
        if stage > 1:
            x = channel_norm(x, f"down{stage}_norm", EPSILON)
            x = x.conv(f"down{stage}", channels, square(2, 2, pad=0))
        for index in range(1, count + 1):
            x = _block(x, f"block{stage}_{index}")
    x = channel_norm(x.global_average_pool("pool"), "norm", EPSILON).flatten("flatten")
    return net.stored(x.gemm("fc", CLASSES))


def _block(x: NetworkTensor, name: str) -> NetworkTensor:
    net, channels = x.network, x.shape[1]
    y = depthwise(x, f"{name}_depthwise", square(7), bias=True)
    y = channel_norm(y, f"{name}_norm", EPSILON)
    y = gelu(y.conv(f"{name}_expand", channels * EXPANSION, square(1)))
    y = y.conv(f"{name}_project", channels, square(1))
    scale = net.uniform_weight(
        f"{name}.scale", (channels, 1, 1), about=BRANCH_SCALE, spread=BRANCH_SCALE / 3
    )
    return net.node("Mul", f"{name}_scaled", [y.name, scale], y.shape).add(name, x)
