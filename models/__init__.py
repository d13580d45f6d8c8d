"""A network as data: graph, operators, geometry, cutting, catalogue, pre/post-processing."""
