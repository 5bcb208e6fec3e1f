"""Members of many client libraries in one consumer group, killed, frozen and told to go by chance, and a
judge of what they saw.
"""
