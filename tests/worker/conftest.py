import pytest

from protos.rpc.channels import Caller
from protos.rpc.worker_client import WorkerClient
from tests.worker.support import in_process
from worker.tasks.state import Tasks


@pytest.fixture
async def worker(tmp_path):
    async with in_process(tmp_path / "state") as running:
        yield running


@pytest.fixture
async def client(worker):
    async with WorkerClient(worker.address, Caller("host")) as client:
        yield client


@pytest.fixture
def tasks():
    return Tasks("me", cap_bytes=10_000)
