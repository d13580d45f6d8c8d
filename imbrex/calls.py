"""The calls of a coordinator's HTTP interface: each call's request, and how its answer is read.

`imbrex.client` turns them into methods of a synchronous and an asynchronous client.
"""

import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, TypeAdapter

from coordinator.answers import IN_FORCE, DeviceStatus, Diagnosis, ModelStatus, PlanChoice, PlanNow
from coordinator.serving.common import names
from coordinator.serving.v1 import answers
from protos.errors import BadRequest, NotFound

if TYPE_CHECKING:
    import httpx

    from coordinator.planning.plan_json import PlanFile
    from models.tensors.arrays import Arrays

Answered = TypeVar("Answered")
# A picture's or an archive's path, its bytes, or arrays by name.
Source: TypeAlias = "str | Path | bytes | Arrays"


@dataclass(frozen=True, slots=True)
class Call(Generic[Answered]):
    """A request, and how its answer is read; `read` raises ValueError or KeyError if the answer is
    not a coordinator's. `changes_nothing`: it may be sent again if no answer comes.
    """

    method: str
    path: str
    read: "Callable[[httpx.Response], Answered]"
    body: bytes = field(default=b"", repr=False)
    media_type: str = ""
    accept: str = names.JSON
    asks: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether it may be computed twice."""
        return self.asks or self.method == "GET"


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """A model's raw outputs by name, and how they were computed."""

    arrays: "Arrays"
    origin: answers.Origin


def infer(
    model: str,
    source: Source,
    media_type: str = "",
    choice: PlanChoice = IN_FORCE,
    *,
    min_score: float | None = None,
) -> Call[answers.Inference]:
    """A model's predictions for a picture (a path, or a file's bytes), or its answer to tensors
    (arrays by name, or an .npz). `min_score`: the least score of a box, from above 0 to 1.

    Raises:
        NotFound, BadRequest: no such file, or it cannot be read.
    """
    body, kind = _sent(source, media_type)
    path = f"/v1/models/{model}/infer{_query(choice, min_score=min_score)}"
    return Call("POST", path, _as(answers.Inference), body, kind, asks=True)


def outputs(
    model: str,
    source: Source,
    media_type: str = "",
    choice: PlanChoice = IN_FORCE,
    *,
    sparse: bool = False,
) -> Call[Outputs]:
    """The model's raw outputs for a picture or tensors, as `infer` takes them. With `sparse`,
    entries that the model's head does not read may be zeros: they need not travel.

    Raises:
        NotFound, BadRequest: no such file, or it cannot be read.
    """

    def read(response: "httpx.Response") -> Outputs:
        from coordinator.serving.common.tensors import load_tensors

        told = response.headers[names.ANSWER_HEADER]
        return Outputs(load_tensors(response.content), answers.Origin.model_validate_json(told))

    body, kind = _sent(source, media_type)
    path = f"/v1/models/{model}/infer{_query(choice, sparse=sparse)}"
    return Call("POST", path, read, body, kind, names.NPZ, asks=True)


def models() -> Call[list[ModelStatus]]:
    """Every model that the coordinator serves."""
    return Call("GET", "/v1/models", lambda response: _as(answers.Models)(response).models)


def catalogue() -> Call[answers.Models]:
    """Every model that the coordinator serves, and the memory of their weights."""
    return Call("GET", "/v1/models", _as(answers.Models))


def baseline(model: str) -> Call[answers.Alone]:
    """Measures the best device running the whole model."""
    return Call("POST", f"/v1/models/{model}/baseline", _as(answers.Alone))


def plan(model: str, choice: PlanChoice = IN_FORCE) -> "Call[PlanFile]":
    """The plan in force, or the chosen one; planned if necessary."""
    return Call("POST", f"/v1/models/{model}/plan{_query(choice)}", _as_plan)


def plan_now(model: str, choice: PlanChoice = IN_FORCE) -> Call[PlanNow]:
    """What an existing plan would be predicted to take if it were made now."""
    return Call("GET", f"/v1/plans/{model}/now{_query(choice)}", _as(PlanNow))


def send_plan(model: str, plan: bytes) -> Call[PlanChoice]:
    """Stores a plan (JSON) on the coordinator; returns how to choose it."""
    path = f"/v1/plans/{model}"
    return Call(
        "POST", path, lambda response: PlanChoice(plan=response.json()["plan_id"]), plan, names.JSON
    )


def hold_plan(model: str, plan: bytes) -> "Call[PlanFile]":
    """Puts a plan (JSON) in force until it is released."""
    return Call("PUT", f"/v1/plans/{model}", _as_plan, plan, names.JSON)


