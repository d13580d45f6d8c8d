import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_half_a_minute_of_chaos_costs_no_request() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.chaos",
        "--minutes",
        "0.5",
        "--seed",
        "7",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    result = json.loads(done.stdout)
    assert result["requests"] > 20
    assert result["faults"] > 3
    assert (result["lost"], result["wrong"]) == (0, 0), result["losses"]
    assert done.returncode == 0
