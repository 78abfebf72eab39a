"""Playing a policy: episodes to measure it, and episodes to watch.

evaluate.py    measures a policy
recording.py   records its episodes as frames
host_play.py   what both share for environments on the host
"""
