"""The side of a link that `check_transport` runs in another process.

python -m hocket.testing.transport SOCKET MEMORY BYTES NAME DEVICES...
"""

import sys

from hocket.testing.transport.sides import serve

if __name__ == "__main__":
    fd, memory, nbytes, name, *devices = sys.argv[1:]
    serve(int(fd), int(memory), int(nbytes), name, devices)
