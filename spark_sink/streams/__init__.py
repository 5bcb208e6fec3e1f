"""Reading streams and super streams: nothing is acked for good, and Spark's checkpoint has the offsets."""
