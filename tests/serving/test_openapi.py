"""The OpenAPI document says what is true: schemathesis finds no answer that breaks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.processes import Service

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def run(service: Service, folder: Path, examples: int) -> None:
    command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
    command += [service.url + "/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--seed", "7", "--max-examples", str(examples), "--no-color", "--workers", "1"]
    # Measuring takes seconds, and a baseline stops every other request meanwhile; what others ask
    # is not to be loaded anew or unloaded; that there is no detector is an error of the server's.
    command += ["--exclude-path-regex", "baseline|load|vision/detection"]
    command += ["--phases", "examples,coverage,fuzzing"]
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert service.get("/readyz") == {"status": "ready"}


def test_a_short_run(service: Service, tmp_path: Path) -> None:
    run(service, tmp_path, 4)


@pytest.mark.slow
def test_a_long_run(service: Service, tmp_path: Path) -> None:
    run(service, tmp_path, 300)
