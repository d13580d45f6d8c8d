"""Profiles as JSON, saved between runs with the fingerprint of their device."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.costs.affine import LayerRates
from coordinator.costs.cluster import EndpointOverhead
from coordinator.costs.regression import DeviceProfile, LayerRegression
from protos.daemon.documents import first_problem
from protos.daemon.files import decoded
from protos.errors import BadRequest

FORMAT = 2


def save_profile(profile: DeviceProfile) -> str:
    """The text of a profile file."""
    body = asdict(profile)
    return json.dumps({"format": FORMAT, **body}, indent=1, allow_nan=False) + "\n"


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
            cause=f"this is not a device's profile: {told}",
            cure="Make one with `imbrex profile`.",
        ) from error
    fits = {
        kind: LayerRegression(
            LayerRates(**each.rates.model_dump()), each.samples, each.mape, each.bias
        )
        for kind, each in file.fits.items()
    }
    rest = file.model_dump(exclude={"format", "fits", "endpoint"})
    end = EndpointOverhead(**file.endpoint.model_dump()) if file.endpoint else None
    return DeviceProfile(fits=fits, endpoint=end, **rest)


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


class _ProfileFile(_Strict):
    format: Literal[2]
    fingerprint: dict[str, str]
    fits: dict[str, _FitFile] = Field(min_length=1)
    compute_scale: float = Field(ge=0)
    light_scale: float = Field(ge=0)
    blocks: int = Field(ge=0)
    block_mape: float = Field(ge=0)
    block_bias: float
    endpoint: _EndpointFile | None = None
