"""Weights in the order in which kernels read them.

onnxruntime's kernels for products of matrices and for quantised convolutions read weights in an
order of their own. A session packs them when it is made, into memory of its own; if it is not
allowed to, each run packs them again, which takes two thirds of a quantised ResNet-50's time, and a
third of that of ViT-B's tiles (docs/adr/0002-sessions.md). So what onnxruntime can keep packed
goes into the blob store when a program is prepared, and sessions map it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from protos.daemon.process_memory import free_bytes
from worker.engines.ort_session import make_session, options
from worker.programs.graphs import EMBED_BELOW_BYTES, external_weights, length_of
from worker.programs.store import BlobStore, hash_file

# Packing takes as much memory again, also when a session is made. Larger weights are read as they
# are: they belong to fully connected layers, whose single row is computed as fast without.
_MOST_BYTES = 32_000_000
_PEAK_OVER_WEIGHT = 3
# A program's packed weights and those as they were, which are read while sessions are made, would
# displace each other in the memory of a device that holds its share of a network larger than it.
_SHARE_OF_MEMORY = 0.25
# Weights that are packed together, and share a blob.
_GROUP_BYTES = 4_000_000
# onnxruntime's keys of a weight's packed forms begin with it.
_PACKED = "prepacked_"
# Kernels of float convolutions read weights as they are.
_READ_AS_THEY_ARE = frozenset({"Conv", "FusedConv"})
_SAVED, _SAVED_WEIGHTS = "packed.onnx", "packed.bin"


def pack(model: ModelProto, store: BlobStore, folder: Path, memory_bytes: int) -> None:
    """Keeps the packed weights of an optimised graph in the store, and makes the graph refer to
    them; its weights are in the store already. `folder` is for temporary files, `memory_bytes` what
    the worker may use.

    Raises:
        ImbrexError: memory or disk are short.
    """
    weights = _packable(model)
    fits = sum(map(length_of, weights)) <= memory_bytes * _SHARE_OF_MEMORY
    most = min(_MOST_BYTES, free_bytes() // _PEAK_OVER_WEIGHT) if fits else 0
    for weight in weights:
        if length_of(weight) > most:
            _declare_input(model, weight)
    for group in _groups([weight for weight in weights if length_of(weight) <= most]):
        _pack_group(model, group, store, folder)


def is_packed(weight: TensorProto) -> bool:
    """Whether the weight's blob holds it packed, too."""
    return any(entry.key.startswith(_PACKED) for entry in weight.external_data)


def packed_bytes(weight: TensorProto) -> int:
    """Bytes of a weight's packed forms."""
    forms = [entry.value for entry in weight.external_data if entry.key.startswith(_PACKED)]
    # A name and its buffers: NAME|OFFSET;LENGTH;CHECKSUM|...
    return sum(int(buffer.split(";")[1]) for form in forms for buffer in form.split("|")[1:])


def _packable(model: ModelProto) -> list[TensorProto]:
    """The external weights that other nodes than float convolutions read."""
    read = {
        name
        for node in model.graph.node
        if node.op_type not in _READ_AS_THEY_ARE
        for name in node.input
    }
    return [weight for weight in external_weights(model) if weight.name in read]


def _groups(weights: Sequence[TensorProto]) -> Iterator[list[TensorProto]]:
    group: list[TensorProto] = []
    for weight in weights:
        if group and sum(map(length_of, group)) + length_of(weight) > _GROUP_BYTES:
            yield group
            group = []
        group.append(weight)
    if group:
        yield group


def _pack_group(
    model: ModelProto, group: Sequence[TensorProto], store: BlobStore, folder: Path
) -> None:
    """Has onnxruntime pack these weights and save them, which is one blob."""
    alone = ModelProto()
    alone.CopyFrom(model)
    names = {weight.name for weight in group}
    for weight in external_weights(alone):
        if weight.name not in names:
            _declare_input(alone, weight)
            alone.graph.initializer.remove(weight)
    chosen = options(store.blobs, 1, optimise=False, packed=True)
    chosen.optimized_model_filepath = str(folder / _SAVED)
    for key, value in (
        ("session.save_external_prepacked_constant_initializers", "1"),
        ("session.optimized_model_external_initializers_file_name", _SAVED_WEIGHTS),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(EMBED_BELOW_BYTES)),
    ):
        chosen.add_session_config_entry(key, value)
    make_session(alone.SerializeToString(), chosen)
    saved = ModelProto.FromString((folder / _SAVED).read_bytes())
    packed = {weight.name: weight for weight in external_weights(saved) if is_packed(weight)}
    if not packed:
        return
    file = folder / _SAVED_WEIGHTS
    store.make_room(file.stat().st_size)
    sha256 = hash_file(file)
    store.add_file(file, sha256)
    for weight in group:
        if weight.name in packed:
            weight.CopyFrom(packed[weight.name])
            for entry in weight.external_data:
                if entry.key == "location":
                    entry.value = sha256


def _declare_input(model: ModelProto, weight: TensorProto) -> None:
    """What is also an input is not constant, so a session does not pack it."""
    if weight.name not in {value.name for value in model.graph.input}:
        model.graph.input.append(
            helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        )
