"""The Open Inference Protocol (KServe, Triton): `/v2` over HTTP, and GRPCInferenceService."""
