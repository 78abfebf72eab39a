"""A plan: who runs what, where, and what crosses. Frozen data, checked before anything starts.

data.py              `Place`, `Channel`, `Mean`, `Launch`, `Plan`, and what follows from them
schedule.py          who waits for whom: `Lockstep`, or `Free`
checks.py            what a plan refuses, by name
checks_free.py       what it refuses where nobody waits
checks_services.py   what it refuses of services
traffic.py           what crosses in an iteration: messages, means, and their bytes
memory.py            the memory that each place needs
text.py              a plan for people
json.py              a plan for another process
"""
