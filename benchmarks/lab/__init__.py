"""An emulated cluster of small computers on one machine: `python -m benchmarks.lab`."""
