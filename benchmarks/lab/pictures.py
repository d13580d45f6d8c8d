"""Networks of the catalogue, asked as a camera would ask them.

The untrained ones take tensors: nothing says how a picture becomes one. In the lab their pixels do
by a scale alone, so that a picture travels as bytes, for every strategy alike. A detector's random
weights find nothing: its threshold is set so that of its boxes one in a hundred passes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from models.catalogue import catalogue
from models.catalogue.catalogue import LoadedModel
from models.catalogue.guess import guess, metadata
from models.catalogue.installed import Store
from models.catalogue.loading import network_of
from models.graph.graph import Graph
from models.onnx_file.importer import load_graph
from models.run.reference import WholeModel, random_inputs
from models.vision.box_lists import EndToEnd, RtDetr, YoloBoxes
from models.vision.model_families import head_for, image_input, takes_pictures
from models.vision.pixels import as_values
from models.vision.sidecar import Sidecar

PASSING = 0.01


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
    plain = Sidecar(
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
    return _detector(loaded, graph, plain) or plain


def _detector(loaded: LoadedModel, graph: Graph, plain: Sidecar) -> Sidecar | None:
    told = metadata(loaded.proto)
    found = guess(graph, told, "detection", 0)
    head = head_for(graph, "detection", found.labels, "unit", told) if found.labels else None
    if not isinstance(head, YoloBoxes | EndToEnd | RtDetr) or found.labels is None:
        return None
    network = network_of(replace(loaded, sidecar=plain))
    feeds = as_values(network.graph, random_inputs(network.graph))
    outputs = WholeModel(loaded.proto, threads=0).run(feeds)
    ((name, selection),) = head.selections(graph.output_shapes, len(found.labels)).items()
    least = float(np.quantile(selection.best(outputs[name]), 1 - PASSING))
    chosen = replace(head, min_score=least)
    return replace(plain, task="detection", labels=found.labels, head=chosen)
