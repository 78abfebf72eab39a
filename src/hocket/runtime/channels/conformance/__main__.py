"""The side of a check that is in another process.

python -m hocket.runtime.channels.conformance SOCKET MEMORY BYTES NAME DEVICES...
"""

import sys

from hocket.runtime.channels.conformance.sides import serve

if __name__ == "__main__":
    fd, memory, nbytes, name, *devices = sys.argv[1:]
    serve(int(fd), int(memory), int(nbytes), name, devices)
