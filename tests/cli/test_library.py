"""What `import imbrex` gives: README's lines on a real coordinator, the twins, planning here."""

from __future__ import annotations

import asyncio
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import imbrex
from coordinator.serving.app import create_app
from imbrex import AsyncClient, Client, ImbrexError, Plan, calls
from models.digits.examples import examples
from protos.errors import BadRequest, NotFound, PeerViolation
from tests.serving.in_place import InPlace, picture
from tests.serving.processes import serving

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "docs" / "clusters" / "four-pi3.toml"
LINES = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)


def test_readmes_lines_run_on_a_real_coordinator(tmp_path: Path) -> None:
    (lines,) = LINES.findall((ROOT / "README.md").read_text())
    folder = tmp_path / "home"
    (folder / "docs").mkdir(parents=True)
    shutil.copytree(CLUSTER.parent, folder / "docs" / "clusters")
    shutil.copy(examples()[0].path, folder / "sheet.png")
    with serving(tmp_path, ["--model", "digits"], workers=1, pace=1.0) as service:
        ran = subprocess.run(
            [sys.executable, "-c", lines.replace("http://localhost:8460", service.url)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    *found, timing, planned, checked = ran.stdout.splitlines()
    truth = sorted(each.label for each in examples()[0].truth)
    assert sorted(each.split()[0] for each in found) == truth
    assert "worker-1" in timing
    assert float(planned.split()[0]) > 0
    assert "Predicted" in planned
    assert checked == "True"


def test_every_name_is_there_and_none_is_loaded_before_it_is_used() -> None:
    for name in imbrex.__all__:
        assert getattr(imbrex, name) is not None
    assert set(imbrex.__all__) <= set(dir(imbrex))
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        imbrex.nothing_of_ours  # noqa: B018 - looked up on purpose
    code = "import imbrex, sys; print([m for m in sys.modules if m.split('.')[0] in "
    code += "('numpy', 'pydantic', 'httpx', 'coordinator', 'models', 'protos')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_client_loads_no_networks() -> None:
    code = "import imbrex, sys; imbrex.Client; imbrex.AsyncClient; print([m for m in sys.modules "
    code += "if m.split('.')[0] in ('numpy', 'onnx', 'onnxruntime', 'fastapi', 'PIL', 'sklearn')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_clients_have_a_method_for_every_call() -> None:
    asked = {
        name
        for name, each in vars(calls).items()
        if inspect.isfunction(each) and "Call[" in str(inspect.signature(each).return_annotation)
    }
    assert len(asked) > 15
    for name in asked:
        for kind in (Client, AsyncClient):
            method = getattr(kind, name)
            assert method.__doc__ == getattr(calls, name).__doc__
            assert inspect.signature(method) == inspect.signature(getattr(calls, name))


def over(client: AsyncClient) -> AsyncClient:
    """The client, speaking with an application of this process."""
    transport = httpx.ASGITransport(create_app(InPlace()))  # type: ignore[arg-type]
    client._http = httpx.AsyncClient(transport=transport, base_url="http://test")
    return client


async def test_the_asynchronous_twin_answers_many_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "some.png"
    file.write_bytes(picture())
    arrays = {"image": np.zeros((1, 3, 16, 16), np.float32)}
    async with over(AsyncClient()) as client:
        found = await asyncio.gather(
            client.infer("tiny", picture()),
            client.infer("tiny", file),
            client.infer("tiny", str(file)),
        )
        assert [each.predictions for each in found] == [found[0].predictions] * 3
        assert {each.label for each in found[0].predictions} <= {"ant", "bee", "cat"}
        raw = await client.outputs("bare", arrays)
        assert raw.arrays["fc"].shape == (1, 3)
        assert raw.origin.task == "tensor"
        (tensor,) = (await client.infer("bare", arrays)).predictions
        assert tensor.data == pytest.approx(raw.arrays["fc"].ravel().tolist(), rel=1e-6)
        assert (await client.devices())[0].mbps == float("inf")
        assert isinstance(await client.plan("tiny"), Plan)
        assert (await client.models())[0].version == "1"


async def test_failed_inference_says_why(tmp_path: Path) -> None:
    async with over(AsyncClient()) as client:
        with pytest.raises(NotFound, match="none"):
            await client.infer("none", picture())
        with pytest.raises(NotFound, match="no file"):
            await client.infer("tiny", tmp_path / "none.png")
        with pytest.raises(BadRequest):
            await client.infer("tiny", b"nonsense")
        with pytest.raises(ImbrexError) as caught:
            await client.infer("tiny", {"image": np.zeros(3, np.float32)})
        assert caught.value.cure


async def test_coordinator_of_another_version_is_named() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"devices": [{"id": "x"}]})

    client = AsyncClient()
    transport = httpx.MockTransport(answer)
    client._http = httpx.AsyncClient(transport=transport, base_url="http://test")
    async with client:
        with pytest.raises(PeerViolation, match="of this version"):
            await client.devices()


def test_library_plans_simulates_and_checks_here() -> None:
    made = imbrex.plan("lenet5", CLUSTER, strategy="lw", devices=2)
    assert len(made.devices_used) <= 2
    assert Plan.model_validate_json(made.model_dump_json()) == made
    found = imbrex.simulate("lenet5", imbrex.load_cluster(CLUSTER), ["single", "lw"])
    assert list(found) == ["single", "lw"]
    assert all(isinstance(each, imbrex.Predicted) for each in found.values())
    assert imbrex.check("lenet5", grid=(1, 2)).ok


@pytest.mark.parametrize(
    ("model", "cluster", "strategy"),
    [("none", CLUSTER, "lw"), ("lenet5", "none.toml", "lw"), ("lenet5", CLUSTER, "none")],
)
def test_library_names_missing_models_clusters_and_strategies(
    model: str, cluster: Path | str, strategy: str
) -> None:
    with pytest.raises(ImbrexError, match="none") as caught:
        imbrex.plan(model, cluster, strategy)
    assert caught.value.cure
