"""Returns every byte as it came, as soon as it came; exits with the code given as its argument."""

import os
import sys

while True:
    chunk = os.read(0, 65536)
    if not chunk:
        break
    while chunk:
        chunk = chunk[os.write(1, chunk):]
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
