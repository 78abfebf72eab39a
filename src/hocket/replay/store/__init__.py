"""The replay store: native tables in this process or at a server, usable without the rest.

schema.py     the columns of a table
access.py     what a table can do, wherever it is
table.py      a table in this process
server.py     a server of tables
client.py     a table at a server
writer.py     how an actor inserts rows
feed.py       batches on a device, which a thread draws and sends ahead
prefetch.py   the thread that draws ahead
shards.py     several tables as one
native/       the store in C++; native/dpdk/ is the replay node in the network
"""
