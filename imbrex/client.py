"""A client of the coordinator's HTTP interface, for the command line."""

from __future__ import annotations

import json
import os
import ssl
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlencode

import httpx
import numpy as np

from coordinator.control.choice import IN_FORCE, Choice
from coordinator.serving.common import names
from coordinator.serving.common.keys import NoKey, NotAllowed
from protos.errors import (
    BadConfiguration,
    BadRequest,
    ImbrexError,
    Infeasible,
    LostWorker,
    NotFound,
    PeerViolation,
    Unavailable,
)

CONNECT_TIMEOUT_S = 5.0
# In the environment and not a flag: a command line is for every user of a machine to see.
KEY_VARIABLE = "IMBREX_API_KEY"
# A file of certificates to believe, beside those of the system.
CA_VARIABLE = "IMBREX_CA"
# A model's first request may wait for its weights to reach slow devices over a home's Wi-Fi.
ANSWER_TIMEOUT_S = 600.0

_KINDS = {
    kind.code: kind
    for kind in (
        BadRequest,
        NotFound,
        NoKey,
        NotAllowed,
        Infeasible,
        Unavailable,
        LostWorker,
        PeerViolation,
        BadConfiguration,
    )
}
_BY_STATUS: dict[int, type[ImbrexError]] = {
    404: NotFound,
    422: Infeasible,
    429: Unavailable,
    503: Unavailable,
}


