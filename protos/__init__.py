"""The wire: protobuf definitions, generated stubs, frames of raw tensor bytes."""
