"""Models that are added while a coordinator runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import pytest

from coordinator.devices.announcements import Announcements
from coordinator.library.loaded import Library, ModelForgotten
from coordinator.library.naming import Names
from imbrex.cli.adding import Said, add
from models.catalogue.installed import Store
from models.onnx_file.builder import NetworkBuilder, square
from models.vision.image_input import ImageInput
from models.vision.sidecar import Sidecar, sidecar_path
from models.vision.sidecar import load as load_sidecar
from protos.errors import BadRequest, NotFound
from tests.models.model_files import saved, tiny
from tests.serving.camera import save_camera
from tests.serving.in_place import picture
from tests.serving.processes import Service


def test_names_follow_what_is_added_and_removed(store: str, tmp_path: Path) -> None:
    names = Names(("digits",))
    with pytest.raises(NotFound, match="camera"):
        names.source("camera")
    file = save_camera(tmp_path)
    for _ in range(2):
        add(file, Said(), default=False, as_json=True)
    source = names.source("camera")
    assert source == str(Path(store) / "camera" / "2" / "model.onnx")
    assert names.public(source) == ("camera", "2")
    assert names.versions("camera") == ("1", "2")
    assert names.source("camera", "1").endswith("/1/model.onnx")
    assert names.source("camera@64x64") == f"{source}@64x64"
    assert "camera" in names.known
    assert names.configured == ("digits",)  # loaded when it is first asked for
    Store().remove("camera")
    with pytest.raises(NotFound):
        names.source("camera")


def test_a_configured_name_of_an_installed_model_is_its_latest_version(
    store: str, tmp_path: Path
) -> None:
    file = save_camera(tmp_path)
    add(file, Said(), default=False, as_json=True)
    names = Names(("camera",))
    first = names.source("camera")
    assert names.configured == (first,)
    add(file, Said(), default=False, as_json=True)
    assert names.source("camera") == first.replace("/1/", "/2/")
    assert names.configured == (names.source("camera"),)
    assert names.versions("camera") == ("1", "2")


def test_a_version_that_is_replaced_is_another_file(store: str, tmp_path: Path) -> None:
    file = save_camera(tmp_path)
    add(file, Said(), default=False, as_json=True)
    names = Names(())
    source = names.source("camera")
    before = names.stamp(source)
    Store().remove("camera")
    add(file, Said(), default=False, as_json=True)
    assert names.source("camera") == source
    assert before is not None
    assert names.stamp(f"{source}@64x64") == names.stamp(source) != before


async def test_a_model_whose_file_was_replaced_is_loaded_again(store: str, tmp_path: Path) -> None:
    file, forgotten, news = save_camera(tmp_path), [], Announcements()
    news.on(ModelForgotten, forgotten.append)
    add(file, Said(), default=False, as_json=True)
    library = Library(Names(()), tmp_path, 10**9, news)
    source = library.names.source("camera")
    first = await library.get(source)
    library.names.refresh()
    assert await library.get(source) is first
    assert forgotten == []
    Store().remove("camera")
    add(file, Said(), default=False, as_json=True)
    assert await library.get(library.names.source("camera")) is not first
    assert forgotten == [ModelForgotten(source, stays=False)]


def test_a_detector_that_was_removed_is_no_longer_configured(store: str, tmp_path: Path) -> None:
    add(save_camera(tmp_path), Said(), default=False, as_json=True)
    names = Names(("digits",), detector="camera")
    assert len(names.configured) == 2
    Store().remove("camera")
    assert names.configured == ("digits",)


def test_a_clock_that_has_gone_back_hides_no_change(store: str, tmp_path: Path) -> None:
    add(save_camera(tmp_path), Said(), default=False, as_json=True)
    ahead = time.time() + 3600
    os.utime(Path(store) / "camera", (ahead, ahead))
    names = Names(())
    add(save_camera(tmp_path), Said(name="yard"), default=False, as_json=True)
    assert names.source("yard").endswith("/yard/1/model.onnx")


def test_the_default_of_detection_is_the_detector(store: str, tmp_path: Path) -> None:
    names = Names(("digits",))
    assert names.detector == ""
    add(save_camera(tmp_path), Said(), default=True, as_json=True)
    names.refresh()
    assert names.detector == "camera"
    assert names.configured == ("digits", names.source("camera"))
    assert Names((), detector="digits").detector == "digits"


def test_a_repository_s_model_comes_before_an_added_one(store: str, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "camera" / "1").mkdir(parents=True)
    saved(repository / "camera" / "1", tiny()).rename(repository / "camera" / "1" / "model.onnx")
    add(save_camera(tmp_path), Said(), default=False, as_json=True)
    assert names_source(repository).startswith(str(repository))


def names_source(repository: Path) -> str:
    return Names((), repository).source("camera")


@pytest.mark.needs_room("coordinator/serving/oip")
def test_a_running_coordinator_answers_with_a_model_that_was_just_added(
    service: Service, tmp_path: Path
) -> None:
    url = f"{service.url}/v1/models/just-added/infer"
    body, headers = picture(), {"Content-Type": "image/png"}
    assert httpx.post(url, content=body, headers=headers).status_code == 404
    added = Said(name="just-added")
    add(save_camera(tmp_path), added, default=False, as_json=True)
    try:
        answer = httpx.post(url, content=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["task"] == "detection"
        assert answer.json()["model"] == "just-added"
        form = ImageInput("image", (8, 8), "stretch", "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, 0)
        beside = Sidecar("just-added", "tensor", "a test", "none", "a test", False, (), form)
        described = f"{service.url}/v2/models/just-added"
        assert httpx.get(described).json()["inputs"][0]["shape"] == [1, 3, 96, 96]
        Store().remove("just-added")
        Store().add("just-added", tiny().SerializeToString(), beside)
        assert httpx.get(described).json()["inputs"][0]["shape"] == [1, 3, 8, 8]
    finally:
        Store().remove("just-added")
    assert httpx.post(url, content=body, headers=headers).status_code == 404


def test_a_fixed_size_counts_more_than_what_metadata_say(store: str, tmp_path: Path) -> None:
    model = tiny()
    model.metadata_props.add(key="imgsz", value="[16, 16]")
    add(saved(tmp_path, model), Said(task="tensor"), default=False, as_json=True)
    assert Store().find("tiny") is not None


def test_options_that_a_sidecar_says_are_refused(store: str, tmp_path: Path) -> None:
    file = save_camera(tmp_path)
    assert file.with_suffix(".json").is_file()
    with pytest.raises(BadRequest, match="--pixels"):
        add(file, Said(pixels="imagenet"), default=False, as_json=True)


def test_ultralytics_classifiers_get_all_of_the_shorter_side(store: str, tmp_path: Path) -> None:
    net = NetworkBuilder("ants", seed=3)
    x = net.input("images", (1, 3, 16, 16)).conv("conv", 4, square(3)).relu()
    model = net.model(x.global_average_pool("mean").flatten("flat").gemm("fc", 3))
    told = {"names": "{0: 'ant', 1: 'bee', 2: 'cat'}", "task": "classify", "stride": "1"}
    for key, value in told.items():
        model.metadata_props.add(key=key, value=value)
    add(saved(tmp_path, model), Said(name="ants"), default=False, as_json=True)
    form = load_sidecar(sidecar_path(Store().root / "ants" / "1" / "model.onnx")).input
    assert (form.resize, form.resize_shorter) == ("centre-crop", max(form.size))
