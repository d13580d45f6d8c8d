"""The demo's request, and the whole model's answer to compare with."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coordinator.serving.common import names
from coordinator.serving.common.tensors import write_tensors
from imbrex.calls import media_type, read_file
from imbrex.demo.emulation.whole_maps import Shapes, maps_of
from models.catalogue import catalogue
from models.check import agreement
from models.cut.units import Network, divide
from models.digits.examples import examples
from models.graph.graph import Graph
from models.onnx_file.importer import graph_of
from models.run.reference import random_inputs
from models.vision.quality import GroundTruth
from models.vision.sidecar import Sidecar
from protos.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Question:
    """A request body, and what is known about the right answer.

    `argument` names the model to `imbrex coordinator`, `model` is its name there. `whole` judges
    raw outputs by the whole model's, `truth` are the objects in the picture, if known. `maps` are
    the shapes of its tensors, `network` the model in units.
    """

    argument: str
    model: str
    trained: bool
    body: bytes = field(repr=False)
    media_type: str
    shown_as: str
    whole: agreement.Reference = field(repr=False)
    maps: Shapes = field(repr=False)
    network: Network = field(repr=False)
    truth: tuple[GroundTruth, ...] | None = None


def prepare(model: str, image: Path | None) -> Question:
    """Loads the model, reads the picture (or makes seeded tensors), and runs the whole model here
    in plain onnxruntime. The model is unloaded afterwards, as the cluster needs the memory.

    Raises:
        NotFound, BadRequest: no such model or picture, or they do not fit.
    """
    loaded = catalogue.load(model)
    graph = graph_of(loaded.stored, loaded.name)
    if loaded.sidecar is None:
        if image is not None:
            raise BadRequest(
                cause=f"{loaded.name} takes tensors, not pictures: it has no sidecar",
                cure="Omit IMAGE to send a seeded random tensor",
            )
        feeds = random_inputs(graph)
        body, kind, shown = write_tensors(feeds), names.NPZ, "a seeded random tensor"
    else:
        file = image or examples()[0].path
        body, kind, shown = read_file(file), media_type(file), file.name
        feeds = picture_feeds(body, loaded.sidecar, graph)
    known = model in catalogue.names()
    return Question(
        argument=model if known else str(Path(model).resolve()),
        model=loaded.name,
        trained=loaded.trained,
        body=body,
        media_type=kind,
        shown_as=shown,
        whole=agreement.reference_of(loaded.proto, graph, feeds),
        maps=maps_of(graph),
        network=divide(graph),
        truth=next(
            (example.truth for example in examples() if example.path.read_bytes() == body), None
        )
        if loaded.sidecar and loaded.name == "digits"
        else None,
    )


def picture_feeds(body: bytes, sidecar: Sidecar, graph: Graph) -> dict[str, np.ndarray]:
    """The model's input for a picture, as the coordinator makes it."""
    from models.vision.preprocess import decode_image, image_to_tensor

    form = sidecar.picture
    tensor, _ = image_to_tensor(decode_image(body), form, graph.tensors[form.name])
    return {form.name: tensor}
