"""The networks that imbrex knows by name, and how any network is brought into memory.

A model is given by its catalogue name, the name of an added model (`installed`), or the path of an
`.onnx` file. Its sidecar, `NAME.json` beside `NAME.onnx`, describes how images become its input and
how its output becomes an answer; a model without a sidecar takes and returns tensors.
"""

import difflib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from onnx import ModelProto

from models.catalogue.guess import written_size
from models.catalogue.installed import Store
from models.catalogue.resnet import resnet18, resnet50
from models.catalogue.vgg import vgg16
from models.graph.sizes import Size, bind, inputs_of, open_axes, split_name
from models.onnx_file.builder import UNTRAINED, WEIGHTS_KEY
from models.onnx_file.model_file import file_at, read_model
from models.onnx_file.stored import StoredModel
from models.vision.head import VisionTask
from models.vision.sidecar import Sidecar, sidecar_path
from models.vision.sidecar import load as load_sidecar
from protos.errors import NotFound
from protos.rooms import imported, is_installed

_DIGITS = Path(__file__).parents[1] / "digits" / "digits.onnx"


@dataclass(frozen=True, slots=True)
class Entry:
    """One network of the catalogue. Most untrained ones have no sidecar: they take and return
    tensors, whatever task their layers were designed for.

    Its source is a file that is installed with imbrex, a function that builds it at each load, or
    the name of one, `package.module:function`, in a package that can be deleted; so is its
    sidecar's.
    """

    name: str
    description: str
    source: Path | str | Callable[[], StoredModel]
    task: VisionTask = "tensor"
    trained: bool = False
    sidecar: str = ""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A network that was found; `sidecar` is None if it takes tensors, `file` is the SHA-256 of its
    ONNX file, empty if it has none.
    """

    name: str
    stored: StoredModel = field(repr=False)
    sidecar: Sidecar | None
    trained: bool
    file: str = ""

    @property
    def proto(self) -> ModelProto:
        """The ONNX model with all of its weights in memory; a new copy each time."""
        return self.stored.complete()


def _untrained(name: str, description: str, build: Callable[[], StoredModel]) -> Entry:
    return Entry(name, f"{description} ({UNTRAINED})", build)


def _of_zoo(name: str, description: str, function: str) -> Entry:
    return Entry(name, f"{description} ({UNTRAINED})", f"models.zoo.{function}")


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "digits",
            "handwritten digits on a sheet, 416x416",
            _DIGITS,
            task="detection",
            trained=True,
        ),
        _untrained("vgg16", "VGG-16, 224x224", partial(vgg16, 224, classifier=True)),
        _untrained("vgg16-256", "VGG-16, 256x256", partial(vgg16, 256, classifier=True)),
        _untrained(
            "vgg16-conv",
            "VGG-16's 13 convolutions and pools, 224x224",
            partial(vgg16, 224, classifier=False),
        ),
        _untrained(
            "vgg16-256-conv",
            "VGG-16's 13 convolutions and pools, 256x256",
            partial(vgg16, 256, classifier=False),
        ),
        _of_zoo("yolov2", "YOLOv2, 416x416", "darknet:yolov2"),
        _untrained("resnet18", "ResNet-18, 224x224", resnet18),
        _untrained("resnet50", "ResNet-50 v1.5, 224x224", resnet50),
        _of_zoo("inceptionv3", "Inception-v3, 299x299", "inception:inceptionv3"),
        _of_zoo("alexnet", "AlexNet, 224x224", "classic:alexnet"),
        _of_zoo("lenet5", "LeNet-5, 28x28", "classic:lenet5"),
        _of_zoo("squeezenet", "SqueezeNet 1.0, 224x224", "classic:squeezenet"),
        _of_zoo("googlenet", "GoogLeNet (Inception-v1), 224x224", "classic:googlenet"),
        _of_zoo("densenet121", "DenseNet-121, 224x224", "densenet:densenet121"),
        _of_zoo("mobilenetv2", "MobileNetV2 1.0, 224x224", "inverted_residuals:mobilenetv2"),
        _of_zoo("mobilenetv3", "MobileNetV3-Large, 224x224", "mobilenetv3:mobilenetv3"),
        _of_zoo("shufflenetv2", "ShuffleNetV2 1.0x, 224x224", "shufflenetv2:shufflenetv2"),
        _of_zoo(
            "efficientnet-lite0",
            "EfficientNet-Lite0, 224x224",
            "inverted_residuals:efficientnet_lite0",
        ),
        _of_zoo("convnext-tiny", "ConvNeXt-T, 224x224", "convnext:convnext_tiny"),
        _of_zoo("yolov3-tiny", "YOLOv3-tiny, 416x416", "darknet:yolov3_tiny"),
        replace(
            _of_zoo("yolov8n", "YOLOv8n, 640x640", "yolov8:yolov8n"),
            task="detection",
            sidecar="models.zoo.yolov8:yolov8n_sidecar",
        ),
        _of_zoo("unet", "U-Net, unpadded, 252x252 to 68x68", "unet:unet"),
        _of_zoo("deeplabv3", "DeepLabv3 on MobileNetV2, 513x513", "inverted_residuals:deeplabv3"),
        _of_zoo("espcn", "ESPCN, super-resolution by 3 of 224x224", "espcn:espcn"),
        _of_zoo("style-transfer", "fast style transfer, 224x224", "style_transfer:style_transfer"),
    )
}
_NAMES = tuple(
    name
    for name, entry in ENTRIES.items()
    if not isinstance(entry.source, str) or is_installed(entry.source)
)


def names() -> tuple[str, ...]:
    """Every name in the catalogue whose network this installation has."""
    return _NAMES


def entry(name: str) -> Entry:
    """The catalogue's entry for `name`.

    Raises:
        NotFound: no such name.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    installed = Store().installed()
    closest = difflib.get_close_matches(name, (*_NAMES, *installed), n=1)
    hint = f"Did you mean {closest[0]!r}? " if closest else ""
    raise NotFound(
        cause=f"there is no model {name!r}",
        cure=f"{hint}Known models are {', '.join((*_NAMES, *installed))}; `imbrex models pull` "
        "and `add` install others; or give the path of an .onnx file.",
    )


