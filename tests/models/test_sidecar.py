from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.digits import SIDECAR
from models.vision.anchored_grids import YoloV2, YoloV3
from models.vision.box_lists import YoloBoxes, YoloX
from models.vision.classes import ClassMap, ClassScores
from models.vision.heads import TASKS
from models.vision.image_input import ImageInput
from models.vision.repainted import Repainted
from models.vision.sidecar import (
    Sidecar,
    SidecarError,
    dump,
    load,
    parse,
    sidecar_path,
)
from models.vision.ssd import Ssd
from protos.errors import BadRequest


def document_of(sidecar):
    return json.loads(dump(sidecar))


PATH = Path("net.json")

IMAGENET = ImageInput(
    name="input",
    size=(224, 224),
    resize="centre-crop",
    resize_shorter=256,
    color="RGB",
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    pad_value=0,
)
CLASSIFIER = Sidecar(
    name="net",
    task="classification",
    description="Names what is on a picture.",
    licence="MIT",
    source="somewhere",
    trained=True,
    labels=("cat", "dog"),
    input=IMAGENET,
    head=ClassScores("logits", 5),
)


def broken(change: dict, inside: str | None = None, base: Sidecar = CLASSIFIER) -> str:
    document = document_of(base)
    (document[inside] if inside else document).update(change)
    return json.dumps(document)


def without(key: str, inside: str | None = None) -> str:
    document = document_of(CLASSIFIER)
    del (document[inside] if inside else document)[key]
    return json.dumps(document)


def test_a_precision_brings_its_wire_unless_another_is_written() -> None:
    told = {each: parse(broken({"precision": each}), PATH) for each in ("exact", "fp16", "int8")}
    assert {name: each.allowed_wire for name, each in told.items()} == {each: each for each in told}
    both = parse(broken({"precision": "fp16", "wire": "int8"}), PATH)
    assert (both.precision, both.allowed_wire) == ("fp16", "int8")
    assert parse(without("precision"), PATH).precision == "exact"


@pytest.mark.parametrize("value", ["half", "", None, 16, ["fp16"]])
def test_a_precision_that_does_not_exist_is_refused_by_name(value: object) -> None:
    with pytest.raises(SidecarError, match="precision"):
        parse(broken({"precision": value}), PATH)


numbers = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)
sides = st.integers(1, 8192)
words = st.text(min_size=1).filter(str.strip)


anchors = st.lists(st.tuples(positive, positive), min_size=1, max_size=9).map(tuple)
scales = st.lists(st.tuples(anchors, sides), min_size=1, max_size=3)
shares = st.floats(0.001, 1)
detectors = (
    st.builds(YoloV2, st.just("yolov2"), anchors, sides, shares, shares)
    | st.builds(
        lambda each, *more: YoloV3(
            "yolov3", tuple(one for one, _ in each), tuple(one for _, one in each), *more
        ),
        scales,
        shares,
        shares,
    )
    | st.builds(YoloBoxes, st.sampled_from(["yolov5", "yolov8"]), shares, shares)
    | st.builds(
        YoloX,
        st.just("yolox"),
        st.lists(sides, min_size=1, max_size=4).map(tuple),
        shares,
        shares,
    )
    | st.builds(
        Ssd,
        st.just("ssd"),
        words,
        words,
        st.booleans(),
        st.sampled_from(["xyxy", "yxyx"]),
        st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3).map(tuple),
        st.tuples(positive, positive),
        shares,
        shares,
    )
)


@st.composite
def sidecars(draw: st.DrawFn) -> Sidecar:
    task = draw(st.sampled_from(TASKS))
    resize = draw(st.sampled_from(["letterbox", "stretch", "centre-crop"]))
    size = draw(st.tuples(sides, sides))
    shorter = draw(st.integers(max(size), 8192)) if resize == "centre-crop" else None
    three = st.tuples(numbers, numbers, numbers)
    heads = {
        "tensor": st.none(),
        "classification": st.builds(
            ClassScores, st.sampled_from(["softmax", "logits"]), st.integers(1, 1000)
        ),
        "detection": detectors,
        "segmentation": st.builds(
            ClassMap, st.sampled_from(["argmax", "threshold"]), numbers, st.none() | words
        ),
        "image-to-image": st.builds(Repainted, st.just("pixels"), positive, numbers),
    }
    return Sidecar(
        name=draw(words),
        task=task,
        description=draw(words),
        licence=draw(words),
        source=draw(words),
        trained=draw(st.booleans()),
        labels=draw(st.lists(st.text(), min_size=1, max_size=5).map(tuple)),
        input=ImageInput(
            draw(words),
            size,
            resize,
            "RGB",
            draw(positive),
            draw(three),
            draw(st.tuples(positive, positive, positive)),
            draw(st.integers(0, 255)),
            shorter,
        ),
        head=draw(heads[task]),
    )


@given(sidecars())
def test_dumped_sidecar_is_read_back_equal(sidecar: Sidecar) -> None:
    assert parse(dump(sidecar), PATH) == sidecar


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_text_that_is_no_sidecar_is_refused(text: str) -> None:
    with pytest.raises(SidecarError):
        parse(text, PATH)


