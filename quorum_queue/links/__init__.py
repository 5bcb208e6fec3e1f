"""Links between the nodes of a cluster: one authenticated, ordered stream of frames for each pair of them.

Pure: handshake, framing, choice, steady_clock, ports. Edge: wire (which clients' connections use, too),
session, greeting, mesh.
"""
