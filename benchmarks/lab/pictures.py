"""Networks of the catalogue, asked as a camera would ask them.

The untrained ones take tensors: nothing says how a picture becomes one. In the lab their pixels do
by a scale alone, so that a picture travels as bytes, for every strategy alike.
"""

from __future__ import annotations

from pathlib import Path

from models import catalogue
from models.catalogue import LoadedModel
from models.guess import takes_pictures
from models.importer import load_graph
from models.installed import Store
from models.usual import image_input
from models.vision.sidecar import Sidecar


def short_name(model: str) -> str:
    """What a model of the catalogue, or of an .onnx file, is called in results."""
    return Path(model).stem if model.endswith(".onnx") else model


def installed(name: str, store: Store) -> str:
    """Where the model `name`, or of that .onnx file, is: in `store`, with a sidecar, if it takes a
    picture and had none; else under its own name.
    """
    short = short_name(name)
    found = store.find(short)
    if found is not None:
        return str(found.latest)
    loaded = catalogue.load(name)
    sidecar = for_pictures(loaded)
    if sidecar is None or sidecar is loaded.sidecar:
        return name
    store.add(short, loaded.proto.SerializeToString(), sidecar)
    return installed(short, store)


def for_pictures(loaded: LoadedModel) -> Sidecar | None:
    """The model's sidecar, or one by which its picture is pixels; None where it takes none."""
    if loaded.sidecar is not None:
        return loaded.sidecar
    graph = load_graph(loaded.proto, loaded.name)
    if not takes_pictures(graph):
        return None
    return Sidecar(
        name=loaded.name,
        task="tensor",
        description="of the catalogue, for pictures",
        licence="as imbrex",
        source="built",
        trained=loaded.trained,
        labels=(),
        input=image_input(graph, "tensor", "unit", "stretch"),
        head=None,
    )
