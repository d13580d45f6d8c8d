"""The protocol as an interface of the application: HTTP routes, and a gRPC server beside them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastapi import FastAPI

from coordinator.serving.common.interface import OptionalInterface
from coordinator.serving.oip import http
from coordinator.serving.oip.inference_service import InferenceService
from coordinator.serving.oip.rpc import RpcServer
from coordinator.settings import GRPC_PORT, CoordinatorSettings

if TYPE_CHECKING:
    from coordinator.service import Coordinator
    from coordinator.serving.common.tls import WebTls


class OpenInference(OptionalInterface):
    """The Open Inference Protocol."""

    router = http.router
    prefixes = (http.PREFIX,)
    error = staticmethod(http.shape)

    def __init__(self, app: FastAPI, coordinator: "Coordinator") -> None:
        super().__init__(app, coordinator)
        app.state.oip = InferenceService(coordinator)
        self._rpc: RpcServer | None = None

    async def start(self, tls: "WebTls | None") -> Mapping[str, str]:
        """Starts the gRPC server."""
        state, settings = self.app.state, self.coordinator.settings
        self._rpc = RpcServer(state.oip, state.access, settings)
        credentials = tls.of_grpc() if tls else None
        return {"grpc": await self._rpc.start(settings.host, _port(settings), credentials)}

    async def stop(self) -> None:
        """Stops it."""
        if self._rpc is not None:
            await self._rpc.stop()


def _port(settings: CoordinatorSettings) -> int:
    if settings.grpc_port is not None:
        return settings.grpc_port
    return GRPC_PORT if settings.port else 0
