import pytest

from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, Infeasible, LostWorker, PeerViolation, WorkerStopped
from protos.rpc import channels
from protos.rpc.channels import Caller, make_gate, make_server, require_proof
from protos.rpc.serving import register
from protos.rpc.worker_client import WorkerClient
from protos.status import abort
from protos.wire.versions import PROTOCOL


class Stub:
    """A worker that only says hello, as another version might."""

    def __init__(self, protocol=PROTOCOL, error=None):
        self.protocol = protocol
        self.error = error

    async def hello(self, request, context):
        if self.error is not None:
            await abort(context, self.error)
        return pb.HelloReply(protocol=self.protocol)

    async def exchange(self, requests, context):
        while isinstance(message := await context.read(), bytes):
            await context.write(message)

    async def missing(self, request, context):
        raise AssertionError

    put = prepare = retain = measure = examine = renew = missing


@pytest.fixture
async def serve():
    servers = []

    async def start(stub, secret=""):
        server = make_server(make_gate(secret, None))
        register(stub, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.stop(None)


async def test_the_secret_opens_the_door(serve):
    address = await serve(Stub(), secret="open sesame")
    async with WorkerClient(address, Caller("host", "open sesame")) as client:
        assert (await client.hello("1")).protocol == PROTOCOL


@pytest.mark.parametrize("wrong", ["", "open", "open sesame!"])
async def test_call_without_the_secret_is_refused(serve, wrong):
    address = await serve(Stub(), secret="open sesame")
    async with WorkerClient(address, Caller("host", wrong)) as client:
        with pytest.raises(BadConfiguration, match="secret"):
            await client.hello("1")
        with pytest.raises(BadConfiguration, match="secret"):
            await client.put("0" * 64, [], 0)
        with pytest.raises(BadConfiguration, match="secret"):
            await client.exchange().read()


async def test_our_errors_cross_the_wire_with_their_fields(serve):
    address = await serve(Stub(error=Infeasible(cause="zu groß", cure="make it smaller")))
    async with WorkerClient(address, Caller("host")) as client:
        with pytest.raises(Infeasible) as caught:
            await client.hello("1")
    assert caught.value.cause == "zu groß"
    assert caught.value.cure == "make it smaller"


async def test_protocol_of_another_version_is_named(serve):
    address = await serve(Stub(protocol=99))
    async with WorkerClient(address, Caller("host")) as client:
        with pytest.raises(PeerViolation, match="speaks protocol 99"):
            await client.hello("1")


async def test_address_without_a_worker_is_a_lost_worker():
    async with WorkerClient("127.0.0.1:1", Caller("host")) as client:
        with pytest.raises(LostWorker, match=r"127\.0\.0\.1:1"):
            await client.hello("1")


async def test_a_stream_that_is_cancelled_or_whose_server_goes_is_a_lost_worker(serve):
    address = await serve(Stub())
    async with WorkerClient(address, Caller("host")) as client:
        stream = client.exchange()
        await stream.write([pb.Item(ping=pb.Ping(number=1))], [b"x"])
        ((item, payload),) = await stream.read()
        assert (item.ping.number, bytes(payload)) == (1, b"x")
        stream.cancel()
        with pytest.raises(LostWorker):
            await stream.read()
        with pytest.raises(LostWorker):
            await stream.write([])
        ended = client.exchange()
        await ended.write([])
        await ended.done_writing()
        assert await ended.read() == []
        with pytest.raises(WorkerStopped):
            await ended.read()


def test_a_server_without_reuseport_and_both_sides_with_keepalive():
    assert ("grpc.so_reuseport", 0) in channels.SERVER_OPTIONS
    for options in (channels.CHANNEL_OPTIONS, channels.SERVER_OPTIONS):
        assert dict(options)["grpc.keepalive_time_ms"] == 10_000
    # A server that wants fewer pings than its clients send would answer GOAWAY.
    least = dict(channels.SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least <= channels.KEEPALIVE_MS


def test_the_secret_does_not_show():
    assert "sesame" not in repr(Caller("host", "open sesame"))


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.168.1.7", "pi.local"])
def test_addresses_beyond_loopback_need_a_proof(bind):
    with pytest.raises(BadConfiguration, match="without a certificate or a cluster secret"):
        require_proof(bind, "", None)
    require_proof(bind, "s", None)


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.9", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_proof(bind):
    require_proof(bind, "", None)