@pytest.mark.parametrize("where", [None, "input", "head"])
def test_every_missing_key_is_named(where: str | None) -> None:
    document = document_of(CLASSIFIER)
    for key in sorted(
        {*(document[where] if where else document)} - {"wire", "precision", "assumed", "layout"}
    ):
        with pytest.raises(SidecarError, match=f"key '{key}'.* is missing"):
            parse(without(key, where), PATH)


def test_the_wire_is_exact_unless_the_sidecar_allows_another() -> None:
    assert parse(without("wire"), PATH).wire == "exact"
    assert parse(broken({"wire": "fp16"}), PATH).wire == "fp16"
    with pytest.raises(SidecarError, match=r"'wire'.*is 'fp8'") as caught:
        parse(broken({"wire": "fp8"}), PATH)
    assert "'fp16'" in caught.value.cure


@pytest.mark.parametrize("where", [None, "input", "head"])
def test_an_unknown_key_is_named_with_the_known_ones(where: str | None) -> None:
    with pytest.raises(SidecarError, match=r"key 'colour'.* is unknown") as caught:
        parse(broken({"colour": "RGB"}, where), PATH)
    assert "the keys are" in caught.value.cure


WRONG = [
    (None, {"name": ""}, "name"),
    (None, {"name": 3}, "name"),
    (None, {"task": "translation"}, "task"),
    (None, {"trained": 1}, "trained"),
    (None, {"labels": "cat"}, "labels"),
    (None, {"labels": []}, "labels"),
    (None, {"labels": ["cat", 2]}, "labels"),
    (None, {"input": []}, "input"),
    (None, {"head": None}, "head"),
    ("input", {"size": [224]}, "size"),
    ("input", {"size": [224, 224.5]}, "size"),
    ("input", {"size": [0, 224]}, "size"),
    ("input", {"size": [224, True]}, "size"),
    ("input", {"resize": "crop"}, "resize"),
    ("input", {"resize_shorter": 200}, "resize_shorter"),
    ("input", {"resize_shorter": None}, "resize_shorter"),
    ("input", {"resize": "stretch"}, "resize_shorter"),
    ("input", {"color": "HSV"}, "color"),
    ("input", {"scale": 0}, "scale"),
    ("input", {"scale": float("inf")}, "scale"),
    ("input", {"scale": 10**400}, "scale"),
    ("input", {"mean": [0, 0]}, "mean"),
    ("input", {"mean": [0, 0, float("nan")]}, "mean"),
    ("input", {"std": [1, 1, 0]}, "std"),
    ("input", {"pad_value": 256}, "pad_value"),
    ("head", {"type": "yolov2"}, "type"),
    ("head", {"type": ["softmax"]}, "type"),
    ("head", {"top": 0}, "top"),
]


@pytest.mark.parametrize(("where", "change", "key"), WRONG)
def test_a_wrong_value_is_named_with_its_cure(where: str | None, change: dict, key: str) -> None:
    with pytest.raises(SidecarError, match=f"key '{key}'") as caught:
        parse(broken(change, where), PATH)
    assert caught.value.cure
    assert caught.value.path == PATH
    assert isinstance(caught.value, BadRequest)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"anchors": []}, "anchors"),
        ({"anchors": [[1, 2, 3]]}, "anchors"),
        ({"anchors": [[1, -2]]}, "anchors"),
        ({"stride": 0}, "stride"),
        ({"min_score": 0}, "min_score"),
        ({"nms_iou": 1.5}, "nms_iou"),
        ({"type": "yolov9"}, "type"),
    ],
)
def test_a_wrong_detection_head_is_named(change: dict, key: str) -> None:
    with pytest.raises(SidecarError, match=f"key '{key}' of head"):
        parse(broken(change, "head", load(SIDECAR)), PATH)


def test_a_tensor_model_has_no_head_and_needs_no_labels() -> None:
    document = document_of(CLASSIFIER) | {"task": "tensor", "labels": []}
    with pytest.raises(SidecarError, match=r"'head'.*is not allowed"):
        parse(json.dumps(document), PATH)
    del document["head"]
    assert parse(json.dumps(document), PATH).head is None


def test_files_that_cannot_be_read_are_errors_that_name_the_path(tmp_path: Path) -> None:
    path = sidecar_path(tmp_path / "net.onnx")
    assert path == tmp_path / "net.json"
    with pytest.raises(SidecarError, match=r"net\.json"):
        load(path)
    path.write_bytes(b"\xff\xff")
    with pytest.raises(SidecarError, match="cannot be read"):
        load(path)
    path.write_text("[" * 100_000)
    with pytest.raises(SidecarError, match="not JSON"):
        load(path)
    path.write_text(dump(CLASSIFIER))
    assert load(path) == CLASSIFIER


@pytest.mark.parametrize(
    ("inside", "change", "cure"),
    [
        ("input", {"size": [224]}, "Write more items"),
        ("input", {"size": [1, 2, 3]}, "Write a list of at most 2"),
        ("input", {"mean": "grey"}, "Write a list"),
        (None, {"input": 3}, "Write a JSON object"),
        ("head", {"top": 1001}, "Write a value less than or equal to 1000"),
        ("head", {"top": True}, "Write a valid integer"),
    ],
)
def test_cures_speak_of_json(inside: str | None, change: dict, cure: str) -> None:
    with pytest.raises(SidecarError) as caught:
        parse(broken(change, inside), PATH)
    assert caught.value.cure == cure
