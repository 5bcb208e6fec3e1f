"""Roles of a member. A learner is a follower that does not campaign."""

FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER = range(4)
