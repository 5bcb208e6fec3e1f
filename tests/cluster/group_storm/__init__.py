"""Members of many client libraries in one consumer group, which are killed, frozen and stopped at random, and
a judge of what they saw.
"""