class CoordinatorClient:
    """Calls one coordinator; raises what the coordinator raised, with the same cause and cure."""

    def __init__(self, url: str, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        timeout = httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            if httpx.URL(self.url).scheme not in ("http", "https"):
                raise httpx.InvalidURL("it does not begin with http://")
            # A proxy for the internet would not know the devices of a home.
            self._http = httpx.Client(
                base_url=self.url, timeout=timeout, trust_env=False, verify=_believed()
            )
        except httpx.InvalidURL as error:
            raise BadRequest(
                cause=f"{url!r} is not a URL of a coordinator ({error})",
                cure="Write it as http://HOST:PORT",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._http.close()

    def infer(
        self, model: str, body: bytes, media_type: str, choice: Choice = IN_FORCE
    ) -> dict[str, Any]:
        """The JSON answer to an image, or to tensors as .npz."""
        path = f"/v1/models/{model}/infer{_query(choice)}"
        return self._json("POST", path, body, media_type)

    def infer_raw(
        self, model: str, body: bytes, media_type: str, choice: Choice = IN_FORCE
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The model's raw outputs, and how they came about (the JSON without predictions)."""
        from coordinator.serving.common.tensors import load_tensors

        path = f"/v1/models/{model}/infer{_query(choice)}"
        response = self._call("POST", path, body, media_type, accept=names.NPZ)
        return load_tensors(response.content), json.loads(response.headers[names.ANSWER_HEADER])

    def baseline(self, model: str) -> dict[str, Any]:
        """Measures the best device running the whole model."""
        return self._json("POST", f"/v1/models/{model}/baseline")

    def plan(self, model: str, choice: Choice = IN_FORCE) -> dict[str, Any]:
        """The plan in force, or the chosen one; made if need be."""
        return self._json("POST", f"/v1/models/{model}/plan{_query(choice)}")

    def send_plan(self, model: str, plan: bytes) -> Choice:
        """Keeps a plan (JSON) there; how to choose it."""
        sent = self._json("POST", f"/v1/plans/{model}", plan, names.JSON)
        return Choice(plan=str(sent["plan_id"]))

    def hold_plan(self, model: str, plan: bytes) -> dict[str, Any]:
        """Puts a plan (JSON) in force, until it is released."""
        return self._json("PUT", f"/v1/plans/{model}", plan, names.JSON)

    def release_plan(self, model: str) -> None:
        """Lets a held plan go."""
        self._call("DELETE", f"/v1/plans/{model}")

    def version(self) -> str:
        """The coordinator's version."""
        return str(self._json("GET", "/healthz")["version"])

    def devices(self) -> list[dict[str, Any]]:
        """Every device that the coordinator knows of."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/devices")["devices"]
        return found

    def drain(self, device: str) -> dict[str, Any]:
        """Gives a device no more work; returns at once, with its state."""
        return self._json("POST", f"/v1/devices/{quote(device, safe='')}/drain")

    def resume(self, device: str) -> dict[str, Any]:
        """Uses a device again; its state."""
        return self._json("POST", f"/v1/devices/{quote(device, safe='')}/resume")

    def profile(self, device: str) -> dict[str, Any]:
        """What was measured of a device, by id or name."""
        return self._json("GET", f"/v1/devices/{quote(device, safe='')}/profile")

    def profile_again(self, device: str) -> dict[str, Any]:
        """Measures a device anew; returns at once."""
        return self._json("POST", f"/v1/devices/{quote(device, safe='')}/profile")

    def doctor(self) -> list[dict[str, Any]]:
        """What is wrong with the cluster, the worst first."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/doctor")["findings"]
        return found

    def cluster(self, stem: str = "cluster") -> dict[str, Any]:
        """The cluster as a cluster file, and its profiles by file name."""
        return self._json("GET", f"/v1/cluster?{urlencode({'stem': stem})}")

    def trace(self, request_id: str) -> dict[str, Any]:
        """The timeline of one of the latest requests, as Chrome trace events."""
        return self._json("GET", f"/v1/requests/{quote(request_id, safe='')}/trace")

    def models(self) -> list[dict[str, Any]]:
        """Every model that the coordinator serves."""
        found: list[dict[str, Any]] = self.catalogue()["models"]
        return found

    def catalogue(self) -> dict[str, Any]:
        """Every model that the coordinator serves, and what their weights take."""
        return self._json("GET", "/v1/models")

    def not_ready_because(self) -> str:
        """Why no request can be answered yet; empty when they can."""
        try:
            self._call("GET", "/readyz")
        except NoCoordinator:
            raise
        except Unavailable as error:
            return error.cause
        return ""

    def _json(
        self, method: str, path: str, body: bytes = b"", media_type: str = ""
    ) -> dict[str, Any]:
        response = self._call(method, path, body, media_type)
        try:
            answer: dict[str, Any] = response.json()
        except ValueError as error:
            raise self._stranger() from error
        return answer

    def _call(
        self, method: str, path: str, body: bytes = b"", media_type: str = "", accept: str = ""
    ) -> httpx.Response:
        headers = {"Accept": accept or names.JSON}
        if key := os.environ.get(KEY_VARIABLE):
            headers["X-API-Key"] = key
        if media_type:
            headers["Content-Type"] = media_type
        try:
            response = self._http.request(method, path, content=body, headers=headers)
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise BadConfiguration(
                    cause=f"the certificate of {self.url} is not believed ({error})",
                    cure="Print the cluster's with `imbrex cluster authority` on the coordinator's "
                    f"device, and name its file in {CA_VARIABLE}",
                ) from error
            raise NoCoordinator(
                cause=f"no coordinator answers at {self.url} ({error})",
                cure="Start one with `imbrex coordinator`, or give its address with --url",
            ) from error
        except httpx.HTTPError as error:
            raise NoCoordinator(
                cause=f"the coordinator at {self.url} gave no answer "
                f"({str(error) or type(error).__name__})",
                cure="See its log and `imbrex status`",
            ) from error
        if response.is_success:
            return response
        raise self._error(response)

    def _error(self, response: httpx.Response) -> ImbrexError:
        """The error that the coordinator sent."""
        try:
            fields = response.json()["error"]
            kind = _KINDS.get(fields["code"]) or _BY_STATUS.get(response.status_code, BadRequest)
            return kind(cause=str(fields["cause"]), cure=str(fields["cure"]))
        except (ValueError, KeyError, TypeError):
            return self._stranger()

    def _stranger(self) -> ImbrexError:
        return PeerViolation(
            cause=f"what answers at {self.url} is not an imbrex coordinator of this version",
            cure="Check --url, and run the same version everywhere",
        )


class NoCoordinator(Unavailable):
    """Nothing answers at the coordinator's address."""

    code: ClassVar[str] = "no_coordinator"


def _believed() -> ssl.SSLContext:
    """The system's authorities, and those that the environment names.

    Raises:
        BadConfiguration: that file cannot be used.
    """
    context = ssl.create_default_context()
    if file := os.environ.get(CA_VARIABLE):
        try:
            context.load_verify_locations(file)
        except OSError as error:
            raise BadConfiguration(
                cause=f"the certificates in {file} cannot be used: {error}",
                cure=f"Correct {CA_VARIABLE}: `imbrex cluster authority` prints what belongs there",
            ) from error
    return context


def _query(choice: Choice) -> str:
    """A choice as a URL's query; nothing for the plan in force."""
    fields = {
        "strategy": choice.strategy,
        "devices": choice.devices,
        "plan": choice.plan,
        "wire": choice.wire,
    }
    asked = {key: value for key, value in fields.items() if value}
    return f"?{urlencode(asked)}" if asked else ""
