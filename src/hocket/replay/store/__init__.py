"""The replay store: native tables in this process or at a server, usable without the rest.

schema.py     the columns of a table
table.py      a table in this process
server.py     a server of tables
client.py     a table at a server
access.py     what both can do
writer.py     how an actor inserts
feed.py       batches on a device, drawn and sent ahead by a thread
prefetch.py   answers that are fetched before they are asked for
shards.py     several tables as one
native/       the store in C++; native/dpdk the node in the network
"""
