"""The answers of `/v2`, for its OpenAPI document: the protocol with Triton's extensions.

`json_form` writes an inference's tensors, whose bytes may follow the JSON.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ErrorResponse(BaseModel):
    """An error."""

    error: str = Field(examples=["there is no model 'digit'. Known models: digits, vgg16"])


class Server(BaseModel):
    """This server."""

    name: str = Field(examples=["imbrex"])
    version: str
    extensions: list[str]


class ModelReady(BaseModel):
    """A model that can be used."""

    name: str
    ready: bool


class TensorMetadata(BaseModel):
    """A tensor of a model."""

    name: str
    datatype: str = Field(examples=["FP32"])
    shape: list[int] = Field(examples=[[1, 3, 416, 416]])


class ModelMetadata(BaseModel):
    """A model's versions and tensors."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ConfigTensor(BaseModel):
    """A tensor in Triton's model configuration."""

    name: str
    data_type: str = Field(examples=["TYPE_FP32"])
    dims: list[int]


class ModelConfig(BaseModel):
    """A model's configuration, as Triton describes it."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: int
    input: list[ConfigTensor]
    output: list[ConfigTensor]
    default_model_filename: str


class Duration(BaseModel):
    """How often something was done, and the total time it took."""

    count: int
    ns: int


class Phases(BaseModel):
    """Requests by outcome, and the phases of those that were answered."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class Batch(BaseModel):
    """The phases of all batches of one size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class Counted(BaseModel):
    """Counts of a model since the start; `last_inference` in ms since 1970."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: Phases
    batch_stats: list[Batch]


class ModelStatistics(BaseModel):
    """Counts of one model, or of all."""

    model_stats: list[Counted]


class RepositoryEntry(BaseModel):
    """A model of the repository; without a state if it is not loaded."""

    name: str
    version: str | None = None
    state: str | None = Field(None, examples=["READY"])
    reason: str | None = None


class EmptyResponse(BaseModel):
    """An empty answer to a successful request."""


class OutputTensor(TensorMetadata):
    """An output; its data is here, or after the JSON with a parameter `binary_data_size`."""

    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferenceResponse(BaseModel):
    """The requested outputs, in the requested order."""

    model_config = ConfigDict(protected_namespaces=())
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is invalid, or not permitted.", "model": ErrorResponse},
    "5XX": {"description": "Temporarily unavailable, or not supported.", "model": ErrorResponse},
}
