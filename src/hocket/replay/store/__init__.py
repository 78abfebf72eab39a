"""The replay store: native tables here or at a server, usable without the rest of hocket.

schema.py     the columns of a table
access.py     the operations of a table, in this process or at a server
table.py      a table in this process
server.py     a server of tables
client.py     a table at a server
writer.py     how an actor inserts rows
feed.py       batches on a device, which a thread draws and sends ahead
prefetch.py   the thread that draws ahead
shards.py     several tables as one
native/       the store in C++; native/dpdk/ is the replay node in the network
"""