def release_plan(model: str) -> Call[answers.Released]:
    """Releases a held plan."""
    return Call("DELETE", f"/v1/plans/{model}", _as(answers.Released))


def devices() -> Call[list[DeviceStatus]]:
    """Every device that the coordinator knows of."""
    return Call("GET", "/v1/devices", lambda response: _as(answers.DeviceList)(response).devices)


def drain(device: str) -> Call[DeviceStatus]:
    """Drains a device; returns its state at once."""
    return Call("POST", f"{_device(device)}/drain", _as(DeviceStatus))


def resume(device: str) -> Call[DeviceStatus]:
    """Uses a device again; returns its state."""
    return Call("POST", f"{_device(device)}/resume", _as(DeviceStatus))


def profile(device: str) -> Call[answers.Profiling]:
    """The profile of a device, by id or name."""
    return Call("GET", f"{_device(device)}/profile", _as(answers.Profiling))


def profile_again(device: str) -> Call[answers.Profiling]:
    """Measures a device again; returns at once."""
    return Call("POST", f"{_device(device)}/profile", _as(answers.Profiling))


def doctor() -> Call[Diagnosis]:
    """The doctor's check list, and its findings, the most severe first."""
    return Call("GET", "/v1/doctor", _as(Diagnosis))


def cluster_files(stem: str = "cluster") -> Call[answers.ClusterFiles]:
    """The cluster as a cluster file, and its profiles by file name."""
    return Call("GET", f"/v1/cluster?{urlencode({'stem': stem})}", _as(answers.ClusterFiles))


def trace(request_id: str) -> Call[answers.Trace]:
    """The timeline of one of the latest requests, as Chrome trace events."""
    return Call("GET", f"/v1/requests/{quote(request_id, safe='')}/trace", _as(answers.Trace))


def version() -> Call[str]:
    """The coordinator's version."""
    return Call("GET", "/healthz", lambda response: _as(answers.Health)(response).version)


def ready() -> Call[answers.Readiness]:
    """Returns None if requests can be answered; else raises Unavailable with the reason."""
    return Call("GET", "/readyz", _as(answers.Readiness))


def plain(answer: Any) -> Any:
    """An answer as the plain values that were sent."""
    if isinstance(answer, list):
        return [plain(part) for part in answer]
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", exclude_unset=True)
    return TypeAdapter(type(answer)).dump_python(answer, mode="json")


def read_file(file: Path) -> bytes:
    """The bytes of a file that the user named.

    Raises:
        NotFound: no such file.
        BadRequest: it cannot be read.
    """
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            cause=f"there is no file {file.absolute()}",
            cure="Put it there, or name a file that exists",
        ) from error
    except OSError as error:
        raise BadRequest(
            cause=f"{file} cannot be read ({error.strerror})", cure="Check its permissions"
        ) from error


def media_type(file: Path) -> str:
    """The media type of a file; the coordinator looks at the bytes themselves."""
    if file.suffix.lower() == ".npz":
        return names.NPZ
    guessed, _ = mimetypes.guess_type(file.name)
    return guessed if guessed and guessed.startswith("image/") else names.OCTETS


def _sent(source: Source, kind: str) -> tuple[bytes, str]:
    """A body and its type."""
    if isinstance(source, bytes):
        return source, kind or names.OCTETS
    if isinstance(source, Mapping):
        from coordinator.serving.common.tensors import write_tensors

        return write_tensors(source), names.NPZ
    return read_file(Path(source)), kind or media_type(Path(source))


def _as(kind: type[Answered]) -> "Callable[[httpx.Response], Answered]":
    return lambda response: TypeAdapter(kind).validate_json(response.content)


def _as_plan(response: "httpx.Response") -> "PlanFile":
    from coordinator.planning.plan_json import PlanFile

    return PlanFile.model_validate_json(response.content)


def _device(device: str) -> str:
    return f"/v1/devices/{quote(device, safe='')}"


def _query(choice: PlanChoice, *, sparse: bool = False, min_score: float | None = None) -> str:
    """A choice, and what is wanted of the answer, as a URL's query."""
    fields = {
        "strategy": choice.strategy,
        "devices": choice.devices or None,
        "plan": choice.plan,
        "wire": choice.wire,
        "sparse": "true" if sparse else "",
        "min_score": min_score,
    }
    asked = {key: value for key, value in fields.items() if value not in (None, "")}
    return f"?{urlencode(asked)}" if asked else ""
