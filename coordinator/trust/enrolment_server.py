"""How devices and coordinators join: a gRPC service that needs no client certificate."""

import asyncio
import re

import grpc
import grpc.aio
import structlog

from coordinator.trust.trust import Certified
from protos import imbrex_pb2 as pb
from protos.daemon.ports import listen
from protos.errors import BadRequest, ImbrexError
from protos.imbrex_pb2_grpc import EnrolmentServicer, add_EnrolmentServicer_to_server
from protos.rpc.serving import Context
from protos.status import fail
from protos.wire import versions
from protos.wire.facts import DeviceId

# Strangers may call, so calls are few and small.
_MAX_CALLS = 16
_MAX_MESSAGE_BYTES = 64 << 10
_MAX_NAME_CHARS = 60
# Hexadecimal digits of an id.
_DEVICE, _COORDINATOR = 16, 12

log = structlog.get_logger(__name__)


class Enrolment(EnrolmentServicer):
    """Serves at `host:port` while it is started."""

    def __init__(self, certified: Certified, host: str, port: int) -> None:
        self._certified = certified
        self._host = host
        self._port = port
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Starts listening; returns the port.

        Raises:
            BadConfiguration: the port is taken.
        """
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
        add_EnrolmentServicer_to_server(self, server)  # type: ignore[no-untyped-call, unused-ignore]
        address = f"[{self._host}]" if ":" in self._host else self._host
        credentials = self._certified.credentials.of_server(strangers=True)
        ways = ("the setting enrol_host", "the setting enrol_port")
        port = listen(server, self._host, self._port, ways, credentials)
        await server.start()
        self._server = server
        log.info("devices can be enrolled", address=f"{address}:{port}")
        return port

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            await self._server.stop(1.0)

    async def Authority(  # noqa: N802 - gRPC's name
        self, request: pb.AuthorityRequest, context: Context
    ) -> pb.AuthorityReply:
        """The authority's certificate, which is public."""
        del request, context
        return pb.AuthorityReply(certificate=self._certified.authority.certificate_pem)

    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.EnrolReply:  # noqa: N802
        """A certificate for the holder of an invitation."""
        name = "".join(char for char in request.name if char.isprintable())[:_MAX_NAME_CHARS]
        kind = "coordinator" if request.coordinator else "device"
        certified = self._certified
        admit = certified.admit_coordinator if request.coordinator else certified.admit
        try:
            device = _id(request)
            certificate = await asyncio.to_thread(
                admit, request.invitation, request.signing_request, device, name or device
            )
        except ImbrexError as error:
            log.warning(f"{kind} refused", address=context.peer(), name=name, cause=error.cause)
            fail(context, error)
            return pb.EnrolReply()
        log.info(f"{kind} enrolled", device=device, name=name, address=context.peer())
        state = certified.state.url if request.coordinator else ""
        return pb.EnrolReply(certificate=certificate, state=state)


def _id(request: pb.EnrolRequest) -> DeviceId:
    versions.SPOKEN.answer(request.protocol, "the device that joins", "this coordinator")
    kind, digits = ("coordinator", _COORDINATOR) if request.coordinator else ("device", _DEVICE)
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", request.device):
        raise BadRequest(
            cause=f"the {kind}'s id is not {digits} hexadecimal digits",
            cure="Run the same version of imbrex on every device",
        )
    return DeviceId(request.device)
