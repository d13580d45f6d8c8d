"""Names and labels of any alphabet, through every way that text leaves imbrex."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from models.digits import EXAMPLES
from models.digits.examples import examples
from tests.cli.run_cli import Ran, imbrex, imbrex_process
from tests.serving.processes import Service, serving, wait

LABELS = ("Null ä", "猫", "🐈", 'say "1"', "it's", "кот", "\\", "{{ x }}", "a\u0301", "nine\u2028")
ENCODINGS = ["latin-1", "ascii", "utf-8", "cp1252"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("Küche 🐈")
    model = folder / "own.onnx"
    shutil.copy(EXAMPLES.parent / "digits.onnx", model)
    told = json.loads((EXAMPLES.parent / "digits.json").read_text())
    model.with_suffix(".json").write_text(json.dumps({**told, "name": "own", "labels": LABELS}))
    with serving(folder, ["--model", str(model)], workers=1) as running:
        wait(lambda: running.get("/v1/models")["models"][0]["ready"])
        yield running


@pytest.mark.parametrize(
    ("encoding", "run"),
    [("ascii", imbrex_process), *((encoding, imbrex) for encoding in ENCODINGS)],
)
def test_any_terminal_shows_any_label(
    service: Service, tmp_path: Path, encoding: str, run: Callable[..., Ran]
) -> None:
    where, env = ("--url", service.url), {"PYTHONIOENCODING": encoding}
    target = tmp_path / "Straße 🐕.png"
    picture = examples()[0].path
    for command in (
        ("infer", picture, "--model", "own"),
        ("infer", picture, "--model", "own", "--save", target),
        ("status",),
        ("plan", "own"),
        ("doctor",),
    ):
        ran = run(*command, *where, env=env)
        assert "Traceback" not in ran.err, (command, ran.err)
        assert ran.code == 0 or command == ("doctor",), (command, ran.out, ran.err)
    assert target.is_file()
    shown = run("infer", picture, "--model", "own", *where, env=env).out
    for truth in examples()[0].truth:
        label = " ".join(LABELS[int(truth.label)].split())
        assert label in shown or label.encode("ascii", "backslashreplace").decode() in shown


@pytest.mark.needs_room("coordinator/serving/deepstack")
@pytest.mark.needs_room("coordinator/serving/oip")
def test_every_interface_sends_labels_as_they_are(service: Service) -> None:
    picture = examples()[0].path.read_bytes()
    kind = {"Content-Type": "image/png"}
    url = f"{service.url}/v1/models/own/infer"
    answer = httpx.post(url, content=picture, headers=kind).json()
    wanted = sorted(LABELS[int(truth.label)] for truth in examples()[0].truth)
    assert sorted(each["label"] for each in answer["predictions"]) == wanted
    drawn = httpx.post(url, content=picture, headers={**kind, "Accept": "image/png"})
    assert Image.open(BytesIO(drawn.content)).size == Image.open(BytesIO(picture)).size
    deepstack = httpx.post(
        f"{service.url}/v1/vision/custom/own", files={"image": ("Straße.png", picture)}
    ).json()
    assert sorted(each["label"] for each in deepstack["predictions"]) == wanted
    for path in ("/metrics", "/", "/v1/models", "/v2/models/own"):
        assert httpx.get(service.url + path).status_code == 200
