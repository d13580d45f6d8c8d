"""VGG-16 (Simonyan and Zisserman, configuration D), whole or its convolutions and pools only."""

from models.onnx_file.builder import NetworkBuilder, NetworkTensor, square
from models.onnx_file.stored import StoredModel

SEED = 16
# Channels and number of 3x3 convolutions of each stage; a 2x2 maximum ends it.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
CLASSES = 1000


def vgg16(side: int, *, classifier: bool) -> StoredModel:
    """(1, 3, side, side) -> logits (1, 1000); without its classifier, the map that pool5 makes.

    fc6 reads whatever map pool5 makes: 7x7x512 for side 224, 8x8x512 for side 256.
    """
    net = NetworkBuilder(f"vgg16_{side}" + ("" if classifier else "_conv"), SEED)
    x = net.input("image", (1, 3, side, side))
    for stage, (channels, convolutions) in enumerate(STAGES, start=1):
        for index in range(1, convolutions + 1):
            x = x.conv(f"conv{stage}_{index}", channels, square(3)).relu()
        x = x.max_pool(f"pool{stage}", square(2, 2))
    return net.stored(_classifier(x) if classifier else x)


def _classifier(x: NetworkTensor) -> NetworkTensor:
    x = x.flatten("flatten")
    x = x.gemm("fc6", 4096).relu()
    x = x.gemm("fc7", 4096).relu()
    return x.gemm("fc8", CLASSES)
