"""Playing a policy: episodes to count, and episodes to look at.

evaluate.py    how good a policy is, in pure environments
host_play.py   the same in environments on the host
recording.py   the frames of its episodes
"""
