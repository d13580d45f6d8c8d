"""The side of enrolment that joins: find the authority by its fingerprint, then request a
certificate.

Nothing secret is sent before the other side has proved to be the coordinator: its certificate must
be signed by the authority whose fingerprint is in the join token.
"""

import asyncio
import hmac
import ssl
from typing import Any

import grpc
import grpc.aio

from protos import imbrex_pb2 as pb
from protos.errors import BadConfiguration, LostWorker, Unavailable
from protos.imbrex_pb2_grpc import EnrolmentStub
from protos.rpc.channels import pinned_channel
from protos.status import error_from
from protos.trust.identity import (
    COORDINATOR_NAME,
    Identity,
    certified,
    coordinator_name,
    device_name,
    fingerprint,
    new_key,
    signing_request,
)
from protos.trust.invitation import Invitation
from protos.wire import versions

_TIMEOUT_S = 10.0


async def enrol(invitation: Invitation, device: str, name: str) -> Identity:
    """A new key, certified by the cluster's authority for `device`; `name` is for display.

    Raises: as `_enrol`.
    """
    identity, _ = await _enrol(invitation, device, name, device_name(device))
    return identity


async def enrol_coordinator(
    invitation: Invitation, coordinator: str, name: str
) -> tuple[Identity, str]:
    """The same for another coordinator, and where the cluster's state is.

    Raises: as `_enrol`.
    """
    return await _enrol(invitation, coordinator, name, coordinator_name(coordinator))


async def _enrol(
    invitation: Invitation, own_id: str, name: str, certified_name: str
) -> tuple[Identity, str]:
    """A new identity, and where the cluster's state is if a coordinator joins.

    Raises:
        Unavailable: no answer there.
        BadConfiguration: the answer is not from the coordinator that invited this device.
        ImbrexError: the invitation is refused.
    """
    address = invitation.address
    authority_pem = await _authority(invitation)
    key_pem = new_key()
    request = pb.EnrolRequest(
        protocol=versions.SPOKEN.newest,
        invitation=invitation.secret,
        signing_request=signing_request(key_pem, name),
        device=own_id,
        name=name,
        coordinator=certified_name == coordinator_name(own_id),
    )
    reply: pb.EnrolReply = await _call(address, authority_pem, "Enrol", request)
    return certified(key_pem, reply.certificate, authority_pem, certified_name), reply.state


async def _authority(invitation: Invitation) -> bytes:
    """The certificate of the authority. Any server may send it: the fingerprint shows whether it is
    the right one, and the next connection accepts only servers that it has signed.
    """
    shown = await asyncio.to_thread(_shown_certificate, invitation.address)
    request = pb.AuthorityRequest()
    reply: pb.AuthorityReply = await _call(invitation.address, shown, "Authority", request)
    found = fingerprint(reply.certificate)
    if not hmac.compare_digest(found, invitation.fingerprint):
        raise BadConfiguration(
            cause=f"{invitation.address} belongs to another cluster than the one that invited "
            "this device, or the connection is intercepted",
            cure="Check the address; if the cluster was created again, invite the device again",
        )
    return bytes(reply.certificate)


def _shown_certificate(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    try:
        where = (host.strip("[]"), int(port))
        return ssl.get_server_certificate(where, timeout=_TIMEOUT_S).encode()
    except (OSError, ValueError) as error:
        raise Unavailable(
            cause=f"nobody enrols devices at {address} ({error})",
            cure="Check that the coordinator is running and that its enrolment port can be reached",
        ) from error


async def _call(address: str, root_pem: bytes, method: str, request: Any) -> Any:
    credentials = grpc.ssl_channel_credentials(root_pem)
    async with pinned_channel(address, credentials, COORDINATOR_NAME) as channel:
        stub: Any = EnrolmentStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        try:
            return await getattr(stub, method)(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            error = error_from(failure, address)
            if isinstance(error, LostWorker):
                raise Unavailable(cause=error.cause, cure="See the coordinator's log") from failure
            raise error from failure
