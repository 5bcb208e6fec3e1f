"""All longer proofs of the connector: processes are killed while Spark writes, and while it reads."""

from __future__ import annotations

from tests.spark_sink import chaos, source_chaos, stream_chaos


def spark_kills() -> bool:
    """Return whether all checks held."""
    print("Spark writes:", flush=True)
    wrote = chaos.every(chaos.STEPS, chaos.STEPS, chaos.VARIANTS)
    print("Spark reads and writes:", flush=True)
    read = chaos.every(source_chaos.STEPS, source_chaos.STEPS, chaos.VARIANTS)
    print("Spark reads streams:", flush=True)
    return chaos.every(stream_chaos.STEPS, stream_chaos.STEPS, stream_chaos.KINDS) and wrote and read
