"""RESTART_CMD of a run with its own mqd: `python restart.py SOCKET` asks for a restart, waits until mqd
serves.
"""

import socket
import sys


def main(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)
        answer = b""
        while part := door.recv(4096):
            answer += part
    if answer == b"ok":
        return 0
    print(answer.decode(errors="replace") or "no answer", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
