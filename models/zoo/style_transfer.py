"""Fast style transfer (Johnson et al., 2016), with instance normalisation (Ulyanov et al., 2017)
and, against checkerboards, upsampling before convolutions (Odena et al., 2016).
"""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel
from models.zoo.layers import instance_norm, reflection_pad, upsample

SEED = 36
SIDE = 224
CHANNELS = (32, 64, 128)
RESIDUALS = 5


def style_transfer() -> StoredModel:
    """(1, 3, 224, 224) -> (1, 3, 224, 224)."""
    net = NetworkBuilder("style_transfer", SEED)
    x = net.input("image", (1, 3, SIDE, SIDE))
    x = _conv(x, "conv1", CHANNELS[0], 9).relu()
    x = _conv(x, "conv2", CHANNELS[1], 3, 2).relu()
    x = _conv(x, "conv3", CHANNELS[2], 3, 2).relu()
    for index in range(1, RESIDUALS + 1):
        y = _conv(x, f"res{index}a", CHANNELS[2], 3).relu()
        x = _conv(y, f"res{index}b", CHANNELS[2], 3).add(f"res{index}", x)
    x = _conv(upsample(x, "up1", 2), "deconv1", CHANNELS[1], 3).relu()
    x = _conv(upsample(x, "up2", 2), "deconv2", CHANNELS[0], 3).relu()
    return net.stored(reflection_pad(x, "output_pad", 4).conv("output", 3, square(9, pad=0)))


def _conv(
    x: NetworkTensor, name: str, channels: int, kernel: int, stride: int = 1
) -> NetworkTensor:
    padded = reflection_pad(x, f"{name}_pad", kernel // 2)
    return instance_norm(padded.conv(name, channels, square(kernel, stride, pad=0)))
