"""Plans: which place runs what, where, and what crosses. Frozen data, checked before a run starts.

device_id.py         `DeviceId`: the device that a plan names
data.py              `Place`, `Channel`, `Mean`, `Launch`, `Plan`, and what follows from them
schedule.py          who waits for whom: `Lockstep`, or `Free`
checks.py            the refusals of plans that cannot run or would change numbers
checks_free.py       refusals of free plans, in which learner and makers do not wait for each other
checks_backend.py    refusals of backends other than JAX
checks_services.py   refusals of services
traffic.py           what crosses between places in an iteration: messages, means, and their bytes
nodes.py             which instances are on which node, and what crosses between nodes
memory.py            the memory that each place needs
text.py              a plan as text for people
text_nodes.py        the nodes of a plan as text
json.py              a plan as text for another process
"""
