"""Profiles as JSON, saved between runs with the fingerprint of their device."""

import json
from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.regression import DeviceProfile, EngineProfile, LayerRegression
from protos.daemon.documents import first_problem
from protos.daemon.files import decoded
from protos.errors import BadRequest
from protos.wire.facts import ONNXRUNTIME

# Profiles of one engine are written as versions before wrote them, which read no others.
FORMAT, FORMAT_OF_SEVERAL = 2, 3


def save_profile(profile: DeviceProfile) -> str:
    """The text of a profile file."""
    body = asdict(profile)
    number = FORMAT_OF_SEVERAL if profile.others else FORMAT
    if number == FORMAT:
        del body["others"]
        del body["engine"]
    # Requests do not show it, and versions before do not read it.
    if profile.endpoint is not None and not profile.endpoint.set_up_s:
        del body["endpoint"]["set_up_s"]
    return json.dumps({"format": number, **body}, indent=1, allow_nan=False) + "\n"


def parse_profile(text: str | bytes) -> DeviceProfile:
    """The profile of a file.

    Raises:
        BadRequest: not a profile, an unknown key, a wrong type.
    """
    try:
        file = _ProfileFile.model_validate_json(text if isinstance(text, str) else decoded(text))
    except (UnicodeDecodeError, ValidationError) as error:
        told = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise BadRequest(
            cause=f"this is not a device's profile: {told}", cure="Make one with `imbrex profile`."
        ) from error
    return DeviceProfile.of(
        file.profile,
        fingerprint=file.fingerprint,
        engine=file.engine,
        others={name: other.profile for name, other in file.others.items()},
        endpoint=EndpointOverhead(**file.endpoint.model_dump()) if file.endpoint else None,
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _RatesFile(_Strict):
    fixed_s: float = Field(ge=0)
    flop_s: float = Field(ge=0)
    input_byte_s: float = Field(ge=0)
    output_byte_s: float = Field(ge=0)
    weight_byte_s: float = Field(ge=0)


class _FitFile(_Strict):
    rates: _RatesFile
    samples: int = Field(ge=0)
    mape: float = Field(ge=0)
    bias: float


class _EndpointFile(_Strict):
    message_s: float = Field(ge=0)
    byte_s: float = Field(ge=0)
    task_s: float = Field(ge=0)
    peer_message_s: float | None = Field(default=None, ge=0)
    peer_byte_s: float | None = Field(default=None, ge=0)
    set_up_s: float = Field(default=0.0, ge=0)


class _EngineFile(_Strict):
    fits: dict[str, _FitFile] = Field(min_length=1)
    compute_scale: float = Field(ge=0)
    light_scale: float = Field(ge=0)
    blocks: int = Field(ge=0)
    block_mape: float = Field(ge=0)
    block_bias: float

    @property
    def profile(self) -> EngineProfile:
        fits = {
            kind: LayerRegression(
                LayerRates(**fit.rates.model_dump()), fit.samples, fit.mape, fit.bias
            )
            for kind, fit in self.fits.items()
        }
        return EngineProfile(
            fits,
            self.compute_scale,
            self.light_scale,
            self.blocks,
            self.block_mape,
            self.block_bias,
        )


class _ProfileFile(_EngineFile):
    format: Literal[2, 3]
    fingerprint: dict[str, str]
    engine: str = ONNXRUNTIME
    others: dict[str, _EngineFile] = {}
    endpoint: _EndpointFile | None = None