def load(name_or_path: str | Path) -> LoadedModel:
    """Builds or reads a network. A string is a catalogue name first, then the name of an added
    model, then a path; it may end in a size for dimensions that the network leaves open, as in
    `net.onnx@480x640`.

    Raises:
        NotFound: no such name, or no such file.
        BadRequest: the file is not a usable ONNX model, its sidecar is wrong, or its size is fixed
            and another.
    """
    if isinstance(name_or_path, str):
        named, size = split_name(name_or_path)
        loaded = _load_named(named)
    else:
        size, loaded = None, _load_file(name_or_path)
    # The model with its open dimensions fixed: to `size`, else to its sidecar's, else to the one
    # that its exporter has written down.
    proto, sidecar = loaded.stored.proto, loaded.sidecar
    inputs, form = inputs_of(proto), sidecar.input if sidecar else None
    if size is None:
        known = Size(*form.size) if form else written_size(proto)
        if known and any(open_axes(value) for value in inputs):
            bind(inputs, known)
        return loaded
    bind(inputs, size)
    if sidecar is not None and form is not None:
        longest = max(size.height, size.width)
        shorter = form.resize_shorter and max(form.resize_shorter, longest)
        form = replace(form, size=(size.height, size.width), resize_shorter=shorter)
        sidecar = replace(sidecar, input=form)
    return replace(loaded, name=f"{loaded.name}@{size}", sidecar=sidecar)


def _load_named(name_or_path: str) -> LoadedModel:
    is_path = name_or_path.lower().endswith(".onnx") or os.sep in name_or_path
    if is_path and name_or_path not in ENTRIES:
        return _load_file(Path(name_or_path))
    if name_or_path not in _NAMES and (stored := Store().find(name_or_path)) is not None:
        return replace(_load_file(stored.latest), name=name_or_path)
    found = entry(name_or_path)
    if isinstance(found.source, Path):
        return _load_file(found.source)
    build = imported(found.source) if isinstance(found.source, str) else found.source
    sidecar = imported(found.sidecar)() if found.sidecar else None
    return LoadedModel(found.name, build(), sidecar, found.trained)


def _load_file(path: Path) -> LoadedModel:
    path = file_at(path)
    stored = read_model(path)
    beside = sidecar_path(path)
    sidecar = load_sidecar(beside) if beside.is_file() else None
    written = {item.key: item.value for item in stored.proto.metadata_props}
    trained = sidecar.trained if sidecar else written.get(WEIGHTS_KEY) != UNTRAINED
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return LoadedModel(path.stem, stored, sidecar, trained, sha256)
