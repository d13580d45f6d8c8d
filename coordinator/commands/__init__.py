"""What the commands of `imbrex` do: each takes plain values and returns an exit code."""
